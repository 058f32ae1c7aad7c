"""Makes pytest run the Python blocks of README.md and of the documentation pages.

The blocks of a page share one namespace and run in order, in a folder of their own that is gone afterwards.
"""

import os
import sys
from contextlib import ExitStack, chdir
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from xdist.scheduler import LoadGroupScheduling

ROOT = Path(__file__).parent
# Triton comes with PyTorch for GPUs only; braintrace lives in an environment of its own.
KERNELS = [f"src/hamlearn/local/fused/{name}.py" for name in ("batched", "functions", "kernel", "single")]
collect_ignore = [] if find_spec("triton") else KERNELS
# What the site is built with runs in the build.
collect_ignore += ["docs/_gallery", "docs/_griffe", "docs/_hooks"]
collect_ignore += [] if find_spec("brainstate") else ["benchmarks/_credit_rival_jax.py"]
_open_page = ExitStack()
os.environ["MPLBACKEND"] = "agg"  # pages draw, and no window should open


def _enter_page(namespace: dict[str, object]) -> None:
    namespace["ROOT"] = ROOT
    folder = _open_page.enter_context(TemporaryDirectory())
    _open_page.enter_context(chdir(folder))
    _open_page.callback(torch.set_default_dtype, torch.get_default_dtype())
    torch.manual_seed(0)


def _leave_page(namespace: dict[str, object]) -> None:
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
    _open_page.close()


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()],
    patterns=["README.md", "docs/*.md", "docs/*/*.md"],
    setup=_enter_page,
    teardown=_leave_page,
).pytest()


class _WholePages(LoadGroupScheduling):
    """Gives all blocks of a page to one process, since a block needs the names of those above it."""

    # By node id and not by the mark `xdist_group`, which pytest-xdist 3.8 writes where pytest 9.2 does not look.
    def _split_scope(self, nodeid: str) -> str:
        page, is_block, _ = nodeid.partition(".md::")
        return page if is_block else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadGroupScheduling | None:
    return _WholePages(config, log) if config.getvalue("dist") == "loadgroup" else None
