"""Streams made of streams: `take`, `map`, `hold`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from hamlearn.errors import ConfigError, SampleError
from hamlearn.sample import Label, Sample
from hamlearn.streams.base import END, Stream
from hamlearn.streams.blocks import Block, copied
from hamlearn.streams.iterables import from_iterable
from hamlearn.streams.values import Spec
from hamlearn.streams.wrapped import Transform, Wrapper


def take(stream: Iterable[Any], n: int) -> Stream:
    """The first `n` samples of a stream.

    Example:
        >>> from hamlearn.streams import signals
        >>> len(take(signals.henon(), 5))
        5
    """
    if n < 0:
        raise ConfigError(f"n={n} is negative. Give the number of samples to take.")
    return TakeStream(from_iterable(stream), n)


def map(stream: Iterable[Any], fn: Callable[[Sample], Sample]) -> Stream:
    """Each sample of a stream passed through `fn`, which takes a `Sample` and returns one; labels pass by.

    `fn` may be called again for a sample that is given again after a resume.

    Example:
        >>> from dataclasses import replace
        >>> doubled = map([[1.0], [2.0]], lambda sample: replace(sample, u=2 * sample.u))
        >>> [sample.u.item() for sample in doubled]
        [2.0, 4.0]
    """
    return MapStream(from_iterable(stream), fn)


def hold(stream: Iterable[Any], k: int, split: bool = False) -> Stream:
    """Each sample shown for `k` steps in a row; a boundary stays with the last of them.

    Args:
        stream: The samples.
        k: Steps that each is shown for.
        split: Whether the `k` steps share the sample's `tau` between them, so that time runs as in the
            data. Otherwise each step takes all of it, and time runs `k` times as long.

    Example:
        >>> [sample.u.item() for sample in hold([[1.0], [2.0]], 2)]
        [1.0, 1.0, 2.0, 2.0]
    """
    if k < 1:
        raise ConfigError(f"k={k} shows no sample. Give 1 or more steps.")
    return HoldStream(from_iterable(stream), k, split)


class TakeStream(Wrapper):
    """What `take` returns."""

    passes_inputs = True
    _n = 0
    _moves = ("_n",)

    def __init__(self, inner: Stream, n: int) -> None:
        super().__init__(inner)
        self._limit = n

    @property
    def spec(self) -> Spec:
        """As the stream inside, but not longer than `n`."""
        spec = self.inner.spec
        length = None if spec.length is None else int(min(spec.length, self._limit))
        return Spec(spec.u, spec.target, length)

    def _config(self) -> dict[str, Any]:
        return {"n": self._limit}

    def _begin(self) -> None:
        # Each pass takes `n` samples, also of a feed that goes on where it is.
        if not self._resumed:
            self._n = 0
        super()._begin()

    def _block(self, n: int) -> Block | list[Any] | None:
        left = self._limit - self._n
        block = self.inner.block(min(n, left)) if left else None
        if block is None:
            return None
        block = block.part(0, min(block.count, left)) if isinstance(block, Block) else block[:left]
        self._n += block.count if isinstance(block, Block) else len(block)
        return block


class MapStream(Transform):
    """What `map` returns."""

    # The function may use its memory again.
    _reuses = True

    def __init__(self, inner: Stream, fn: Callable[[Sample], Sample]) -> None:
        super().__init__(inner)
        self._fn = fn
        self._seen: Sample | None = None

    @property
    def spec(self) -> Spec:
        """The length of the stream inside; shapes as the first mapped sample had them."""
        length = self.inner.length
        return Spec(None, None, length) if self._seen is None else Spec.of(self._seen, length)

    @property
    def numbers(self) -> None:
        """What the function makes of the entries is not known: all count as measured."""
        return

    def sample(self, sample: Sample) -> Sample:
        """What the function returns."""
        mapped = self._fn(sample)
        if not isinstance(mapped, Sample):
            raise SampleError(
                f"the mapped function returned {type(mapped).__name__}, not a Sample. "
                "Return Sample(...), or dataclasses.replace(sample, ...)."
            )
        if self._seen is None:
            self._seen = copied(mapped)
        return mapped


class HoldStream(Wrapper):
    """What `hold` returns."""

    _shown = 0
    _moves, _fixed = ("_shown",), ("_k", "_split")

    def __init__(self, inner: Stream, k: int, split: bool) -> None:
        super().__init__(inner)
        self._k, self._split = k, split
        self._before: dict[str, Any] | None = None

    @property
    def spec(self) -> Spec:
        """As the stream inside, but `k` times as long."""
        spec = self.inner.spec
        return Spec(spec.u, spec.target, None if spec.length is None else spec.length * self._k)

    def _cursor(self) -> dict[str, Any]:
        # A sample that has been shown in part must come again after a resume: the state before it is kept.
        kept = {} if self._shown == 0 or self._before is None else {"inner": [self._before]}
        return {**super()._cursor(), **kept}

    def _rewind(self) -> None:
        super()._rewind()
        self._before = None

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        super()._seek(cursor)
        self._before = cursor["inner"][0]

    def _samples(self) -> Iterator[Any]:
        while True:
            if self._shown == 0:
                self._before = self.inner.state_dict()
            sample = self.inner._next()
            if sample is END:
                return
            if isinstance(sample, Label):
                yield sample
                continue
            if self._split and sample.tau is None:
                raise SampleError(
                    "hold(split=True) shares the tau of each sample, but this one has none. "
                    "Use split=False, or a stream with times."
                )
            tau = sample.tau / self._k if self._split else sample.tau
            for shown in range(self._shown + 1, self._k + 1):
                self._shown = shown % self._k
                yield replace(sample, tau=tau, boundary=sample.boundary and shown == self._k)
