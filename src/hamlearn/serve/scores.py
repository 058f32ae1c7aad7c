"""Running loss, score and baselines of a served learner, and whether it diverges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

MEMORY = 1000
"""Samples over which sums are kept: older ones fade exponentially."""
RECENT = 100
"""Samples of one judgement on divergence."""
TOGETHER = 64
"""Blocks that are counted together: one by one, this takes as long as a small network takes to learn."""
WORSE = 10.0
"""How many times its best level the loss has to be before a learner is marked as diverging."""
REFUSED = 10
"""Samples rejected one after another (loss not finite) that mark a learner as diverging."""


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
            ten samples in a row were rejected.

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
        self._last: list[Any] = []
        self._waiting: list[tuple[int, np.ndarray, np.ndarray, list[float]]] = []
        self._recent: list[float] = []
        self._best: float | None = None
        self._refused = 0
        self.diverging: int | None = None

    def add(self, number: int, y: np.ndarray, target: np.ndarray, losses: list[float]) -> None:
        """Count predictions and targets; `number` is that of the last sample."""
        self._refused = 0
        self._waiting.append((number, y, target, losses))
        if len(self._waiting) >= TOGETHER:
            self._count()

    def _count(self) -> None:
        """Count what waits."""
        if not self._waiting:
            return
        numbers, ys, targets, parts = zip(*self._waiting, strict=True)
        self._waiting = []
        y, target = np.concatenate(ys), np.concatenate(targets)
        losses = [loss for part in parts for loss in part]
        before = np.concatenate([self._last or target[:1], target[:-1]])
        new: dict[str, Any] = {"weight": float(len(target)), "loss": sum(losses)}
        if self._classes is None:
            target = target.astype(np.float64)
            new["error"] = ((y - target) ** 2).mean(axis=1).sum()
            new["last"] = ((before - target) ** 2).mean(axis=1).sum()
            new["targets"], new["squares"] = target.sum(axis=0), (target**2).sum(axis=0)
        else:
            new["error"], new["last"] = (y.argmax(axis=1) == target).sum(), (before == target).sum()
            new["targets"] = np.bincount(target, minlength=self._classes)
        fade = (1 - 1 / MEMORY) ** len(target)
        self._sums = {name: fade * self._sums.get(name, 0.0) + value for name, value in new.items()}
        self._last = target[-1:].tolist()
        self._judge(numbers[-1], losses)

    def refused(self, number: int) -> None:
        """Count a sample that the learner rejected because a loss or a costate was not finite."""
        self._refused += 1
        if self._refused >= REFUSED and self.diverging is None:
            self.diverging = number

    def read(self) -> dict[str, float | None]:
        """Mean loss, score, and the baselines `mean` and `last`; `None` before the first target."""
        self._count()
        if not self._sums:
            return dict.fromkeys(("loss", "score", "mean", "last"))
        means = {name: value / self._sums["weight"] for name, value in self._sums.items()}
        error, loss, last = (float(means[name]) for name in ("error", "loss", "last"))
        if self._classes is not None:
            return {"loss": loss, "score": error, "mean": float(means["targets"].max()), "last": last}
        variance = float(np.maximum(means["squares"] - means["targets"] ** 2, 0.0).mean())
        # Constant targets have no R²: any tiny error would look bad beside a variance of 0.
        score = 1 - error / variance if variance > 0 else None
        return {"loss": loss, "score": score, "mean": variance, "last": last}

    def _judge(self, number: int, losses: list[float]) -> None:
        self._recent += losses
        while len(self._recent) >= RECENT:
            level, self._recent = sum(self._recent[:RECENT]) / RECENT, self._recent[RECENT:]
            worse = self._best is not None and level > WORSE * self._best and self._worse_than_guessing()
            self.diverging = (self.diverging or number) if worse else None
            self._best = level if self._best is None else min(level, self._best)

    def _worse_than_guessing(self) -> bool:
        now = self.read()
        guess = 0.0 if self._classes is None else now["mean"]
        return now["score"] is not None and guess is not None and now["score"] < guess

    def state_dict(self) -> dict[str, Any]:
        """All of it, as JSON."""
        self._count()
        sums = {name: np.asarray(value).tolist() for name, value in self._sums.items()}
        state = {"last": self._last, "recent": self._recent[:], "best": self._best, "diverging": self.diverging}
        return {"sums": sums, **state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with what `state_dict` returned."""
        self._sums = {name: np.array(value) for name, value in state["sums"].items()}
        self._last, self._recent, self._best = state["last"], list(state["recent"]), state["best"]
        self.diverging, self._refused, self._waiting = state["diverging"], 0, []
