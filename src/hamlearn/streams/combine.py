"""Streams made of streams: `take`, `map`, `hold`, `interleave`, `delayed`."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hamlearn._base import trees
from hamlearn.errors import ConfigError, SampleError
from hamlearn.sample import Label, Sample, Scale
from hamlearn.streams.base import END, Stream
from hamlearn.streams.blocks import Block, copied
from hamlearn.streams.iterables import from_iterable
from hamlearn.streams.values import Spec, mix_seed
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


def interleave(
    *streams: Iterable[Any],
    weights: Sequence[float] | None = None,
    seed: int = 0,
) -> Stream:
    """Several streams as one, a sample at a time, in turn or drawn at random, until the last has ended.

    Args:
        *streams: What to interleave.
        weights: `None` takes them in turn; otherwise each turn is drawn with these weights from `seed`.
        seed: Of the draws.

    Example:
        >>> mixed = interleave([[1.0], [2.0]], [[10.0], [20.0], [30.0]])
        >>> [sample.u.item() for sample in mixed]
        [1.0, 10.0, 2.0, 20.0, 30.0]
    """
    if not streams:
        raise ConfigError("there is nothing to interleave. Give at least one stream.")
    if weights is not None and (len(weights) != len(streams) or min(weights) < 0 or not sum(weights) > 0):
        raise ConfigError(
            f"weights={list(weights)} do not fit {len(streams)} streams. "
            "Give one for each, none negative, and not all of them zero."
        )
    return InterleavedStream([from_iterable(stream) for stream in streams], weights, seed)


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
        # Each pass takes `n` samples, also of a feed that continues where it is.
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


class InterleavedStream(Wrapper):
    """What `interleave` returns."""

    _turn_no: int
    _done: list[bool]
    _fixed = ("_weights", "_seed")

    def __init__(self, streams: list[Stream], weights: Sequence[float] | None, seed: int) -> None:
        super().__init__(*streams)
        self._weights = None if weights is None else [float(weight) for weight in weights]
        self._seed = seed
        self._rewind()

    @property
    def spec(self) -> Spec:
        """As the first stream whose shapes are known; the length where all are known."""
        specs = [stream.spec for stream in self._inners]
        u = next((spec.u for spec in specs if spec.u is not None), None)
        target = next((spec.target for spec in specs if spec.target is not None), None)
        lengths = [spec.length for spec in specs]
        length: int | float | None = None if None in lengths else sum(n for n in lengths if n is not None)
        return Spec(u, target, math.inf if math.inf in lengths else length)

    def _begin(self) -> None:
        if not self._resumed:
            # Of a feed and a list together, the list begins again.
            self._done = [False] * len(self._inners)
        super()._begin()

    def _fresh(self) -> dict[str, Any]:
        return {"_turn_no": 0, "_done": [False] * len(self._inners)}

    def _samples(self) -> Iterator[Any]:
        weights = self._weights or [1.0] * len(self._inners)
        while not all(done or weight == 0 for done, weight in zip(self._done, weights, strict=True)):
            i = self._draw(self._turn_no)
            self._turn_no += 1
            sample = END if self._done[i] else self._inners[i]._next()
            if sample is END:
                self._done[i] = True
            else:
                yield sample

    def _draw(self, turn: int) -> int:
        """The number of the stream whose turn it is; drawn again for each turn, so that its number says all."""
        if self._weights is None:
            return turn % len(self._inners)
        draw = random.Random(mix_seed(self._seed, turn))
        return draw.choices(range(len(self._inners)), self._weights)[0]


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
