"""Metrics that take the same, of the learner and of the baselines, over everything and over a window."""

from __future__ import annotations

from collections import deque

from hamlearn.evaluate.baselines import Baselines
from hamlearn.evaluate.meters import Item, Kind, Meter
from hamlearn.evaluate.saved import Saved

Table = dict[str, dict[str, float]]
"""Predictors, of which the learner is called "", to metrics to values."""


class Group(Saved):
    """Metrics that take the same, which is made once for all of them.

    Args:
        kind: What they take.
        meters: The metrics.
        window: How many samples the window has; `None`: there is none.
    """

    _state = ("_all", "_last", "_counted", "_baselines")

    def __init__(self, kind: Kind, meters: list[Meter], window: int | None) -> None:
        self.kind, self.meters = kind, meters
        self._baselines = Baselines(kind)
        self._all = {name: [meter.blank() for meter in meters] for name in self._baselines.names} | {"": meters}
        self._last: dict[str, deque[Item]] = {name: deque(maxlen=window or 0) for name in self._all}
        self._counted = dict.fromkeys(self._all, 0)

    def take(self, items: list[Item]) -> None:
        """Count samples, and what the baselines would have predicted for them."""
        self._count("", items)
        if self._baselines.names:
            guesses = [guess for item in items if (guess := self._baselines.guess(item)) is not None]
            for name, column in zip(self._baselines.names, zip(*guesses, strict=True), strict=False):
                self._count(name, list(column))

    def _count(self, name: str, items: list[Item]) -> None:
        for meter in self._all[name]:
            meter.add(items)
        self._last[name].extend(items)
        self._counted[name] += len(items)

    def overall(self) -> Table:
        """The scores over everything, of each predictor that has made a prediction."""
        counted = {name: meters for name, meters in self._all.items() if self._counted[name]}
        return {name: {meter.name: meter.value() for meter in meters} for name, meters in counted.items()}

    def recent(self) -> Table:
        """The scores over the window, counted from its samples and nothing else."""
        kept = {name: items for name, items in self._last.items() if items}
        return {name: {meter.name: meter.value_of(items) for meter in self.meters} for name, items in kept.items()}
