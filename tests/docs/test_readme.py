"""The README shows what its examples print, and figures that the newest reports have."""

import io
import json
import re
from contextlib import redirect_stdout

import pytest
import torch

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


def stale(text):
    """Figures that are not those of the newest reports, by what they say they are."""
    figures = hook("benchmark_tables").figures()
    shown = re.findall(r"([\d.,]+)(?: ×)?(?: as fast)? <!-- ([^>]+) -->", text)
    assert shown
    return {name: (figure, figures.get(name)) for figure, name in shown if figures.get(name) != figure}


def test_the_figures_of_the_readme_are_those_of_the_newest_reports():
    assert stale(README) == {}


def test_a_stale_figure_is_found():
    planted = re.sub(r"[\d.]+ × as fast <!-- scan over jax: RNN", "99.9 × as fast <!-- scan over jax: RNN", README)
    assert json.dumps(list(stale(planted))) == '["scan over jax: RNN, 30 neurons"]'
