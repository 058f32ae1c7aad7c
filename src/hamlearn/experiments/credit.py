"""What each credit can learn: the delayed-add task by Echo, Cleared and Forward, against the known floors.

The target is a probability that depends on two coin tosses, t1 and t2 steps ago. A Bernoulli readout that has
learned neither lag pays a cross-entropy of 0.6616, one that has learned the first 0.5192, both 0.4544.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

from hamlearn.credit import Cleared, Credit, Echo, Forward
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner
from hamlearn.networks import Network
from hamlearn.streams import signals

T1, T2 = 5, 9
FLOORS = {"neither lag": 0.6616, "first lag": 0.5192, "both lags": 0.4544}
CREDITS: dict[str, Credit] = {"Echo(every=15)": Echo(every=15), "Cleared()": Cleared(), "Forward()": Forward()}
RATES = (0.003, 0.01, 0.03)


def learn(credit: Credit, lr: float, tokens: int, seed: int = 0, neurons: int = 32) -> torch.Tensor:
    """The loss of each token, for an RNN that learns as it goes.

    Example:
        >>> learn(Cleared(), lr=0.1, tokens=20).shape
        torch.Size([20])
    """
    torch.manual_seed(seed)
    network = Network.recurrent(nn.RNNCell(1, neurons), nn.Linear(neurons, 1))
    learner = Learner(
        network,
        nn.functional.binary_cross_entropy_with_logits,
        Hyper.from_sgd(lr=lr, momentum=0.5),
        order="sequential",
        credit=credit,
        on_nonfinite="skip",
    )
    stream = signals.delayed_add(T1, T2, seed=seed)
    losses = [report.loss for report in learner.run(stream, max_steps=tokens)]
    return torch.stack([loss for loss in losses if loss is not None])


def run(out: Path, tokens: int = 60_000, window: int = 2_000, console: Console | None = None) -> dict[str, Any]:
    """Learn the same stream by each credit at several rates, print where each ends, and draw the best of each."""
    console = console or Console()
    out.mkdir(parents=True, exist_ok=True)
    table = Table(title=f"Delayed add: cross-entropy of the last {window:,} of {tokens:,} tokens")
    for heading in ("credit", *(f"lr {lr:g}" for lr in RATES)):
        table.add_column(heading)
    curves: dict[str, dict[float, list[float]]] = {}
    for name, credit in track(CREDITS.items(), description="credits", console=console, transient=True):
        curves[name] = {}
        for lr in RATES:
            losses = learn(credit, lr, tokens)[: tokens // window * window]
            curves[name][lr] = losses.view(-1, window).mean(1).tolist()
        table.add_row(name, *(f"{curve[-1]:.4f}" for curve in curves[name].values()))
    for name, floor in FLOORS.items():
        table.add_row(f"[dim]floor, {name}[/]", f"[dim]{floor:.4f}[/]")
    console.print(table)
    best = {name: min(by_rate.values(), key=_end) for name, by_rate in curves.items()}
    figure(out / "credit.png", best, window)
    return {"t1": T1, "t2": T2, "tokens": tokens, "window": window, "floors": FLOORS, "curves": curves}


def _end(curve: list[float]) -> float:
    return curve[-1] if math.isfinite(curve[-1]) else math.inf


def figure(path: Path, curves: dict[str, list[float]], window: int) -> None:
    """Cross-entropy over time, one line per credit, with the floors."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        canvas = Figure(figsize=(7.2, 3.8), layout="constrained")
        axis = canvas.subplots()
        for (name, curve), color in zip(curves.items(), ("#0072b2", "#e69f00", "#009e73"), strict=True):
            tokens = [window * (k + 1) for k in range(len(curve))]
            axis.plot(tokens, curve, color=color, label=f"hl.{name}", linewidth=1.6)
        end = window * len(next(iter(curves.values())))
        for name, floor in FLOORS.items():
            axis.axhline(floor, color="0.6", linewidth=0.8, linestyle="--")
            axis.annotate(name, (end, floor), xytext=(4, 0), textcoords="offset points", va="center", color="0.4")
        axis.set_xlim(right=end)
        axis.set(xlabel="tokens", ylabel="cross-entropy", title=f"Delayed add, lags {T1} and {T2}")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.legend(frameon=False)
        axis.set_ylim(0.44, 0.72)
        canvas.savefig(path, dpi=150)
