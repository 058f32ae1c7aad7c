"""Streams over anything that can be iterated over."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import torch

from hamlearn.errors import ConfigError
from hamlearn.sample import Label, Sample
from hamlearn.streams.again import Again
from hamlearn.streams.base import Stream
from hamlearn.streams.blocks import Block, copied
from hamlearn.streams.values import Spec, to_sample


def from_iterable(
    iterable: Iterable[Any] | Callable[[], Iterable[Any]],
    dtype: torch.dtype | None = None,
    length: int | float | None = None,
) -> Stream:
    """A stream over samples, pairs (u, target) or plain inputs.

    Args:
        iterable: What to iterate over: a collection, an iterator, or a function without arguments that
            returns a fresh iterator for each pass. Items are `Sample`s, pairs (u, target) where the
            target may be `None`, or inputs; numbers and arrays become tensors.
        dtype: Floating-point type for values that are not tensors yet; `None` is torch's default.
        length: Samples in one pass (`math.inf`: endless) where `len(iterable)` cannot say.

    Resuming skips what had been taken: at once for sequences, one by one otherwise. An iterator (which
    can be iterated over only once) simply continues in a second pass.

    Example:
        >>> stream = from_iterable([([0.0, 1.0], 1), ([1.0, 0.0], None)])
        >>> print(stream.spec)
        u: float32[2], target: int64[], length: 2
        >>> [sample.target for sample in stream]
        [tensor(1), None]
    """
    if isinstance(iterable, Stream):
        return iterable
    if not callable(iterable) and not isinstance(iterable, Iterable):
        raise ConfigError(
            f"{iterable!r} cannot be iterated over. Give a collection, an iterator, or a function that "
            "returns one."
        )
    return IterableStream(iterable, dtype, length)


class IterableStream(Stream):
    """What `from_iterable` returns."""

    _n = 0
    _moves = ("_n",)

    def __init__(
        self,
        iterable: Iterable[Any] | Callable[[], Iterable[Any]],
        dtype: torch.dtype | None,
        length: int | float | None,
    ) -> None:
        self._source: Any = iterable
        self._dtype = dtype
        self._length = len(iterable) if length is None and isinstance(iterable, Sized) else length
        self._again = Again(iterable, copied) if isinstance(iterable, Iterator) else None
        self._keeps = False
        self._seen: Sample | None = None

    @property
    def spec(self) -> Spec:
        """As the first sample looks; unknown before it where looking would use it up."""
        if self._seen is None and not self.once and not callable(self._source):
            made = (to_sample(item, self._dtype) for item in self._source)
            self._seen = next((sample for sample in made if not isinstance(sample, Label)), None)
        if self._seen is None:
            return Spec(None, None, self._length)
        return Spec.of(self._seen, self._length)

    @property
    def once(self) -> bool:
        """Whether it is made of an iterator."""
        return self._again is not None

    def settle(self) -> None:
        """What was handed out of an iterator need not be kept any more."""
        if self._again is not None:
            self._again.settle(self._n)

    def _rewind(self) -> None:
        if not self.once:
            super()._rewind()

    def _blocks(self, size: Callable[[], int], turn: int) -> Iterator[Block]:
        self._keeps = True
        return super()._blocks(size, turn)

    def _samples(self) -> Iterator[Sample]:
        keeps, self._keeps = self._keeps, False
        if isinstance(self._source, list | tuple):
            items: Iterator[Any] = itertools.islice(self._source, self._n, None)
        else:
            fresh = iter(self._source() if callable(self._source) else self._source)
            items = again = self._again or Again(fresh, copied)
            again.keeps = keeps and self.once
            again.seek(self._n)
        while (item := next(items, self)) is not self:
            self._n += 1
            sample = self._sample(item)
            if self._seen is None and not isinstance(sample, Label):
                self._seen = sample
            yield sample

    def _sample(self, item: Any) -> Any:
        return to_sample(item, self._dtype)


class SampleIterator(IterableStream):
    """An iterator of samples, handed to a learner as it is, so that nothing that was read ahead of it is lost."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        super().__init__(iterator, None, None)
        self.iterator = iterator

    @property
    def waiting(self) -> bool:
        """Whether samples that were read of it have not been taken."""
        return bool(self._again and self._again.waiting)

    def each(self) -> Iterator[Any]:
        """One sample after the other; several may take turns in asking for the next one."""
        again = self._again
        assert again is not None
        again.keeps = False
        again.seek(self._n)
        while (item := next(again, self)) is not self:
            self._n = again.place
            yield item

    def _sample(self, item: Any) -> Any:
        return item
