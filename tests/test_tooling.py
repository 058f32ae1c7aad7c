"""What the project's own tools look at, whatever was run before them and however they were started."""

import ast
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import hamlearn as hl

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "hamlearn"
LEARNERS = (
    hl.Learner,
    hl.Population,
    hl.local.LocalLearner,
    hl.distributed.PipelineLearner,
    hl.distributed.ShardedPopulation,
)
WRONG = "te" + "h\n"  # spelled so that the check does not stumble over its own test


def test_spelling_is_not_checked_in_what_git_ignores(tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    ignored = [line.strip("/*") for line in (ROOT / ".gitignore").read_text().split()]
    assert "out" in ignored
    for name in ignored:
        folder = tmp_path / (f"x{name}" if name.startswith(".egg") else name) / "demo"
        folder.mkdir(parents=True)
        (folder / "report.html").write_text(WRONG)
    spell = [sys.executable, "-m", "codespell_lib"]
    done = subprocess.run(spell, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    (tmp_path / "page.md").write_text(WRONG)
    assert subprocess.run(spell, cwd=tmp_path, capture_output=True).returncode != 0


def test_tests_hear_ctrl_c_though_they_were_started_in_the_background(tmp_path):
    """As `sh -c 'make test &'` starts them: SIGINT ignored, which every child inherits."""
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    test = "import signal\ndef test_it(): assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
    (tmp_path / "test_it.py").write_text(test)
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_it.py"],
        cwd=tmp_path,
        check=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )


def private_names(node: ast.ClassDef) -> set[str]:
    """Private methods and attributes that a class defines."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self":
            found.add(part.attr)
        elif isinstance(part, ast.FunctionDef):
            found.add(part.name)
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            found.add(part.target.id)
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def test_no_module_but_the_owner_touches_a_private_attribute_of_a_learner():
    owners: dict[str, set[Path]] = {}
    bases = {base for learner in LEARNERS for base in learner.__mro__}
    for kind in (base for base in bases if base.__module__.startswith("hamlearn.")):
        path = Path(sys.modules[kind.__module__].__file__)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
                for name in private_names(node):
                    owners.setdefault(name, set()).add(path)
    assert {"_eager", "_settle", "_reader", "_ticker"} <= owners.keys()
    reaches = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Attribute) or path in owners.get(node.attr, {path}):
                continue
            if ast.unparse(node.value) not in ("self", "cls", "super()"):
                reaches.append(f"{path.relative_to(SOURCE)}:{node.lineno} {ast.unparse(node)}")
    assert reaches == []


RUN = 10


def plain_lines(path: Path) -> list[tuple[int, str]]:
    """Lines of a file that say something, by number, without white space; imports and comments do not count."""
    text, imported = path.read_text(), set()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                imported |= set(range(node.lineno, node.end_lineno + 1))
    lines = [(number, "".join(line.split())) for number, line in enumerate(text.splitlines(), 1)]
    says = [(number, line) for number, line in lines if any(map(str.isalnum, line)) and not line.startswith("#")]
    return [(number, line) for number, line in says if number not in imported]


def repeated_runs(folder: Path) -> list[str]:
    """Places at which `RUN` lines begin that stand in the folder a second time."""
    first, repeated = {}, []
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".html", ".js", ".css")):
        lines = plain_lines(path)
        for start in range(len(lines) - RUN + 1):
            run = tuple(line for _, line in lines[start : start + RUN])
            place = f"{path.relative_to(folder)}:{lines[start][0]}"
            if first.setdefault(run, place) != place:
                repeated.append(f"{place} is {first[run]} again")
    return repeated


def test_no_run_of_ten_lines_stands_twice_in_the_sources(tmp_path):
    lines = [f"x{number} = {number}" for number in range(RUN)]
    (tmp_path / "a.py").write_text("import math\n" + "\n".join(lines))
    (tmp_path / "b.py").write_text("def f():\n    # why\n" + "".join(f"    {line}\n\n" for line in lines))
    assert repeated_runs(tmp_path) == ["b.py:3 is a.py:2 again"]
    assert repeated_runs(SOURCE) == []
