"""What would have been scored without learning: the last target, or the mean or majority of all so far."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hamlearn.evaluate.meters import Item, Kind
from hamlearn.evaluate.saved import Saved

NAMES: dict[Kind, tuple[str, str]] = {"numbers": ("last value", "mean"), "labels": ("last class", "majority")}
"""The baselines for metrics of numbers and of classes; for others there are none."""
_SCALARS = {bool, int, float, str}


class Baselines(Saved):
    """Predictors that know nothing but the targets that came before. The first sample is passed over.

    Args:
        kind: What the metrics take.

    Example:
        >>> baselines = Baselines("numbers")
        >>> baselines.guess([[(0.0, 3.0)], [(0.0, 5.0)], [(0.0, 1.0)]])
        {'last value': [[(3.0, 5.0)], [(5.0, 1.0)]], 'mean': [[(3.0, 5.0)], [(4.0, 1.0)]]}
    """

    _state = ("_last", "_means", "_n", "_counts", "_majority")

    def __init__(self, kind: Kind) -> None:
        self.names = NAMES.get(kind, ())
        self._numbers = kind == "numbers"
        self._last: list[Any] = []
        self._means: list[float] = []
        self._n = 0
        self._counts: Counter[Any] = Counter()
        self._majority: Any = None

    def guess(self, items: list[Item]) -> dict[str, list[Item]]:
        """Samples as the baselines predict each from what came before it; then its target counts as well."""
        found: dict[str, list[Item]] = {name: [] for name in self.names}
        for item in items if self.names else ():
            truths = [truth for _, truth in item]
            if not _SCALARS.issuperset(map(type, truths)):
                # What `prepare` makes for a metric of many outputs has no mean and no majority.
                continue
            if len(truths) == len(self._last):
                usual = self._means if self._numbers else [self._majority] * len(truths)
                for name, guesses in zip(self.names, (self._last, usual), strict=True):
                    found[name].append(list(zip(guesses, truths, strict=True)))
            self._learn(truths)
        return found

    def _learn(self, truths: list[Any]) -> None:
        if self._numbers:
            if len(truths) != len(self._means):
                self._n, self._means = 0, [0.0] * len(truths)
            self._n += 1
            self._means = [mean + (x - mean) / self._n for mean, x in zip(self._means, truths, strict=True)]
        else:
            for truth in truths:
                self._counts[truth] += 1
                if self._counts[truth] > self._counts[self._majority]:
                    self._majority = truth
        self._last = truths
