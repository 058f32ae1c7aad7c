"""Time of a tick in which all layers compute and learn at once, against BackPropagation of the same net.

A chain of equal layers with tanh, batch 1, mean squared error, float32, one thread. Medians of interleaved rounds:

- BackPropagation: `zero_grad`, forward, backward and `torch.optim.SGD.step`, eager;
- unaligned and aligned: `LocalLearner.step` with the layers stacked;
- aligned, one node at a time: the same without stacking.

A tick of the local learner passes a sample one layer on, a step of BackPropagation takes it through all of them;
both move every weight once and take in one new sample.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from hamlearn.hyper import Hyper
from hamlearn.local import LocalLearner
from hamlearn.state import Sample

LR = 1e-3


def run(out: Path, quick: bool = False) -> dict[str, Any]:
    """Measure, print a table, and write a dated report into `out`.

    Args:
        out: Folder for the report; made if it is not there.
        quick: Few rounds of a shallow net, to see that all works.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = [_measure(depth, 64, rounds=3 if quick else 40) for depth in ((8,) if quick else (16, 64, 256))]
    finally:
        torch.set_num_threads(threads)
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    report = {
        "what": "time of one tick of a local learner against one eager step of BackPropagation with SGD",
        "date": date,
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "threads": 1,
        },
        "rows": rows,
    }
    _print(rows)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"local-{date[:10]}{'-quick' if quick else ''}.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


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
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, step in ways.items():
            start = time.perf_counter()
            for _ in range(5):
                step()
            times[name].append((time.perf_counter() - start) / 5)
    micro = {name: round(1e6 * statistics.median(values), 1) for name, values in times.items()}
    faster = {name: round(micro["BackPropagation"] / value, 2) for name, value in micro.items()}
    return {"depth": depth, "width": width, "microseconds": micro, "times faster": faster}


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
        nn.Sequential(*layers), nn.functional.mse_loss, Hyper.from_sgd(LR), groups=len(layers) // 2, **setting
    )
    sample = Sample(u, target)
    return lambda: (learner.step(sample), None)[1]


def _print(rows: list[dict[str, Any]]) -> None:
    table = Table(title="µs a tick (times faster than BackPropagation)")
    table.add_column("layers")
    for name in rows[0]["microseconds"]:
        table.add_column(name, justify="right")
    for row in rows:
        cells = [f"{row['microseconds'][n]:.0f} ({row['times faster'][n]:.1f}×)" for n in row["microseconds"]]
        table.add_row(f"{row['depth']} of {row['width']}", *cells)
    Console().print(table)
