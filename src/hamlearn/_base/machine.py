"""By what, and on what, something was computed: the one place that says so."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from hamlearn._version import __version__


def versions() -> dict[str, str]:
    """Of this package, of PyTorch and of Python.

    Example:
        >>> list(versions())
        ['hamlearn', 'torch', 'python']
    """
    return {"hamlearn": __version__, "torch": str(torch.__version__), "python": platform.python_version()}


def kind() -> str:
    """The kind of processor, as far as bits may depend on it."""
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def processor() -> str:
    """The processor by its name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
