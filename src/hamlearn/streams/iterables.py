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
    """Samples of any iterable, or of what a function returns.

    Args:
        iterable: What to iterate over.
        dtype: Of fractions that are not tensors yet.
        length: Samples in one pass, if it is known.
        batched: Whether samples are batches, the last of which may be smaller.
    """

    _n = 0
    _moves = ("_n",)

    def __init__(
        self, iterable: Any, dtype: torch.dtype | None, length: int | float | None, batched: bool = False
    ) -> None:
        self._items, self._dtype, self._batched = Items(iterable), dtype, batched
        self._length = len(iterable) if length is None and isinstance(iterable, Sized) else length
        self._reuses = not isinstance(iterable, list | tuple)
        self._seen: Sample | None = None
        # A function is not called only to look at what it returns.
        self._may_look = not callable(iterable) and not self._items.once

    @property
    def spec(self) -> Spec:
        """As the first samples look; unknown before the first where looking would use it up."""
        if self._may_look and self._seen is None:
            made = (to_sample(item, self._dtype) for item in islice(self._items.fresh(), LOOK))
            samples = (sample for sample in made if not isinstance(sample, Label))
            first = next(samples, None)
            if first is not None and first.target is None:
                # A sample with a target says more than the first one.
                first = next((one for one in samples if one.target is not None), first)
            self._seen, self._may_look = first, False
        if self._seen is None:
            return Spec(None, None, self._length)
        spec = Spec.of(self._seen, self._length)
        return spec.of_any_batch() if self._batched else spec

    @property
    def replayable(self) -> bool:
        """Whether it is made of something else than an iterator."""
        return not self._items.once

    def _samples(self) -> Iterator[Any]:
        self._items.seek(self._n)
        for item in self._items:
            self._n += 1
            sample = to_sample(item, self._dtype)
            if self._seen is None and not self._may_look and not isinstance(sample, Label):
                self._seen = sample
            yield sample
