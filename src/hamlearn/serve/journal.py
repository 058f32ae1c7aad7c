"""What a served learner remembers beside its weights: counts, ids, a bound on its numbers, and running scores."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hamlearn.sample import Id
from hamlearn.serve.settings import Settings

COUNTS = ("samples", "learned", "bad", "seen", "clipped")
_PARTS = ("u", "target", "scores")
MEMORY = 1000
"""Samples over which scores are kept: older ones fade exponentially."""
TOGETHER = 64
"""Blocks that are scored together: one by one, this takes as long as a small network takes to learn."""
FIRST = 100
"""Samples before the first judgement on divergence."""
WORSE = 10.0
"""How many times its best value the mean loss has to be before a learner is marked as diverging."""


class Journal:
    """Counts, ids, scales and scores of one learner; all of them are part of its checkpoint.

    Args:
        settings: Sizes and bounds.

    Attributes:
        samples: How many were taken.
        learned: How many of them had a target.
        bad: How many the learner rejected, for example because their loss was not finite.
        seen: How many came again, and were not learned again.
        clipped: How many were clipped.
        ids: The last ids that were taken, oldest first.
        last: The last of them.
        resumed: How many samples had been taken when this process took over.
        u, target: Bounds on inputs and targets.
        scores: Loss, score and baselines.
    """

    def __init__(self, settings: Settings) -> None:
        self._most, clip = settings.serve["ids"], settings.serve["clip"]
        self.samples = self.learned = self.bad = self.seen = self.clipped = self.resumed = 0
        # An ordinary dict takes long to find its oldest key once many have been removed.
        self.ids: OrderedDict[Id, None] = OrderedDict()
        self.last: Id | None = None
        self.u, self.target = ScaleBound(settings.inputs, clip), ScaleBound(settings.outputs, clip)
        self.scores = RunningScores(settings.classes)

    def take(self, ids: Iterable[Id | None], count: int, learned: int) -> None:
        """Count samples that were taken, so many of which had a target."""
        self.samples, self.learned = self.samples + count, self.learned + learned
        for id in ids:
            if id is not None:
                self.ids[id], self.last = None, id
                if len(self.ids) > self._most:
                    self.ids.popitem(last=False)

    @property
    def counts(self) -> dict[str, int]:
        """What became of samples so far."""
        return {name: getattr(self, name) for name in COUNTS}

    def state_dict(self) -> dict[str, Any]:
        """All of it, as JSON."""
        parts = {name: getattr(self, name).state_dict() for name in _PARTS}
        return {**parts, "counts": self.counts, "last": self.last, "ids": list(self.ids)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with what `state_dict` returned."""
        vars(self).update({name: int(state["counts"][name]) for name in COUNTS})
        for name in _PARTS:
            getattr(self, name).load_state_dict(state[name])
        self.resumed, self.last, self.ids = self.samples, state["last"], OrderedDict.fromkeys(state["ids"])


