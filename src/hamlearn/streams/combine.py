"""Streams made of streams: `take`, `map`, `hold`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from hamlearn.errors import ConfigError, SampleError
from hamlearn.sample import Label, Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.blocks import Block, changed, copied
from hamlearn.streams.iterables import from_iterable
from hamlearn.streams.values import Spec


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

    `fn` may be called again for a sample that is given again: after a resume, and where a run stops and leaves
    samples in a live feed.

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


class Wrapper(Stream):
    """A stream around one other stream, whose state is part of its own.

    Attributes:
        passes_blocks: Whether each of its blocks is made of one block of the stream inside.
        passes_inputs: Whether its inputs are those of the stream inside, and its state holds where that stands.
    """

    passes_blocks = False
    passes_inputs = False

    def __init__(self, inner: Stream) -> None:
        self.inner = inner

    @property
    def spec(self) -> Spec:
        """As the stream inside."""
        return self.inner.spec

    @property
    def reads_ahead(self) -> bool:
        """As the stream inside."""
        return self.inner.reads_ahead

    @property
    def once(self) -> bool:
        """As the stream inside."""
        return self.inner.once

    @property
    def at_once(self) -> bool:
        """As the stream inside, where blocks of it are passed on one by one."""
        return (self.reads_ahead and not self.once) or (self.passes_blocks and self.inner.at_once)

    def settle(self) -> None:
        """Pass it on."""
        self.inner.settle()

    @property
    def save_within(self) -> int | None:
        """As the stream inside."""
        return self.inner.save_within

    def saved(self, state: Mapping[str, Any]) -> None:
        """Pass it on."""
        self.inner.saved(state["cursor"]["inner"])

    @property
    def numbers(self) -> list[bool] | None:
        """As in the stream inside."""
        return self.inner.numbers

    def encode(self, row: Mapping[str, Any]) -> Tensor:
        """As the stream inside, where inputs are passed on as they are."""
        return self.inner.encode(row) if self.passes_inputs else super().encode(row)

    @property
    def dropped(self) -> int:
        """Samples that a live feed inside has dropped; 0 where there is none."""
        return int(getattr(self.inner, "dropped", 0))

    @property
    def bad(self) -> int:
        """Messages that a live feed inside has left out; 0 where there is none."""
        return int(getattr(self.inner, "bad", 0))

    def close(self) -> None:
        """Close the stream inside, if it can be closed."""
        close = getattr(self.inner, "close", None)
        if close is not None:
            close()

    def _rewind(self) -> None:
        super()._rewind()
        # Now, not when the first sample is asked for: a state taken in between must be that of the beginning.
        self.inner._rewind()

    def _cursor(self) -> dict[str, Any]:
        return {**super()._cursor(), "inner": self.inner.state_dict()}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        super()._seek(cursor)
        self.inner.load_state_dict(cursor["inner"])


class TakeStream(Wrapper):
    """What `take` returns."""

    passes_blocks = passes_inputs = True
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

    def _blocks(self, size: Callable[[], int], turn: int) -> Iterator[Block]:
        if self._n == self._limit:
            return
        for block in self.inner.blocks(lambda: min(size(), self._limit - self._n)):
            self._check_turn(turn)
            self._n += block.count
            yield block
            if self._n == self._limit:
                return

    def _samples(self) -> Iterator[Sample]:
        samples = iter(self.inner)
        while self._n < self._limit:
            sample = next(samples, None)
            if sample is None:
                return
            self._n += 1
            yield sample


class MapStream(Wrapper):
    """What `map` returns."""

    passes_blocks = True

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
        """Nobody knows what the function makes of the entries: all count as measured."""
        return

    def _blocks(self, size: Callable[[], int], turn: int) -> Iterator[Block]:
        def change(block: Block, made: list[Sample | Label]) -> None:
            # The function may use its memory again.
            made.extend(copied(self._mapped(block.sample(k))) for k in range(block.count))

        for block in changed(self.inner.blocks(size), change):
            self._check_turn(turn)
            yield block

    def _samples(self) -> Iterator[Sample]:
        for sample in self.inner:
            yield self._mapped(sample)

    def _mapped(self, sample: Sample | Label) -> Any:
        if isinstance(sample, Label):
            return sample
        mapped = self._fn(sample)
        if not isinstance(mapped, Sample):
            raise SampleError(
                f"the mapped function returned {type(mapped).__name__}, not a Sample. "
                "Return Sample(...), or dataclasses.replace(sample, ...)."
            )
        if self._seen is None:
            self._seen = mapped
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
        # In mid-show the sample must come again after a resume: the state from before it is kept.
        kept = {} if self._shown == 0 or self._before is None else {"inner": self._before}
        return {**super()._cursor(), **kept}

    def _rewind(self) -> None:
        super()._rewind()
        self._before = None

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        super()._seek(cursor)
        self._before = cursor["inner"]

    def _samples(self) -> Iterator[Sample]:
        samples = iter(self.inner)
        while True:
            if self._shown == 0:
                self._before = self.inner.state_dict()
            sample = next(samples, None)
            if sample is None:
                return
            if isinstance(sample, Label):
                yield sample
                continue
            if self._split and sample.tau is None:
                raise SampleError(
                    "hold(split=True) shares the tau of each sample, but this one has none. "
                    "Use split=False, or a stream with times."
                )
            tau = sample.tau / self._k if self._split and sample.tau is not None else sample.tau
            for shown in range(self._shown + 1, self._k + 1):
                self._shown = shown % self._k
                yield replace(sample, tau=tau, boundary=sample.boundary and shown == self._k)
