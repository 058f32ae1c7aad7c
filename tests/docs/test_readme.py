"""The README shows what its examples print, and figures that the newest reports have."""

import io
import re
from contextlib import redirect_stdout

import pytest
import torch
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from tests.docs.pages import ROOT, hook

README = (ROOT / "README.md").read_text()
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.M | re.S)


@pytest.mark.slow
def test_the_readme_shows_what_its_examples_print():
    names = {}
    torch.manual_seed(0)
    for code, shown in BLOCK.findall(README):
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), names)
        assert NUMBER.sub("#", printed.getvalue()) == NUMBER.sub("#", shown)
        # Another processor rounds otherwise, and a learner may then decide otherwise once in a while.
        numbers = [[float(number) for number in NUMBER.findall(text)] for text in (printed.getvalue(), shown)]
        assert numbers[0] == pytest.approx(numbers[1], rel=0.02, abs=0.02)


def test_the_readme_has_at_most_120_lines():
    assert README.count("\n") <= 120


def test_every_figure_of_the_readme_is_one_of_the_newest_reports():
    tables = hook("benchmark_tables")
    assert len(tables.SHOWN.findall(README)) > 7
    assert tables.stale(README) == {}


def test_a_stale_figure_ends_the_build_with_the_one_that_is_new(tmp_path, caplog):
    planted = re.sub(r"[\d.]+ × as fast <!-- scan over jax: R", "99.9 × as fast <!-- scan over jax: R", README)
    (tmp_path / "README.md").write_text(planted)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Home\n")
    made_by = f"hooks: [{ROOT}/docs/_hooks/generated.py]\n"
    (tmp_path / "mkdocs.yml").write_text(f"site_name: s\nstrict: true\n{made_by}")
    with pytest.raises(Abort):
        build(load_config(str(tmp_path / "mkdocs.yml")))
    assert "README.md shows 99.9 for 'scan over jax: RNN, 30 neurons', and the newest report has" in caplog.text
