"""Runs the Python blocks of a page, or a drawing of the gallery; figures go to the folder that it is started in.

python docs/_hooks/play.py PAGE.md|DRAWING.py
"""

import runpy
import sys
from pathlib import Path

import torch
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

ROOT = Path(__file__).parents[2]


def play(source: Path) -> None:
    """Run it as the tests run pages: the blocks share their names, and PyTorch's seed is 0."""
    torch.manual_seed(0)
    if source.suffix == ".py":
        sys.path.insert(0, str(ROOT / "examples"))
        runpy.run_path(str(source), run_name="__main__")
        return
    page = Sybil(parsers=[PythonCodeBlockParser(), SkipParser()]).parse(source)
    page.namespace["ROOT"] = ROOT
    for block in page.examples():
        block.evaluate()


if __name__ == "__main__":
    play(Path(sys.argv[1]))
