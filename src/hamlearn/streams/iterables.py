"""Streams over anything that can be iterated over."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import torch

from hamlearn.errors import ConfigError, StreamError
from hamlearn.sample import Label, Sample
from hamlearn.streams.base import Stream
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
        self._source = iterable
        self._dtype = dtype
        self._length = len(iterable) if length is None and isinstance(iterable, Sized) else length
        self._once = isinstance(iterable, Iterator)
        self._taken = 0
        self._seen: Sample | None = None

    @property
    def spec(self) -> Spec:
        """As the first sample looks; unknown before it where looking would use it up."""
        if self._seen is None and not self._once and not callable(self._source):
            made = (to_sample(item, self._dtype) for item in self._source)
            self._seen = next((sample for sample in made if not isinstance(sample, Label)), None)
        if self._seen is None:
            return Spec(None, None, self._length)
        return Spec.of(self._seen, self._length)

    def _rewind(self) -> None:
        if not self._once:
            super()._rewind()

    def _samples(self) -> Iterator[Sample]:
        items = iter(self._source() if callable(self._source) else self._source)
        # An iterator may have been read before: only what is missing is skipped.
        skip = self._n - self._taken if self._once else self._n
        if isinstance(self._source, list | tuple):
            items = itertools.islice(self._source, skip, None)
        else:
            for k in range(skip):
                if next(items, self) is self:
                    raise StreamError(
                        f"the stream ended after {k} samples while skipping to sample {self._n}, where it "
                        "had "
                        "been saved. Give it the same data as when it was saved."
                    )
        self._taken = self._n
        for item in items:
            self._n += 1
            self._taken += 1
            sample = to_sample(item, self._dtype)
            if self._seen is None and not isinstance(sample, Label):
                self._seen = sample
            yield sample
