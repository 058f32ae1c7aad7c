"""Streams whose labels come later than their samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from hamlearn._base import trees
from hamlearn.errors import ConfigError
from hamlearn.sample import Label
from hamlearn.streams.base import END, Stream
from hamlearn.streams.iterables import from_iterable
from hamlearn.streams.values import Spec
from hamlearn.streams.wrapped import Wrapper


def delayed(stream: Iterable[Any], by: int) -> Stream:
    """A stream whose targets come `by` samples later, as labels: what a learner meets where truth takes its time.

    Each sample that has a target gets its number as `id` and loses the target, which follows as a `Label` after
    `by` more samples. Labels that are still due at the end come last.

    Args:
        stream: Samples with targets.
        by: How many samples a label is late; 0 has it follow its sample at once.

    Example:
        >>> import torch, hamlearn as hl
        >>> pairs = [hl.Sample(torch.tensor([float(k)]), torch.tensor([1.0])) for k in range(3)]
        >>> [event.id for event in delayed(pairs, by=1)]
        [0, 1, 0, 2, 1, 2]
    """
    if isinstance(by, bool) or not isinstance(by, int) or by < 0:
        raise ConfigError(f"by={by!r} must be a whole number of samples, 0 or more")
    return DelayedStream(from_iterable(stream), by)


class _Due(NamedTuple):
    """A label still to come, and where the stream was before its sample; `earlier` labels were due then."""

    label: Label
    after: int
    samples: int
    events: int
    earlier: int
    inner: dict[str, Any]


class DelayedStream(Wrapper):
    """What `delayed` returns."""

    _n = _events = _skip = 0
    _moves, _fixed = ("_n", "_events", "_skip"), ("_by",)

    def __init__(self, inner: Stream, by: int) -> None:
        super().__init__(inner)
        self._by = by
        self._due: deque[_Due] = deque()

    @property
    def spec(self) -> Spec:
        """Samples as in the stream inside; how many labels will come is not known."""
        spec = self.inner.spec
        return Spec(spec.u, spec.target, None)

    def _rewind(self) -> None:
        super()._rewind()
        self._due.clear()

    def _cursor(self) -> dict[str, Any]:
        # Targets are not written down: the samples whose labels are still to come are read again.
        if not self._due:
            return super()._cursor()
        oldest = self._due[0]
        skip = self._skip + self._events - oldest.events - oldest.earlier
        return {"n": oldest.samples, "events": oldest.events, "skip": skip, "inner": oldest.inner}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        super()._seek(cursor)
        self._due.clear()

    def _samples(self) -> Iterator[Any]:
        for event in self._all():
            self._events += 1
            if self._skip:
                self._skip -= 1
            else:
                yield event

    def _all(self) -> Iterator[Any]:
        while True:
            before = self.inner.state_dict()
            sample = self.inner._next()
            if sample is END:
                break
            if not isinstance(sample, Label):
                self._n += 1
                if sample.target is not None:
                    number = self._n - 1
                    label = Label(number, trees.copied(sample.target), sample.scale)
                    place = number, self._events, len(self._due), before
                    self._due.append(_Due(label, self._n + self._by, *place))
                    sample = replace(sample, target=None, id=number)
            yield sample
            while self._due and self._due[0].after <= self._n:
                yield self._due.popleft().label
        while self._due:
            yield self._due.popleft().label
