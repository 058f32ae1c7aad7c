"""Samples over everything and over a window, for the learner and for the baselines."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Any

from hamlearn.evaluate import saved
from hamlearn.evaluate.baselines import Baselines
from hamlearn.evaluate.meters import Item, Kind, Meter

Mark = tuple[list[Item], list[Item], int]
"""A moment of a ring."""


class Ring:
    """The last `n` samples, of which earlier moments can still be read.

    Samples are appended to a list of at most `n`, behind a full one. What a mark has seen of them never changes.

    Example:
        >>> ring = Ring(3)
        >>> ring.extend([1, 2, 3, 4])
        >>> mark = ring.mark()
        >>> ring.extend([5, 6, 7])
        >>> ring.last(mark), ring.last(ring.mark())
        ([2, 3, 4], [5, 6, 7])
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self._before: list[Any] = []
        self._now: list[Any] = []

    def extend(self, items: list[Any]) -> None:
        """Add samples."""
        for item in items:
            if len(self._now) == self.n:
                self._before, self._now = self._now, []
            self._now.append(item)

    def mark(self) -> Mark:
        """The present moment."""
        return self._before, self._now, len(self._now)

    def last(self, mark: Mark) -> list[Any]:
        """The last `n` samples at a moment."""
        before, now, count = mark
        return before[count:] + now[:count]


class Line:
    """The metrics of one predictor, the learner or a baseline, over everything and over `window` samples."""

    def __init__(self, meters: list[Meter], window: int | None) -> None:
        self.meters, self._counted = meters, 0
        self.ring = None if window is None else Ring(window)

    def take(self, items: list[Item]) -> None:
        """Count samples."""
        pairs = self._pairs(items)
        for meter in self.meters:
            meter.add(items, pairs)
        self._counted += len(items)
        if self.ring is not None:
            self.ring.extend(items)

    def read(self) -> dict[str, float]:
        """The scores over everything; empty before the first sample."""
        return {meter.name: meter.value() for meter in self.meters} if self._counted else {}

    def read_window(self, mark: Mark) -> dict[str, float]:
        """The scores of the last samples at a moment, counted from these samples and nothing else."""
        items = self.ring.last(mark) if self.ring is not None else []
        pairs = self._pairs(items)
        return {meter.name: meter.value_of(items, pairs) for meter in self.meters} if items else {}

    def _pairs(self, items: list[Item]) -> Counter[Any] | None:
        counted = any(meter.counts_pairs for meter in self.meters)
        return Counter(chain.from_iterable(items)) if counted else None

    def state_dict(self) -> dict[str, Any]:
        """The counts and the window."""
        ring = [] if self.ring is None else self.ring.last(self.ring.mark())
        return {
            "counted": self._counted,
            "meters": [meter.state_dict() for meter in self.meters],
            "ring": [[[saved.plain(p), saved.plain(t)] for p, t in item] for item in ring],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self._counted = int(state["counted"])
        for meter, part in zip(self.meters, state["meters"], strict=True):
            meter.load_state_dict(part)
        if self.ring is not None:
            self.ring = Ring(self.ring.n)
            kept = ([(saved.restore(None, p), saved.restore(None, t)) for p, t in item] for item in state["ring"])
            self.ring.extend(list(kept))


class Feed:
    """Metrics that take the same: `lines` has those of the learner under the name "", and of each baseline."""

    def __init__(self, kind: Kind, meters: list[Meter], window: int | None) -> None:
        self.kind = kind
        self._baselines = Baselines(kind)
        self.lines = {"": Line(meters, window)}
        for name in self._baselines.names:
            self.lines[name] = Line([meter.blank() for meter in meters], window)

    def take(self, items: list[Item]) -> None:
        """Count samples."""
        self.lines[""].take(items)
        if self._baselines.names:
            guesses = [guess for item in items if (guess := self._baselines.guess(item)) is not None]
            for name, column in zip(self._baselines.names, zip(*guesses, strict=True), strict=False):
                self.lines[name].take(list(column))

    def state_dict(self) -> dict[str, Any]:
        """All counts."""
        lines = {name: line.state_dict() for name, line in self.lines.items()}
        return {"lines": lines, "baselines": self._baselines.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        for name, line in self.lines.items():
            line.load_state_dict(state["lines"][name])
        self._baselines.load_state_dict(state["baselines"])
