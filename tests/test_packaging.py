"""What is published: a wheel and a source distribution that install into an empty environment and work there.

The environments are empty when the package is installed. Afterwards, for PyTorch and the other dependencies, they
are shown the libraries of the environment that runs the tests: downloading those would take minutes and a network.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIBRARIES = sysconfig.get_paths()["purelib"]


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The files of `python -m build`, by kind; the wheel is made from the source distribution, not the tree."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", "--outdir", out, ROOT)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


def example():
    """The README's examples."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    assert len(blocks) == 2
    return "\n".join(blocks)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_the_package_installs_into_an_empty_environment_and_runs_the_readme(built, kind, tmp_path):
    home = tmp_path / "empty"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    assert run(python, "-I", "-c", "import importlib.util as u; print(u.find_spec('hamlearn'))") == "None\n"
    # The build backend of a source distribution is taken from here, so that no network is needed.
    shown = os.environ | {"PYTHONPATH": LIBRARIES}
    install = ["install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed"]
    run(sys.executable, "-m", "pip", "--python", python, *install, built[kind], env=shown)
    (own,) = home.glob("lib/python*/site-packages")
    (own / "libraries.pth").write_text(LIBRARIES + "\n")
    (tmp_path / "example.py").write_text(example())
    where = run(python, "-I", "-c", "import hamlearn; print(hamlearn.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(own)
    assert "sample 999: predicted" in run(python, "-I", "example.py", cwd=tmp_path)
    version = run(home / "bin" / "hamlearn", "--version", cwd=tmp_path)
    assert version == f"hamlearn {tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['version']}\n"


@pytest.mark.slow
def test_the_wheel_has_the_package_and_nothing_else(built):
    names = zipfile.ZipFile(built["wheel"]).namelist()
    assert {name.partition("/")[0].rpartition(".")[2] for name in names} == {"hamlearn", "dist-info"}
    assert "hamlearn/py.typed" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    code = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == code


@pytest.mark.slow
def test_the_source_distribution_has_what_it_takes_to_test_and_document_it(built):
    with tarfile.open(built["sdist"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = [
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "CITATION.cff",
        "conftest.py",
        "constraints.txt",
        "mkdocs.yml",
    ]
    wanted += ["Makefile", "docs/about.md", "docs/_hooks/generated.py", "tests/test_packaging.py"]
    wanted += ["benchmarks/step.py", "examples/recurrent.py", "src/hamlearn/py.typed"]
    assert [name for name in wanted if name not in names] == []
    assert [name for name in names if name.startswith((".venv", "site/", "out/", ".git/"))] == []


def test_one_version_is_told_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (code,) = re.findall(r'__version__ = "(.+)"', (ROOT / "src" / "hamlearn" / "_version.py").read_text())
    (cited,) = re.findall(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert project == code == cited


def test_the_citation_file_is_of_the_form_that_readers_of_citations_expect():
    import yaml

    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["cff-version"], cited["license"]) == ("1.2.0", "Apache-2.0")
    assert all(cited[key] for key in ("message", "title", "authors", "type"))
    (paper,) = cited["references"]
    assert paper["title"] == "A Unified Framework for Neural Computation and Learning Over Time"
    assert [author["family-names"] for author in paper["authors"]] == [
        "Melacci",
        "Betti",
        "Casoni",
        "Guidi",
        "Tiezzi",
        "Gori",
    ]


def test_the_changelog_keeps_to_its_form():
    text = (ROOT / "CHANGELOG.md").read_text()
    heads = re.findall(r"^## (.+)$", text, re.M)
    assert heads[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", head) for head in heads[1:])
    kinds = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    for release in text.split("\n## ")[1:]:
        found = re.findall(r"^### (.+)$", release, re.M)
        assert found == [kind for kind in kinds if kind in found]


WITHOUT_EXTRAS = """
import sys
for extra in EXTRAS:
    sys.modules[extra] = None
import torch, hamlearn as hl
from hamlearn import evaluate, record, streams
learner = hl.Learner(hl.Network.feedforward(torch.nn.Linear(1, 1)), torch.nn.functional.mse_loss)
stream = streams.from_any((torch.ones(3, 1, 1), torch.ones(3, 1, 1)))
print(sum(1 for _ in learner.run(stream)))
"""


def test_the_library_works_without_its_extras():
    extras = [
        "river",
        "torchmetrics",
        "tensorboard",
        "paho",
        "redis",
        "websockets",
        "tenacity",
        "polars",
        "pandas",
        "starlette",
        "uvicorn",
    ]
    extras += [
        "sklearn",
        "matplotlib",
        "scipy",
        "prometheus_client",
        "pooch",
        "joblib",
    ]
    code = WITHOUT_EXTRAS.replace("EXTRAS", repr(extras))
    assert run(sys.executable, "-c", code) == "3\n"
