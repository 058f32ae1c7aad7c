"""Makes pytest run the Python blocks of a documentation page that it is given by name.

The blocks of a page share one namespace and run in order, in a folder of their own that is gone afterwards.
"""

import gc
import importlib
import logging
import os
import signal
import sys
from contextlib import ExitStack, chdir
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

ROOT = Path(__file__).parent
# Triton comes with PyTorch for GPUs only; braintrace lives in an environment of its own.
collect_ignore = [] if find_spec("triton") else ["src/hamlearn/engine/fused/kernel.py"]
# What the site is built with runs in the build.
collect_ignore += ["docs/_gallery", "docs/_griffe", "docs/_hooks"]
# Pages are run when the site is built, else by tests/docs/test_pages.py; and by name, one by one.
collect_ignore += [str(page) for page in (ROOT / "docs").rglob("*.md")]
collect_ignore += [] if find_spec("brainstate") else ["benchmarks/_credit_rival_jax.py"]
MECHANISMS = {
    ROOT / "tests" / name
    for name in (
        "compiled/test_bring.py",
        "loops/test_blas.py",
        "loops/test_costs.py",
        "loops/test_indices.py",
        "loops/test_nvrtc.py",
        "trust/test_torch_private.py",
        "test_tooling.py",
    )
}
"""Tests of how something is done inside, which may go together with it. All others hold a promise to users."""
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
    patterns=["docs/*.md", "docs/*/*.md"],
    setup=_enter_page,
    teardown=_leave_page,
).pytest()


@pytest.fixture(autouse=True)
def _usual_log_level() -> None:
    """Let the library log as it does by itself, whatever level a command of another test has set."""
    logging.getLogger("hamlearn").setLevel(logging.NOTSET)


def pytest_configure() -> None:
    """Hear Ctrl-C as a process in the foreground does: a shell lets its background processes ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark contracts; files with slow tests come first, so that no process is left alone with one at the end.

    Pages come last: the site, which is built beside the tests, has run them by then.
    """
    for item in items:
        item.add_marker("mechanism" if item.path in MECHANISMS else "contract")
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path.name == "test_pages.py", item.path not in slow))


def pytest_collection_finish() -> None:
    """What is loaded by now stays: whoever collects garbage later need not look through it again."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Part of a whole run, which records steps sooner or later: what PyTorch loads for that is loaded now.
        importlib.import_module("torch._inductor.config")
    gc.collect()
    gc.freeze()
