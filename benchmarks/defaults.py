"""What the defaults of `hl.Hyper()` are worth: a learner without a rate, against the best of a grid of rates.

The line of *Get started*, the README's wave, and a linear sensor whose stamps are 2 ms or three minutes apart.
The score is the share of the target's variance that answers given before learning explain, over the last fifth.
The best rate is chosen by the very score that is compared, so that the grid has all the advantage there is. The
share to reach is 0.95.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks import _report
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner
from hamlearn.network import Network
from hamlearn.sample import Sample
from hamlearn.streams import timed

BETAS = (0.003, 0.01, 0.03, 0.1, 0.3)
STEPS = 5_000
SECONDS = {"sensor, 500 Hz": 0.002, "sensor, every 3 minutes": 180.0}
SHARE = 0.95
"""Of the best rate's score, at least this must be reached without a word about rates."""


def _line(steps: int) -> Iterable[Sample]:
    u = torch.rand(steps, 1, 1)
    return [Sample(x, 2 * x + 1 + 0.01 * torch.randn(1, 1)) for x in u]


def _wave(steps: int) -> Iterable[Sample]:
    values = torch.tensor([math.sin(0.2 * k) for k in range(steps + 5)])
    return [Sample(now.view(1, 1), later.view(1, 1)) for now, later in zip(values, values[5:], strict=False)]


def _sensor(gap: float) -> Callable[[int], Iterable[Sample]]:
    def stream(steps: int) -> Iterable[Sample]:
        u = torch.randn(steps, 1, 4)
        target = u @ torch.randn(4, 1) + 0.1 * torch.randn(steps, 1, 1)
        # Samples come when they come, and now and then the line is dead for a while.
        gaps = gap * (0.5 + torch.rand(steps, dtype=torch.float64))
        gaps[torch.rand(steps) < 0.01] *= 200
        return timed(gaps.cumsum(0).tolist(), list(u), list(target))

    return stream


STREAMS: dict[str, Callable[[int], Iterable[Sample]]] = {
    "line": _line,
    "wave": _wave,
    **{name: _sensor(gap) for name, gap in SECONDS.items()},
}


def _network(name: str) -> Network:
    if name == "wave":
        return Network.recurrent(nn.GRUCell(1, 16), readout=nn.Linear(16, 1))
    return Network.feedforward(nn.Linear(1 if name == "line" else 4, 1))


def score(name: str, hyper: Hyper, steps: int = STEPS) -> float:
    """Share of the variance explained over the last fifth; what diverges has explained nothing."""
    torch.manual_seed(0)
    network, stream = _network(name), STREAMS[name](steps)
    learner = Learner(network, nn.functional.mse_loss, hyper, on_nonfinite="ignore")
    pairs = []
    for report in learner.run(stream, engine="compiled"):
        assert report.sample is not None
        pairs.append((float(report.y), float(report.sample.target)))
    y, target = torch.tensor(pairs[-len(pairs) // 5 :]).double().unbind(1)
    missed = float(((y - target) ** 2).mean() / target.var(correction=0))
    return 1 - missed if math.isfinite(missed) else 0.0


def compare(name: str, steps: int = STEPS, betas: tuple[float, ...] = BETAS) -> dict[str, Any]:
    """The score of the defaults, and of a grid of β."""
    default = score(name, Hyper(), steps)
    grid = {str(beta): score(name, Hyper(beta=beta), steps) for beta in betas}
    best = max(grid.values())
    return {"data": name, "samples": steps, "default": default, "grid": grid, "share of the best": default / best}


def run(out: Path, quick: bool = False) -> list[dict[str, Any]]:
    """Compare on all signals (`quick`: one, few samples, two rates), print a table, write a dated report."""
    quickly = [("sensor, 500 Hz", 400, BETAS[2:4])]
    found = [compare(*chosen) for chosen in (quickly if quick else [(name, STEPS, BETAS) for name in STREAMS])]
    table = Table("data", "defaults", "best rate", "share of the best", title="Share of variance explained")
    for row in found:
        best = max(row["grid"], key=row["grid"].__getitem__)
        shown = f"{row['default']:.4f}", f"{row['grid'][best]:.4f} at {best}", f"{row['share of the best']:.3f}"
        table.add_row(row["data"], *shown)
    Console().print(table)
    _report.write(out, "defaults", {"methods": __doc__, "share to reach": SHARE, "data": found})
    return found