class ScaleBound:
    """Clips each entry of a vector to a multiple of its largest magnitude so far, and at least of 1.

    A clipped number doubles the scale if the row before was clipped there too, and else leaves it. Single outliers
    thus change nothing, and a lasting change of scale is followed within some ten samples.

    Args:
        width: Entries of a vector.
        factor: How many times the scale an entry may have; 0 turns clipping off.

    Example:
        >>> bound = ScaleBound(1, factor=10.0)
        >>> bound.clip(np.array([[0.5], [1e12], [2.0]]))
        (array([[ 0.5],
               [10. ],
               [ 2. ]]), [1])
    """

    def __init__(self, width: int, factor: float) -> None:
        self._factor, self._scale, self._beyond = factor, np.ones(width), np.zeros(width, bool)

    def clip(self, rows: np.ndarray) -> tuple[np.ndarray, list[int]]:
        """Clip rows of numbers, the oldest first; also returns which rows were changed."""
        if not self._factor:
            return rows, []
        largest = np.abs(rows).max(axis=0)
        if (largest <= self._factor * self._scale).all():
            self._scale, self._beyond = np.maximum(self._scale, largest), np.zeros_like(self._beyond)
            return rows, []
        # Rare: one by one, since each row changes the bound of the next.
        rows = rows.copy()
        return rows, [k for k, row in enumerate(rows) if self._clip_row(row)]

    def _clip_row(self, row: np.ndarray) -> bool:
        size, limit = np.abs(row), self._factor * self._scale
        beyond = size > limit
        grown = np.where(beyond & self._beyond, 2 * self._scale, self._scale)
        self._scale, self._beyond = np.where(beyond, grown, np.maximum(self._scale, size)), beyond
        np.clip(row, -limit, limit, out=row)
        return bool(beyond.any())

    def state_dict(self) -> dict[str, Any]:
        """The scale, as JSON."""
        return {"scale": self._scale.tolist(), "beyond": self._beyond.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the scale that `state_dict` returned."""
        self._scale[:], self._beyond[:] = state["scale"], state["beyond"]


class RunningScores:
    """Loss and score of predictions made before learning, beside baselines that learn nothing.

    For numbers, the score is R² = 1 − squared error / variance of the targets, and the baselines are the squared
    errors of predicting the running mean and the last target. For classes, all three are accuracies: of the
    learner, of the most frequent class, and of the last class. All are means over about the last 1,000 targets.
    (`hamlearn.evaluate` scores one sample after another, which would take longer than to learn them.)

    Args:
        classes: How many classes there are; `None` if targets are numbers.

    Attributes:
        diverging: The sample since which the learner diverges; `None` if it does not. It does while the mean loss
            is more than ten times its best value so far, and the score worse than guessing.

    Example:
        >>> scores = RunningScores()
        >>> for _ in range(50):
        ...     scores.add(1, np.array([[0.1], [0.9]]), np.array([[0.0], [1.0]]), [0.01, 0.01])
        >>> round(scores.read()["score"], 2)
        0.96
    """

    def __init__(self, classes: int | None = None) -> None:
        # A class is a unit vector: two that differ have a squared distance of 2.
        self._vectors = None if classes is None else np.eye(classes)
        self._sums: dict[str, Any] = {}
        self._last: list[Any] = []
        self._waiting: list[tuple[int, np.ndarray, np.ndarray, list[float]]] = []
        self._best: float | None = None
        self.diverging: int | None = None
        # `/metrics` is read while a round is taken.
        self._lock = threading.RLock()

    def add(self, number: int, y: np.ndarray, target: np.ndarray, losses: list[float]) -> None:
        """Count predictions and targets; `number` is that of the last sample."""
        with self._lock:
            self._waiting.append((number, y, target, losses))
            if len(self._waiting) >= TOGETHER:
                self.read()

    def read(self) -> dict[str, float | None]:
        """Mean loss, score, and the baselines `mean` and `last`; `None` before the first target."""
        with self._lock:
            return self._read()

    def _read(self) -> dict[str, float | None]:
        number = self._waiting[-1][0] if self._waiting else None
        self._count()
        if not self._sums:
            return dict.fromkeys(("loss", "score", "mean", "last"))
        means = {name: value / self._sums["weight"] for name, value in self._sums.items()}
        loss, error, last = (float(means[name]) for name in ("loss", "error", "last"))
        found: dict[str, Any]
        if self._vectors is not None:
            most = float(means["targets"].max())
            found, worse = {"score": 1 - error, "mean": most, "last": 1 - last}, 1 - error < most
        else:
            variance = float(np.maximum(means["squares"] - means["targets"] ** 2, 0.0).mean())
            # Constant targets have no R²: any tiny error would look bad beside a variance of 0.
            score = 1 - error / variance if variance > 0 else None
            found = {"score": score, "mean": variance, "last": last}
            worse = error > variance > 0
        if number is not None and self._sums["weight"] >= FIRST:
            self._best = loss if self._best is None else min(loss, self._best)
            self.diverging = (self.diverging or number) if worse and loss > WORSE * self._best else None
        return {"loss": loss, **found}

    def _count(self) -> None:
        """Add what waits to the sums."""
        if not self._waiting:
            return
        _, ys, targets, parts = zip(*self._waiting, strict=True)
        self._waiting = []
        y, target = np.concatenate(ys), np.concatenate(targets)
        if self._vectors is not None:
            y, target = self._vectors[y.argmax(axis=1)], self._vectors[target]
        # An error is a mean over numbers; a wrong class counts as 1.
        target, share = target.astype(np.float64), 0.5 if self._vectors is not None else 1 / target.shape[1]
        before = np.concatenate([self._last or target[:1], target[:-1]])
        new = {
            "weight": float(len(target)),
            "loss": sum(map(sum, parts)),
            "error": share * ((y - target) ** 2).sum(),
            "last": share * ((before - target) ** 2).sum(),
            "targets": target.sum(axis=0),
            "squares": (target**2).sum(axis=0),
        }
        fade = (1 - 1 / MEMORY) ** len(target)
        self._sums = {name: fade * self._sums.get(name, 0.0) + value for name, value in new.items()}
        self._last = target[-1:].tolist()

    def state_dict(self) -> dict[str, Any]:
        """All of it, as JSON."""
        self.read()
        sums = {name: np.asarray(value).tolist() for name, value in self._sums.items()}
        return {"sums": sums, "last": self._last, "best": self._best, "diverging": self.diverging}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with what `state_dict` returned."""
        self._sums = {name: np.array(value) for name, value in state["sums"].items()}
        self._last, self._best, self.diverging = state["last"], state["best"], state["diverging"]
        self._waiting = []
