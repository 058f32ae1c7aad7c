"""Several streams as one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import torch

from hamlearn.errors import ConfigError
from hamlearn.sample import Label
from hamlearn.streams.base import END, Stream
from hamlearn.streams.iterables import from_iterable
from hamlearn.streams.values import Spec, mix_seed
from hamlearn.streams.wrapped import Wrapper

_BLOCK = 256


def interleave(
    *streams: Iterable[Any],
    weights: Sequence[float] | None = None,
    by: Literal["sample", "sequence"] = "sample",
    stop: Literal["first", "last"] = "last",
    seed: int = 0,
) -> Stream:
    """Several streams as one: in turn, or drawn at random.

    Args:
        *streams: What to interleave.
        weights: `None` takes them in turn; otherwise each turn is drawn with these weights from `seed`.
        by: `"sample"` changes the stream after each sample, `"sequence"` only after a `boundary`, so that
            sequences stay whole.
        stop: Whether all ends with the `"first"` stream that ends, or goes on with the others until the
            `"last"` has ended.
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
    if by not in ("sample", "sequence"):
        raise ConfigError(f'by={by!r} is not known. Give "sample" or "sequence".')
    if stop not in ("first", "last"):
        raise ConfigError(f'stop={stop!r} is not known. Give "first" or "last".')
    return InterleavedStream([from_iterable(stream) for stream in streams], weights, by, stop, seed)


class InterleavedStream(Wrapper):
    """What `interleave` returns."""

    _turn_no: int
    _inside: bool
    _done: list[bool]
    _fixed = ("_weights", "_by", "_stop", "_seed")

    def __init__(
        self, streams: list[Stream], weights: Sequence[float] | None, by: str, stop: str, seed: int
    ) -> None:
        super().__init__(*streams)
        self._weights = None if weights is None else [float(weight) for weight in weights]
        self._by, self._stop, self._seed = by, stop, seed
        self._drawn, self._draws = -1, [0]
        self._rewind()

    @property
    def spec(self) -> Spec:
        """As the first stream whose shapes are known; the length where all are finite and are read to the end."""
        specs = [stream.spec for stream in self._inners]
        u = next((spec.u for spec in specs if spec.u is not None), None)
        target = next((spec.target for spec in specs if spec.target is not None), None)
        lengths = [spec.length for spec in specs]
        length: int | float | None = None
        if all(n == math.inf for n in lengths) or (self._stop == "last" and math.inf in lengths):
            length = math.inf
        elif self._stop == "last" and None not in lengths:
            length = sum(n for n in lengths if n is not None)
        return Spec(u, target, length)

    def state_at(self, mark: dict[str, Any], taken: int) -> dict[str, Any]:
        """Which of the streams the samples came from is not known: they are passed over."""
        return mark

    def _begin(self) -> None:
        if not self._resumed:
            # Of a feed and a list together, the list begins again.
            self._done = [False] * len(self._inners)
        super()._begin()

    def _fresh(self) -> dict[str, Any]:
        return {"_turn_no": 0, "_inside": False, "_done": [False] * len(self._inners)}

    def _samples(self) -> Iterator[Any]:
        while not self._ended():
            i = self._draw(self._turn_no if not self._inside else self._turn_no - 1)
            if not self._inside:
                self._turn_no += 1
            sample = END if self._done[i] else self._inners[i]._next()
            if sample is END:
                self._done[i], self._inside = True, False
                continue
            if not isinstance(sample, Label):
                self._inside = self._by == "sequence" and not sample.boundary
            yield sample

    def _ended(self) -> bool:
        """Whether one stream has ended that ends all, or all have that can still be drawn."""
        weights = self._weights or [1.0] * len(self._inners)
        return (self._stop == "first" and any(self._done)) or all(
            done or weight == 0 for done, weight in zip(self._done, weights, strict=True)
        )

    def _draw(self, turn: int) -> int:
        if self._weights is None:
            return turn % len(self._inners)
        block = turn // _BLOCK
        if block != self._drawn:
            generator = torch.Generator().manual_seed(mix_seed(self._seed, block))
            weights = torch.tensor(self._weights, dtype=torch.float64)
            self._draws = torch.multinomial(weights, _BLOCK, replacement=True, generator=generator).tolist()
            self._drawn = block
        return self._draws[turn % _BLOCK]
