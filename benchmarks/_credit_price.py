"""What forward credit adds to a step: one columnar GRU with `Sensitivity` and with `Cleared`, by both engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks import _report
from hamlearn.cells import ColumnarGRU
from hamlearn.credit import Cleared, Credit, Sensitivity
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner
from hamlearn.network import Network
from hamlearn.sample import Sample

UNITS, CHUNK = 64, 1_024
REACH = {"compiled": 1.1, "eager": 2.0}
CREDITS: dict[str, Credit] = {"cleared": Cleared(), "sensitivity": Sensitivity()}


def study(quick: bool) -> dict[str, Any]:
    """Microseconds a step, batch 1 and 8, float32, SGD with momentum, stream and reports included."""
    rows = []
    for lanes in (1, 8):
        for engine, steps in (("compiled", 4 * CHUNK), ("eager", 200)):
            steps = 64 if quick else steps
            work = {name: _run(credit, engine, lanes, steps) for name, credit in CREDITS.items()}
            found = _report.interleaved_medians(work, rounds=2 if quick else 9)
            micro = {name: 1e6 * seconds / steps for name, seconds in found.items()}
            ratio = micro["sensitivity"] / micro["cleared"]
            rows.append({"engine": engine, "lanes": lanes, "microseconds": micro, "ratio": ratio})
    return {"units": UNITS, "reach": REACH, "cells": rows}


def show(found: dict[str, Any], console: Console) -> None:
    """Print the table."""
    table = Table("engine", "lanes", "cleared", "sensitivity", "ratio", "to reach", title="Price of a step, µs")
    for row in found["cells"]:
        micro = row["microseconds"]
        numbers = (f"{micro['cleared']:.2f}", f"{micro['sensitivity']:.2f}", f"{row['ratio']:.2f}")
        table.add_row(row["engine"], str(row["lanes"]), *numbers, f"{REACH[row['engine']]}")
    console.print(table)


def _run(credit: Credit, engine: str, lanes: int, steps: int) -> Callable[[], None]:
    torch.manual_seed(0)
    network = Network.recurrent(ColumnarGRU(1, UNITS), nn.Linear(UNITS, 1))
    hyper = Hyper.from_sgd(lr=1e-3, momentum=0.9)
    learner = Learner(network, nn.functional.mse_loss, hyper, credit=credit)
    values = torch.randn(steps + 1, lanes, 1)
    samples = [Sample(values[k], values[k + 1]) for k in range(steps)]

    def take() -> None:
        for _ in learner.run(samples, engine=engine, chunk=CHUNK):  # type: ignore[arg-type]
            pass

    return take
