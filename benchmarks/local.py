"""Time of a tick in which all layers compute and learn at once, against BackPropagation of the same net.

A chain of equal layers with tanh, batch 1, mean squared error, float32, with one thread and with PyTorch's own
number of threads. Medians of interleaved rounds:

- BackPropagation: `zero_grad`, forward, backward and `torch.optim.SGD.step`, eager;
- unaligned and aligned: `LocalLearner.step` with the layers stacked, and without the check that all is finite,
  which BackPropagation does not make either;
- aligned, one node at a time: the same without stacking.

A tick of the local learner passes a sample one layer on, a step of BackPropagation takes it through all of them;
both move every weight once and take in one new sample. Time is taken on the wall, and as time of this process,
which other processes on the machine disturb less: on a shared machine that is the one to go by.

Then the compiled engine is measured against the eager one, see `_local_loops`.

With `device="cuda"` fused ticks are measured instead, see `_local_cuda`.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks import _local_cuda, _local_loops, _report
from hamlearn.hyper import Hyper
from hamlearn.local import LocalLearner
from hamlearn.sample import Sample

LR = 1e-3
_LINES = {
    "BackPropagation, CUDA graph": "s--",
    "aligned, eager": "^:",
    "aligned, engine": "x-",
    "aligned, kernel": "o-",
}
_STEPS = 20


def run(out: Path, quick: bool = False, device: str | None = None) -> dict[str, Any]:
    """Measure, print a table, and write a dated report into `out`.

    Args:
        out: Folder for the report; made if it is not there.
        quick: Few rounds of a shallow net, to see that all works.
        device: "cpu" or "cuda"; `None`: the CPU.
    """
    if device == "cuda":
        return _run_cuda(out, quick)
    depths, rounds = ((8,), 3) if quick else ((16, 64, 256), 15)
    usual = torch.get_num_threads()
    rows = []
    try:
        for threads in sorted({1, usual}):
            torch.set_num_threads(threads)
            rows += [{"threads": threads, **_measure(depth, 64, rounds)} for depth in depths]
    finally:
        torch.set_num_threads(usual)
    _print(rows)
    loops = _local_loops.quietly(quick)
    _local_loops.show(loops)
    found = {"reach": 10, "at": "64 layers of 64, unaligned", "rows": rows, "loops": loops}
    _report.write(out, "local", found)
    return found


def _run_cuda(out: Path, quick: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for found in _local_cuda.measure(quick):
        path = _report.write(out, "local-cuda", found, rerun="hamlearn bench local --device cuda")
        draw_depths(found, path.with_suffix(".png"))
    names = dict.fromkeys(name for row in found["rows"] for name in row["microseconds"])
    table = Table(title=f"µs a tick; a copy moves {found['copy bytes a second'] / 1e12:.2f} TB/s")
    for heading in ("layers", *names, "share of copy"):
        table.add_column(heading, justify="right")
    for row in found["rows"]:
        layers = f"{row['depth']} of {row['width']}{', residual' if row['residual'] else ''}"
        cells = [str(row["microseconds"].get(name, "–")) for name in names]
        shares = " / ".join(f"{share:.2f}" for share in row["share of copy bandwidth"].values())
        table.add_row(layers, *cells, shares)
    Console(width=220).print(table)
    return found


def draw_depths(found: dict[str, Any], path: Path) -> None:
    """Time per sample against depth, batch 1, where Matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    from matplotlib.figure import Figure

    rows = [r for r in found["rows"] if not r["residual"]]
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.add_subplot()
    for width, color in zip(sorted({row["width"] for row in rows}), ("#0072b2", "#d55e00"), strict=False):
        mine = sorted((row for row in rows if row["width"] == width), key=lambda row: row["depth"])
        for name, style in _LINES.items():
            points = [(row["depth"], row["microseconds"][name]) for row in mine if name in row["microseconds"]]
            if points:
                axes.plot(*zip(*points, strict=True), style, color=color, label=f"{name}, {width} wide")
    axes.set(xscale="log", yscale="log", xlabel="layers", ylabel="µs per sample")
    axes.set_title("A sample per tick, batch 1, float32")
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    figure.savefig(path, dpi=150)


def _measure(depth: int, width: int, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    u, target = torch.randn(1, width), torch.randn(1, width)
    ways = {
        "BackPropagation": _backprop(_layers(depth, width), u, target),
        "unaligned": _local(_layers(depth, width), u, target),
        "aligned": _local(_layers(depth, width), u, target, align=True),
        "aligned, one node at a time": _local(_layers(depth, width), u, target, align=True, stacked=False),
    }
    for step in ways.values():
        for _ in range(2 * depth + 3):
            step()
    clocks = {"wall": time.perf_counter, "process": time.process_time}
    times = _report.interleaved(ways, rounds * list(ways), _STEPS, *clocks.values())
    row: dict[str, Any] = {"depth": depth, "width": width}
    for place, clock in enumerate(clocks):
        micro = {name: round(1e6 * statistics.median(found[place]), 1) for name, found in times.items()}
        faster = {name: round(micro["BackPropagation"] / value, 2) for name, value in micro.items()}
        row[clock] = {"microseconds": micro, "times faster": faster}
    return row


def _layers(depth: int, width: int) -> list[nn.Module]:
    return [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.Tanh())]


def _backprop(layers: list[nn.Module], u: torch.Tensor, target: torch.Tensor) -> Callable[[], None]:
    module = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(module(u), target).backward()
        optimizer.step()

    return step


def _local(layers: list[nn.Module], u: torch.Tensor, target: torch.Tensor, **setting: Any) -> Callable[[], None]:
    learner = LocalLearner(
        nn.Sequential(*layers),
        nn.functional.mse_loss,
        Hyper.from_sgd(LR),
        groups=len(layers) // 2,
        on_nonfinite="ignore",
        **setting,
    )
    sample = Sample(u, target)
    return lambda: (learner.step(sample), None)[1]


def _print(rows: list[dict[str, Any]]) -> None:
    table = Table(title="µs a tick (times faster than BackPropagation)")
    table.add_column("layers")
    for heading in ("threads", "clock", *rows[0]["wall"]["microseconds"]):
        table.add_column(heading, justify="right")
    for row in rows:
        for clock in ("wall", "process"):
            faster = row[clock]["times faster"]
            cells = [f"{micro:.0f} ({faster[n]:.1f}×)" for n, micro in row[clock]["microseconds"].items()]
            table.add_row(f"{row['depth']} of {row['width']}", str(row["threads"]), clock, *cells)
    Console().print(table)
