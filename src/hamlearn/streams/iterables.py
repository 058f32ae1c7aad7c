"""A stream over whatever can be iterated over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import islice
from typing import Any

import torch

from hamlearn.errors import ConfigError
from hamlearn.sample import Label, Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.items import Items
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


class IterableStream(Stream):
    """What `from_iterable` returns."""

    _n = 0
    _moves = ("_n",)

    def __init__(self, iterable: Any, dtype: torch.dtype | None, length: int | float | None) -> None:
        self._items, self._dtype = Items(iterable), dtype
        self._length = len(iterable) if length is None and isinstance(iterable, Sized) else length
        self._reuses = not isinstance(iterable, list | tuple)
        self._seen: Sample | None = None
        # A function is not called only to look at what it returns.
        self._may_look = not callable(iterable) and not self._items.once

    @property
    def spec(self) -> Spec:
        """As the first samples look; unknown before the first where looking would use it up."""
        if self._may_look:
            # A sample with a target says more than the first one.
            made = (to_sample(item, self._dtype) for item in islice(self._items.fresh(), LOOK))
            self._look(sample for sample in made if not isinstance(sample, Label))
            self._may_look = False
        return Spec(None, None, self._length) if self._seen is None else Spec.of(self._seen, self._length)

    def _look(self, samples: Iterator[Sample]) -> None:
        first = next(samples, None)
        with_target = first is None or first.target is not None
        self._seen = first if with_target else next((one for one in samples if one.target is not None), first)

    @property
    def replayable(self) -> bool:
        """Whether it is made of something else than an iterator."""
        return not self._items.once

    def _samples(self) -> Iterator[Any]:
        self._items.seek(self._n)
        for item in self._items:
            self._n += 1
            sample = to_sample(item, self._dtype)
            if self._seen is None and not isinstance(sample, Label):
                self._seen = sample
            yield sample
