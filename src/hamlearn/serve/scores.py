"""Running loss, score and baselines of a served learner, and whether it diverges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

MEMORY = 1000
"""Samples over which sums are kept: older ones fade exponentially."""
RECENT = 100
"""Samples of one judgement on divergence."""
AT_ONCE = 64
"""Requests after which sums are brought up to date, unless they are read before."""
WORSE = 10.0
"""How many times its best level the loss has to be before a learner is marked as diverging."""
REFUSED = 10
"""Samples refused one after another (loss not finite) that mark a learner as diverging."""


class RunningScores:
    """Loss and score of predictions made before learning, beside baselines that learn nothing.

    For numbers, the score is R² = 1 − squared error / variance of the targets, and the baselines are the squared
    errors of predicting the running mean and the last target. For classes, all three are accuracies: of the
    learner, of the most frequent class, and of the last class. All are means over about the last 1,000 targets.

    Args:
        classes: How many classes there are; `None` if targets are numbers.

    Attributes:
        diverging: The sample since which the learner diverges; `None` if it does not. It
            does if the mean loss of 100 samples is ten times the best one so far and worse than guessing, or if
            ten samples in a row were refused.

    Example:
        >>> scores = RunningScores()
        >>> for _ in range(50):
        ...     scores.add(1, np.array([[0.1], [0.9]]), np.array([[0.0], [1.0]]), [0.01, 0.01])
        >>> round(scores.read()["score"], 2)
        0.96
    """

    def __init__(self, classes: int | None = None) -> None:
        self._classes = classes
        self._sums: dict[str, Any] = {}
        self._last: Any = None
        self._waiting: list[tuple[np.ndarray, np.ndarray, list[float]]] = []
        self._number = 0
        self._recent: list[float] = []
        self._best: float | None = None
        self._refused = 0
        self.diverging: int | None = None

    def add(self, number: int, y: np.ndarray, target: np.ndarray, losses: list[float]) -> None:
        """Count in predictions and targets; `number` is that of the last sample."""
        self._refused = 0
        self._waiting.append((y, target, losses))
        self._number = number
        # One by one, this would take as long as a small network takes to learn.
        if len(self._waiting) >= AT_ONCE:
            self._count()

    def _count(self) -> None:
        """Count in what waits."""
        if not self._waiting:
            return
        ys, targets, several = zip(*self._waiting, strict=True)
        self._waiting = []
        y, target, losses = (
            np.concatenate(ys),
            np.concatenate(targets),
            [loss for part in several for loss in part],
        )
        shifted = np.concatenate([target[:1] if self._last is None else self._last, target[:-1]])
        new: dict[str, Any] = {"loss": math.fsum(losses), "weight": float(len(target))}
        if self._classes is None:
            wide = target.astype(np.float64)
            new["error"] = ((y - wide) ** 2).mean(axis=1).sum()
            new["last"] = ((shifted - wide) ** 2).mean(axis=1).sum()
            new["targets"], new["squares"] = wide.sum(axis=0), (wide**2).sum(axis=0)
        else:
            new["error"] = float((y.argmax(axis=1) == target).sum())
            new["last"] = float((shifted == target).sum())
            new["targets"] = np.bincount(target, minlength=self._classes).astype(np.float64)
        fade = (1 - 1 / MEMORY) ** len(target)
        self._sums = {name: fade * self._sums.get(name, 0.0) + value for name, value in new.items()}
        self._last = target[-1:]
        self._judge(self._number, losses)

    def refused(self, number: int) -> None:
        """Count a sample that the learner refused because a loss or a costate was not finite."""
        self._refused += 1
        if self._refused >= REFUSED and self.diverging is None:
            self.diverging = number

    def read(self) -> dict[str, float | None]:
        """Mean loss, score, and the baselines `mean` and `last`; `None` before the first target."""
        self._count()
        if not self._sums:
            return dict.fromkeys(("loss", "score", "mean", "last"))
        weight = self._sums["weight"]
        means = {name: value / weight for name, value in self._sums.items()}
        found: dict[str, float | None] = {"loss": float(means["loss"]), "last": float(means["last"])}
        if self._classes is not None:
            return found | {"score": float(means["error"]), "mean": float(means["targets"].max())}
        variance = float(np.maximum(means["squares"] - means["targets"] ** 2, 0.0).mean())
        return found | {"mean": variance, "score": 1 - float(means["error"]) / variance if variance > 0 else None}

    def _judge(self, number: int, losses: list[float]) -> None:
        self._recent += losses
        while len(self._recent) >= RECENT:
            level = sum(self._recent[:RECENT]) / RECENT
            self._recent = self._recent[RECENT:]
            if self._best is not None and level > WORSE * self._best and self._worse_than_guessing():
                self.diverging = number if self.diverging is None else self.diverging
            else:
                self.diverging = None
            self._best = level if self._best is None else min(level, self._best)

    def _worse_than_guessing(self) -> bool:
        now = self.read()
        # Constant targets have no R²: any tiny error would look bad beside a variance of 0.
        return now["score"] is not None and now["score"] < (0.0 if self._classes is None else now["mean"] or 0.0)

    def state_dict(self) -> dict[str, Any]:
        """All of it, as JSON."""
        self._count()
        sums = {name: np.asarray(value).tolist() for name, value in self._sums.items()}
        last = None if self._last is None else self._last.tolist()
        return {
            "sums": sums,
            "last": last,
            "recent": self._recent,
            "best": self._best,
            "diverging": self.diverging,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with what `state_dict` returned."""
        self._sums = {name: np.array(value) for name, value in state["sums"].items()}
        self._last = None if state["last"] is None else np.array(state["last"])
        self._recent, self._best = list(state["recent"]), state["best"]
        self.diverging, self._refused, self._waiting = state["diverging"], 0, []
