"""Streams learned one sample a step: the compiled engine against loops of PyTorch and a `lax.scan` of JAX.

All contenders start alike, see the same samples in the same order, compute in float32 and, on a CPU, in one
thread. Their loss curves must agree, or nothing is reported. A pass goes over all samples and ends with every loss
on the host; passes are interleaved, and their medians compared. What a first pass takes beyond is compilation,
with the caches of PyTorch empty.

Run as a module, it needs nothing but PyTorch, and JAX where it is there:
`python -m benchmarks.stream --device cuda --out DIR`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import _report, _stream_batches, _stream_live, _stream_population, _stream_single, _stream_sources

PARTS: dict[str, Any] = {
    "single": _stream_single,
    "population": _stream_population,
    "sources": _stream_sources,
    "live": _stream_live,
    "batches": _stream_batches,
}
"""What is measured: each part has `measure(device, quick)` and `show(found, device)`."""


def run(out: Path, quick: bool = False, device: str | None = None, part: str | None = None) -> dict[str, Any]:
    """Measure, print tables, and write a dated report.

    Args:
        out: Folder for the report.
        quick: Whether it works, not how fast.
        device: "cpu" or "cuda"; `None`: the CPU, which these networks are made for.
        part: One of `PARTS`; `None`: all of them.
    """
    where = device or "cpu"
    found = measure(where, quick, part)
    name, options = "stream", ""
    if part is not None:
        name, options = f"{name}-{part}", f" --part {part}"
    if where != "cpu":
        name, options = f"{name}-{where}", f"{options} --device {where}"
    _report.write(out, name, found, rerun=f"python -m benchmarks.stream{options}" if options else None)
    _show(found)
    return found


def measure(device: str, quick: bool = False, part: str | None = None) -> dict[str, Any]:
    """One part of the benchmark or all; needs PyTorch, and takes JAX along where it is installed."""
    chosen = PARTS if part is None else {part: PARTS[part]}
    if device != "cpu" and part is None:
        # A live feed brings numbers from outside: what is measured is how they get in, which no GPU changes.
        chosen = {name: one for name, one in PARTS.items() if name != "live"}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with contextlib.nullcontext() if quick else _empty_caches():
            if not quick:
                _load_compilers(device)
            parts = {name: one.measure(device, quick) for name, one in chosen.items()}
    finally:
        torch.set_num_threads(threads)
    return {"device": device, "threads": 1, "jax": _jax_version(), **parts}


@contextlib.contextmanager
def _empty_caches() -> Iterator[None]:
    """A new folder for what PyTorch and the compiled engine keep on disk."""
    names = ("TORCHINDUCTOR_CACHE_DIR", "HAMLEARN_CACHE_DIR")
    before = {name: os.environ[name] for name in names if name in os.environ}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ.update(dict.fromkeys(names, folder))
        try:
            yield
        finally:
            for name in names:
                del os.environ[name]
            os.environ.update(before)


def _load_compilers(device: str) -> None:
    """Imports and preparations, once per process, which do not count as compiling a step."""
    with contextlib.suppress(Exception):
        torch.compile(torch.sin)(torch.ones(8, device=device))


def _jax_version() -> str | None:
    try:
        return importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:
        return None


def _show(found: dict[str, Any]) -> None:
    if importlib.util.find_spec("rich") is None:
        print(json.dumps(found, indent=2))
        return
    for name in [name for name in PARTS if name in found]:
        PARTS[name].show(found[name], found["device"])


def _main() -> None:
    parser = argparse.ArgumentParser(description="One sample a step: compiled Hamiltonian Learning, PyTorch, JAX.")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--part", choices=list(PARTS))
    given = parser.parse_args()
    run(given.out, given.quick, given.device, given.part)


if __name__ == "__main__":
    _main()
