"""A stream over whatever can be iterated over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import islice
from typing import Any

import torch

from hamlearn.errors import ConfigError, StreamError
from hamlearn.sample import Label, Sample
from hamlearn.streams.base import END, Stream
from hamlearn.streams.values import Spec, to_sample

LOOK = 1000
"""Items that are looked at for the shape of a target, where the first ones have none."""


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
            f"stream must be an iterable of samples, or a function that returns one, got {iterable!r}. "
            "Give a collection, an iterator, or a function."
        )
    return IterableStream(iterable, dtype, length)


def pass_over(items: Iterator[Any], count: int, place: int) -> None:
    """Read `count` items, as far as `place`, where a stream had been saved."""
    for passed in range(count):
        if next(items, END) is END:
            raise StreamError(
                f"the stream ended after {place - count + passed} samples while skipping to sample {place}, where "
                "it had been saved. Give it the same data as when it was saved."
            )


def require_ahead(given: int, place: int) -> None:
    """Raise if an iterator has given more items than there are before `place`."""
    if place < given:
        raise StreamError(
            f"an iterator gives nothing twice: it was read up to item {given}, and cannot go back to item "
            f"{place}, where the stream had been saved. Give a fresh iterator, or a function that returns one."
        )


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
        self._given = 0
        self._reuses = not isinstance(iterable, list | tuple)
        self._seen: Sample | None = None
        self._has_looked = False

    @property
    def spec(self) -> Spec:
        """As the first samples look; unknown before the first where looking would use it up."""
        if not self._has_looked and self.replayable and not callable(self._source):
            self._seen, self._has_looked = self._looked(), True
        if self._seen is None:
            return Spec(None, None, self._length)
        return Spec.of(self._seen, self._length)

    def _looked(self) -> Sample | None:
        """The first sample with a target, or the first of all where none of those looked at has one."""
        first = None
        for item in islice(self._source, LOOK):
            sample = to_sample(item, self._dtype)
            if isinstance(sample, Label):
                continue
            first = first or sample
            if sample.target is not None:
                return sample
        return first

    @property
    def replayable(self) -> bool:
        """Whether it is made of something else than an iterator."""
        return not isinstance(self._source, Iterator)

    def _samples(self) -> Iterator[Any]:
        for item in self._items():
            self._n += 1
            if not self.replayable:
                self._given = self._n
            sample = to_sample(item, self._dtype)
            if self._seen is None and not isinstance(sample, Label):
                self._seen = sample
            yield sample

    def _items(self) -> Iterator[Any]:
        """The items from the cursor on."""
        if isinstance(self._source, list | tuple):
            return islice(self._source, self._n, None)
        if self.replayable:
            items = iter(self._source() if callable(self._source) else self._source)
            pass_over(items, self._n, self._n)
            return items
        require_ahead(self._given, self._n)
        pass_over(self._source, self._n - self._given, self._n)
        return self._source
