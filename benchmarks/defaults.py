"""What the defaults are worth: River's classifiers and learners as they come, against the best of a grid of rates.

Test-then-train accuracy over whole data sets, by `HLClassifier()`, which is told nothing, and by
`HLClassifier(lr=…)`. The best rate is chosen by the very score that is compared, so that the grid has all the
advantage there is. The share to reach is 0.95. A plain network of PyTorch with the same neurons and rates, on the
same standardized features, is there to say what can be had. Signals of numbers come after them, by `hl.Hyper()`.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from river import datasets, evaluate, metrics
from torch import nn

from benchmarks import _defaults_signals, _report
from hamlearn.interop.river import HLClassifier
from hamlearn.interop.river.encoding import Encoder

RATES = (0.01, 0.02, 0.05, 0.1, 0.2)
DATA = ("Phishing", "Bananas", "ImageSegments")
SHARE = 0.95
"""Of the best rate's score, at least this must be had without a word about rates."""


def compare(name: str, n: int | None = None, rates: tuple[float, ...] = RATES) -> dict[str, Any]:
    """Scores on the first `n` samples of a data set of River (`None`: all of them)."""
    rows = list(islice(getattr(datasets, name)(), n))
    default = score(rows, HLClassifier())
    grid = {str(rate): score(rows, HLClassifier(lr=rate)) for rate in rates}
    plain = {str(rate): plain_score(rows, rate) for rate in rates}
    return {
        "data": name,
        "samples": len(rows),
        "default": default,
        "grid": grid,
        "plain torch": plain,
        "share of the best": default / max(grid.values()),
        "share of the best plain torch": default / max(plain.values()),
    }


def score(rows: list[tuple[Any, Any]], model: HLClassifier) -> float:
    """Test-then-train accuracy of a classifier."""
    return float(evaluate.progressive_val_score(rows, model, metrics.Accuracy()).get())


def plain_score(rows: list[tuple[Any, Any]], rate: float, hidden: int = 16) -> float:
    """The same of a network that is nothing but PyTorch, whose inputs and outputs are those of the data."""
    labels = sorted({label for _, label in rows})
    features = len(rows[0][0])
    encoder, right = Encoder(features), 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, len(labels)))
    sgd = torch.optim.SGD(net.parameters(), lr=rate)
    for x, label in rows:
        target = torch.tensor(labels.index(label))
        with torch.no_grad():
            right += int(net(torch.tensor(encoder.encode(x))).argmax() == target)
        encoder.learn(x)
        sgd.zero_grad()
        nn.functional.cross_entropy(net(torch.tensor(encoder.encode(x))), target).backward()
        sgd.step()
    return right / len(rows)


def run(out: Path, quick: bool = False) -> list[dict[str, Any]]:
    """Compare on all data (`quick`: a little of two, two rates), print a table, write a dated report."""
    found = [compare("Bananas", 300, RATES[2:4])] if quick else [compare(name) for name in DATA]
    found += _defaults_signals.compare_all(quick)
    title = "Test-then-train: accuracy, and the share of variance explained"
    table = Table("data", "defaults", "best rate", "plain torch", "share of the best", title=title)
    for row in found:
        best = max(row["grid"], key=row["grid"].__getitem__)
        plain = max(row["plain torch"].values()) if "plain torch" in row else None
        table.add_row(
            row["data"],
            f"{row['default']:.4f}",
            f"{row['grid'][best]:.4f} at {best}",
            "" if plain is None else f"{plain:.4f}",
            f"{row['share of the best']:.3f}",
        )
    Console().print(table)
    methods = f"{__doc__}\n{_defaults_signals.__doc__}"
    _report.write(out, "defaults", {"methods": methods, "share to reach": SHARE, "data": found})
    return found
