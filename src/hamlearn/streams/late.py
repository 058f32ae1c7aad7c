"""Streams whose labels come later than their samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from hamlearn._base import trees
from hamlearn.errors import ConfigError
from hamlearn.sample import Label, Scale
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


class DelayedStream(Wrapper):
    """What `delayed` returns."""

    _n: int
    _due: list[tuple[int, int, Any, Any]]
    _fixed = ("_by",)

    def __init__(self, inner: Stream, by: int) -> None:
        super().__init__(inner)
        self._by = by
        self._rewind()

    def _fresh(self) -> dict[str, Any]:
        # How many samples there were, and labels that are still to come: after how many, id, target and scale.
        return {"_n": 0, "_due": []}

    @property
    def spec(self) -> Spec:
        """Samples as in the stream inside; how many labels will come is not known."""
        spec = self.inner.spec
        return Spec(spec.u, spec.target, None)

    def _samples(self) -> Iterator[Any]:
        while True:
            while self._due and self._due[0][0] <= self._n:
                yield self._next_label()
            sample = self.inner._next()
            if sample is END:
                break
            if not isinstance(sample, Label):
                number, self._n = self._n, self._n + 1
                if sample.target is not None:
                    # A copy: the source may use its memory again.
                    self._due.append((self._n + self._by, number, trees.copied(sample.target), sample.scale))
                    sample = replace(sample, target=None, id=number)
            yield sample
        while self._due:
            yield self._next_label()

    def _next_label(self) -> Label:
        _, id, target, scale = self._due.pop(0)
        return Label(id, target, None if scale is None else Scale(*scale))
