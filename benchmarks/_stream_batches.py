"""Compiled against eager, batches of 1 to 32, for `hamlearn bench stream`: nowhere slower by more than a tenth."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from benchmarks import _report
from benchmarks._stream_workloads import CROSS_ENTROPY, MOMENTUM, MSE, WORKLOADS
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner
from hamlearn.network import Network
from hamlearn.sample import Sample

REACH = 0.9
"""How fast the compiled engine must be at least, as a multiple of the eager one."""
BATCHES = (1, 8, 32)
CHUNK = 32


@dataclass(frozen=True)
class Case:
    """A network, the shape of one input, and the number of classes; `None`: a number is to be predicted."""

    name: str
    make: Callable[[], Network]
    shape: tuple[int, ...]
    classes: int | None = None

    def samples(self, batch: int, count: int) -> list[Sample]:
        """Drawn at random, always the same."""
        draw = torch.Generator().manual_seed(0)
        drawn = [
            (torch.randn(batch, *self.shape, generator=draw), self._target(batch, draw)) for _ in range(count)
        ]
        return [Sample(u, target) for u, target in drawn]

    def _target(self, batch: int, draw: torch.Generator) -> Tensor:
        if self.classes is None:
            return torch.randn(batch, 1, generator=draw)
        return torch.randint(self.classes, (batch,), generator=draw)


def _of(*layers: nn.Module) -> Network:
    return Network.feedforward(nn.Sequential(*layers))


def _make_wide() -> Network:
    return _of(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def _make_convolutions() -> Network:
    return _of(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(784, 10)),
    )


CASES = [
    Case("Linear 4-3", lambda: _of(nn.Linear(4, 3)), (4,), 3),
    Case("MLP 4-30-3", WORKLOADS[1].network, (4,), 3),
    Case("MLP 64-1024-1024-10", _make_wide, (64,), 10),
    Case("two convolutions, 28×28", _make_convolutions, (1, 28, 28), 10),
    *(Case(work.name, work.network, (work.inputs,)) for work in (WORKLOADS[0], *WORKLOADS[2:4])),
]


def measure(device: str, quick: bool = False) -> dict[str, Any]:
    """Every network at every batch; each engine has a learner of its own, and both see the same samples."""
    cases, batches = (CASES[:2], BATCHES[:1]) if quick else (CASES, BATCHES)
    cells = [_cell(case, batch, device, quick) for case, batch in itertools.product(cases, batches)]
    return {"reach": REACH, "chunk": CHUNK, "cells": cells}


def _cell(case: Case, batch: int, device: str, quick: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    network = case.make().to(device)
    samples = [_moved(sample, device) for sample in case.samples(batch, CHUNK)]
    stays = False

    def run(engine: Literal["eager", "compiled"]) -> Callable[[], None]:
        loss = MSE if case.classes is None else CROSS_ENTROPY
        learner = Learner(copy.deepcopy(network), loss, Hyper.from_sgd(1e-5, MOMENTUM))

        def one_pass() -> None:
            nonlocal stays
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                for _ in learner.run(samples, engine=engine, chunk=CHUNK):
                    pass
            stays |= any("falls back to the eager engine" in str(warning.message) for warning in told)

        return one_pass

    rounds = 2 if quick else 15
    passes = {"eager": run("eager"), "compiled": run("compiled")}
    medians = _report.interleaved_medians(passes, rounds)
    return {
        "network": case.name,
        "batch": batch,
        "microseconds": {name: round(1e6 * seconds / CHUNK, 2) for name, seconds in medians.items()},
        "compiled_over_eager": round(medians["eager"] / medians["compiled"], 3),
        "stays_eager": stays,
    }


def _moved(sample: Sample, device: str) -> Sample:
    assert isinstance(sample.target, Tensor)
    return Sample(sample.u.to(device), sample.target.to(device))


def show(found: dict[str, Any], device: str) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    table = Table("network", "batch", "eager, µs", "compiled, µs", "times as fast", title=f"batches, {device}")
    for cell in found["cells"]:
        table.add_row(*_row(cell, found["reach"]))
    Console().print(table)


def _row(cell: dict[str, Any], reach: float) -> Iterator[str]:
    yield cell["network"]
    yield str(cell["batch"])
    yield f"{cell['microseconds']['eager']:,.1f}"
    yield f"{cell['microseconds']['compiled']:,.1f}" + (" (eager)" if cell["stays_eager"] else "")
    yield f"{cell['compiled_over_eager']:.2f}" + ("" if cell["compiled_over_eager"] >= reach else ", too slow")
