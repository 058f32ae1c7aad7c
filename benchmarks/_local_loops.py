"""Ticks of local learners on the CPU, one by one and in compiled loops, for chains of every size and order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks import _report
from hamlearn.hyper import Hyper
from hamlearn.local import LocalLearner
from hamlearn.sample import Sample

SIZES = [
    (3, 30, 1, 256),
    (8, 64, 1, 256),
    (8, 64, 32, 128),
    (64, 64, 1, 192),
    (16, 256, 1, 64),
    (16, 256, 32, 40),
    (4, 1024, 1, 32),
    (4, 1024, 32, 16),
]
"""Layers, their width, samples in a batch, and batches in a pass."""
ORDERS: dict[str, dict[str, Any]] = {
    "unaligned": {},
    "aligned": {"align": True},
}
REACH = 0.9
"""To reach everywhere: how many times as fast as the eager engine the compiled one is."""


def measure(quick: bool) -> dict[str, Any]:
    """µs a sample by both engines, one thread, float32, without momentum and with it."""
    rows = []
    for depth, width, batch, count in SIZES[:1] if quick else SIZES:
        for order, setting in ORDERS.items():
            for momentum in (0.0, 0.5):
                rows.append(_row(depth, width, batch, 16 if quick else count, order, setting, momentum))
    return {"reach": REACH, "rows": rows, "worst": min(row["times as fast"] for row in rows)}


def _row(
    depth: int, width: int, batch: int, count: int, order: str, setting: dict[str, Any], momentum: float
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    samples = [
        Sample(torch.randn(batch, 16, generator=generator), torch.randn(batch, 4, generator=generator))
        for _ in range(count)
    ]
    hyper = Hyper.from_sgd(1e-4, momentum=momentum)
    work, first = {}, 0.0
    for engine in ("eager", "compiled"):
        torch.manual_seed(0)
        learner = LocalLearner(_chain(depth, width), nn.functional.mse_loss, hyper, **setting)
        begin = time.perf_counter()
        work[engine] = _passes(learner, samples, engine)
        for _ in range(1 + 2 * depth // count):
            # Until every layer of a pipeline is at work.
            work[engine]()
        first = time.perf_counter() - begin
    medians = _report.interleaved_medians(work, rounds=5)
    micro = {name: round(1e6 * seconds / count, 1) for name, seconds in medians.items()}
    row = {"layers": depth, "width": width, "batch": batch, "order": order, "momentum": momentum}
    return row | {
        "microseconds": micro,
        "times as fast": round(micro["eager"] / micro["compiled"], 2),
        "first pass, seconds": round(first, 2),
    }


def _passes(learner: LocalLearner, samples: list[Sample], engine: Any) -> Callable[[], None]:
    def one() -> None:
        for _ in learner.run(samples, max_steps=len(samples), engine=engine):
            pass

    return one


def _chain(depth: int, width: int) -> nn.Sequential:
    layers = [nn.Sequential(nn.Linear(a, width), nn.Tanh()) for a in (16, *[width] * (depth - 2))]
    return nn.Sequential(*layers, nn.Linear(width, 4))


def show(found: dict[str, Any]) -> None:
    """Print a table."""
    table = Table(title="Local learners on the CPU: µs a sample, stream, checks and reports included")
    for heading in ("layers", "batch", "order", "momentum", "eager", "compiled", "times as fast"):
        table.add_column(heading, justify="right")
    for row in found["rows"]:
        micro = row["microseconds"]
        cells = [
            str(row["batch"]),
            row["order"],
            f"{row['momentum']:g}",
            str(micro["eager"]),
            str(micro["compiled"]),
        ]
        table.add_row(f"{row['layers']} of {row['width']}", *cells, str(row["times as fast"]))
    Console().print(table)


def quietly(quick: bool) -> dict[str, Any]:
    """Measure with one thread, and without a line for every loop that is compiled."""
    usual, logger = torch.get_num_threads(), logging.getLogger("hamlearn")
    level = logger.level
    torch.set_num_threads(1)
    logger.setLevel(logging.ERROR)
    try:
        return measure(quick)
    finally:
        torch.set_num_threads(usual)
        logger.setLevel(level)
