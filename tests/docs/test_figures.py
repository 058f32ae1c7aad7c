"""The site's figures: made by the code that stands on the page, once, and always by what the library is now."""

import importlib.util
import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort, PluginError

HOOK = Path(__file__).parents[2] / "docs" / "_hooks" / "figures.py"
PAGE = """# A page

```python
from matplotlib import pyplot as plt

figure, ax = plt.subplots()
ax.plot([0, 1], label="a line")
```

```python
figure.savefig("line.svg")
open({log!r}, "a").write("run\\n")
```

![A line](line.svg)
"""


@pytest.fixture
def site(tmp_path):
    """A folder with a site of one page, and a function that builds it."""
    (tmp_path / "docs" / "deep").mkdir(parents=True)
    (tmp_path / "docs" / "index.md").write_text("# Home\n")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "library.py").write_text("first = 1\n")
    page = tmp_path / "docs" / "deep" / "page.md"
    page.write_text(PAGE.format(log=str(tmp_path / "log")))
    (tmp_path / "mkdocs.yml").write_text(f"site_name: s\nstrict: true\nhooks: [{HOOK}]\n")

    def make():
        build(load_config(str(tmp_path / "mkdocs.yml")))
        return tmp_path / "site" / "deep"

    return tmp_path, page, make


def hook():
    spec = importlib.util.spec_from_file_location("figures", HOOK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_figure_that_a_page_saves_is_shown_on_it_in_an_ink_for_light_and_one_for_dark(site):
    _, _, make = site
    folder = make()
    html = (folder / "page" / "index.html").read_text()
    assert 'src="../line.svg#only-light"' in html
    assert 'src="../line-dark.svg#only-dark"' in html
    light, dark = (folder / "line.svg").read_text(), (folder / "line-dark.svg").read_text()
    assert "#20242e" in light
    assert "#20242e" not in dark
    assert light.replace("#20242e", "#e4e7ef").replace("#c8ccd8", "#454b5c") == dark


def test_a_page_is_run_again_when_it_or_the_library_has_changed_and_only_then(site):
    folder, page, make = site
    for change, runs in (
        (None, 1),
        (None, 1),
        (page, 2),
        (folder / "src" / "library.py", 3),
        (None, 3),
        (folder / "docs" / "index.md", 3),
    ):
        if change is not None:
            change.write_text(change.read_text() + "\n")
        make()
        assert (folder / "log").read_text().count("run") == runs
    assert len(list((folder / ".cache" / "figures").iterdir())) == 1  # what is not used any more is gone


def test_a_page_shows_what_each_block_prints_and_no_hidden_block(site):
    folder, page, make = site
    hidden = "<!--- invisible-code-block: python\nassert total == 6\n--->"
    page.write_text(f"# A page\n\n```python\nprint(total := 1 + 5, 'in all')\n```\n\n{hidden}\n\nText.\n")
    with (folder / "mkdocs.yml").open("a") as file:
        file.write("markdown_extensions: [pymdownx.superfences]\n")
    html = re.sub(r"<[^>]+>", "", (make() / "page" / "index.html").read_text())
    assert re.search(r"\n6 in all\s+Text\.", html)
    assert "assert total" not in html


@pytest.mark.parametrize("fence", ["```py", '```python title="x"', "~~~ python", "    ```pycon"])
def test_a_block_that_is_shown_without_its_output_ends_the_build(site, fence, caplog):
    _, page, make = site
    page.write_text(f"# A page\n\n```python\nprint(1)\n```\n\n{fence}\nprint(2)\n{fence[:7].rstrip('pyt ')}\n")
    with pytest.raises(Abort):
        make()
    assert "deep/page.md: the block in line 7 is not run: begin it with ```python" in caplog.text


def test_what_a_block_asserts_is_shown_as_a_reader_would_see_it():
    code = "x = 3\nassert x == 3\nassert x < 5, x\nassert sum(\n    [x, 1]\n) == 4\n\ndef f():\n    assert x\n"
    assert hook().without_asserts(code) == (
        "x = 3\nx  # 3\nx < 5  # True\nsum(\n    [x, 1]\n)  # 4\n\ndef f():\n    assert x\n"
    )


def test_code_that_fails_ends_the_build_with_its_page_and_its_error_and_nothing_is_kept(site, caplog):
    folder, page, make = site
    page.write_text(PAGE.format(log="log").replace("[0, 1]", "nowhere"))
    with pytest.raises(Abort):
        make()
    assert f"{page}: cannot be run" in caplog.text
    assert "name 'nowhere' is not defined" in caplog.text
    assert not list((folder / ".cache" / "figures").iterdir())


def test_a_figure_that_no_code_makes_ends_the_build(site):
    _, page, make = site
    page.write_text("# A page\n\n![A line](line.svg)\n")
    with pytest.raises(Abort):
        make()


def test_a_page_that_takes_too_long_is_named(tmp_path, monkeypatch):
    figures = hook()
    monkeypatch.setattr(figures, "LIMIT", 1)
    page = tmp_path / "slow.md"
    page.write_text("```python\nwhile True:\n    pass\n```\n")
    with pytest.raises(PluginError, match=r"slow\.md: took more than 1 s of one core; make its problem smaller"):
        figures.run(figures.Job(page, "", tmp_path / ".cache" / "figures" / "kept"))


def test_a_broken_link_ends_the_build_and_the_command_does_not_hide_it(site):
    _, page, make = site
    page.write_text("# A page\n\n[Elsewhere](missing.md)\n")
    with pytest.raises(Abort):
        make()
    makefile = (HOOK.parents[2] / "Makefile").read_text()
    assert "mkdocs build --strict\n" in makefile  # with --quiet it would end with exit code 0
