"""What would have been scored without learning: the last target, or the mean or majority of all so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any

from hamlearn.evaluate.meters import Item, Kind
from hamlearn.sample import Id

NAMES: dict[Kind, tuple[str, str]] = {"numbers": ("last value", "mean"), "labels": ("last class", "majority")}
"""The baselines for metrics of numbers and of classes; for others there are none."""
_SCALARS = {bool, int, float, str}
Event = tuple[Id | None, int]
"""(id, 0): a sample was predicted whose label comes later; (id, n): its label came, with n items; (None, n): there
are n items whose targets came with them."""
_NOTHING: tuple[list[Any], list[Any]] = ([], [])


class Baselines:
    """Predictors that know nothing but the targets that came before. The first sample is passed over.

    For a sample whose label comes later, they know the targets that had come when it was predicted, as the learner
    did; samples that were predicted before the first target are passed over.

    Args:
        kind: What the metrics take.
        late: How many samples may wait for their labels; older ones are passed over.

    Example:
        >>> baselines = Baselines("numbers")
        >>> baselines.guess([[(0.0, 3.0)], [(0.0, 5.0)], [(0.0, 1.0)]], [(None, 3)])
        {'last value': [[(3.0, 5.0)], [(5.0, 1.0)]], 'mean': [[(3.0, 5.0)], [(4.0, 1.0)]]}
    """

    _state = ("_last", "_means", "_n", "_counts", "_majority", "_noted")

    def __init__(self, kind: Kind, late: int = 1000) -> None:
        self._late = late
        self.names = NAMES.get(kind, ())
        self._numbers = kind == "numbers"
        self._last: list[Any] = []
        self._means: list[float] = []
        self._n = 0
        self._counts: Counter[Any] = Counter()
        self._majority: Any = None
        # For each sample that waits for its label: the guesses at the time of its prediction.
        self._noted: dict[Id, tuple[list[Any], list[Any]]] = {}

    def guess(self, items: list[Item], events: Iterable[Event]) -> dict[str, list[Item]]:
        """Samples as the baselines predict each from what came before it; then its target counts as well.

        Args:
            items: The samples.
            events: In which order they were predicted and their targets came.
        """
        found: dict[str, list[Item]] = {name: [] for name in self.names}
        coming = iter(items if self.names else ())
        for id, count in events:
            if id is not None and count == 0:
                self._note(id)
                continue
            noted = None if id is None else self._noted.pop(id, _NOTHING)
            for item in islice(coming, count):
                truths = [truth for _, truth in item]
                if not _SCALARS.issuperset(map(type, truths)):
                    # What `prepare` makes for a metric of many outputs has no mean and no majority.
                    continue
                known = noted or self._known()
                if len(truths) == len(known[0]):
                    for name, guesses in zip(self.names, known, strict=True):
                        found[name].append(list(zip(guesses, truths, strict=True)))
                self._learn(truths)
        return found

    def _known(self) -> tuple[list[Any], list[Any]]:
        """The last target, and the mean or the majority of all so far."""
        return self._last, self._means if self._numbers else [self._majority] * len(self._last)

    def _note(self, id: Id) -> None:
        """Remember what is known as a sample is predicted whose label comes later."""
        self._noted.pop(id, None)
        self._noted[id] = self._known()
        if len(self._noted) > self._late:
            del self._noted[next(iter(self._noted))]

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
