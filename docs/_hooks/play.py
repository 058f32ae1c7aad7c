"""Runs pages and drawings of the gallery, each in a process and a folder of its own.

The hook `figures.py` starts it: `python docs/_hooks/play.py SECONDS`. It loads the libraries once. For each line
that it reads, a path and a folder in JSON, it forks: the child runs the page or the drawing in that folder, and
writes `printed`, `errors` and `outputs.json` (what each block of a page printed) beside it. A line comes back with
the child's exit code and the seconds of one core that it took.
"""

import importlib
import io
import json
import os
import resource
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path

import torch
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

ROOT = Path(__file__).parents[2]
SHARED = ("matplotlib.pyplot", "hamlearn.learner", "torch._inductor.config")
"""What most pages of this site load; the last brings all that PyTorch loads when it first records a step."""


def play(source: Path) -> None:
    """Run it as the tests run pages: the blocks share their names, and PyTorch's seed is 0."""
    torch.manual_seed(0)
    if source.suffix == ".py":
        sys.path.insert(0, str(ROOT / "examples"))
        runpy.run_path(str(source), run_name="__main__")
        return
    page = Sybil(parsers=[PythonCodeBlockParser(), SkipParser()]).parse(source)
    page.namespace["ROOT"] = ROOT
    outputs: dict[int, str] = {}
    for block in page.examples():
        printed = io.StringIO()
        with redirect_stdout(printed):
            block.evaluate()
        outputs[block.line] = printed.getvalue().replace(f"{Path.cwd()}/", "")
    Path("../outputs.json").write_text(json.dumps(outputs))


def serve(limit: int) -> None:
    """Play what is asked for on standard input until it ends; `limit` is in seconds of one core."""
    for line in sys.stdin:
        source, folder = json.loads(line)
        for name in SHARED if Path(source).is_relative_to(ROOT) else ():
            importlib.import_module(name)
        child = os.fork()
        if child == 0:
            _enter(Path(folder), limit)
            play(Path(source))
            sys.exit()
        _, status, usage = os.wait4(child, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime]), flush=True)


def _enter(folder: Path, limit: int) -> None:
    """Work in a folder of its own, and for so long at most; what is written to the console goes beside it."""
    # Time of the processor, since a busy machine makes a page late, and no longer.
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
    os.chdir(folder)
    for number, place in enumerate((os.devnull, folder.with_name("printed"), folder.with_name("errors"))):
        opened = os.open(place, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
