"""Streams made ready for a network: inputs of like size, and the past of the target as an input."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hamlearn.errors import ConfigError, SampleError
from hamlearn.state import Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.combine import Wrapper
from hamlearn.streams.iterables import from_iterable
from hamlearn.streams.values import Spec, TensorSpec


def standardize(stream: Iterable[Any], clip: float = 10.0) -> Stream:
    """Each entry of the input less its mean, over its standard deviation, both of all inputs so far.

    u ← (u − m_k) / s_k, with m_k and s_k over inputs 1 to k, by Welford's recursion; s_k = 0 gives 0.

    Args:
        stream: Samples whose inputs are tensors.
        clip: Largest absolute value that is let through: the first inputs know little of the scale.

    Example:
        >>> [round(sample.u.item(), 4) for sample in standardize([[1.0], [3.0], [5.0]])]
        [0.0, 1.0, 1.2247]
    """
    if not clip > 0:
        raise ConfigError(f"clip={clip} lets nothing through. Give a positive number.")
    return StandardizedStream(from_iterable(stream), clip)


def autoregress(stream: Iterable[Any], lags: int, relative: bool = False) -> Stream:
    """The last `lags` targets as further entries of the input, the newest first.

    A target is known to the learner by the time of the next input; before there is one, the entries are 0. A
    missing target repeats the one before.

    Args:
        stream: Samples whose inputs and targets are vectors.
        lags: How many past targets.
        relative: Whether past targets and the target itself are given as differences from the newest past
            target. An output of 0 is then the prediction that nothing changes, and absolute errors are
            those of the target itself. The first sample, which has no past, loses its target.

    Example:
        >>> pairs = [([0.0], [5.0]), ([0.0], [6.0]), ([0.0], [8.0])]
        >>> [(s.u.tolist(), None if s.target is None else s.target.item()) for s in autoregress(pairs, 2, True)]
        [([0.0, 0.0, 0.0], None), ([0.0, 0.0, 0.0], 1.0), ([0.0, 0.0, -1.0], 2.0)]
    """
    if lags < 1:
        raise ConfigError(f"lags={lags} looks at no past target. Give 1 or more.")
    return AutoregressiveStream(from_iterable(stream), lags, relative)


class StandardizedStream(Wrapper):
    """What `standardize` returns."""

    def __init__(self, inner: Stream, clip: float) -> None:
        super().__init__(inner)
        self._clip = clip
        self._forget()

    def _forget(self) -> None:
        self._n = 0
        self._mean: Tensor | None = None
        self._square: Tensor | None = None

    def _rewind(self) -> None:
        super()._rewind()
        self._forget()

    def _config(self) -> dict[str, Any]:
        return {"clip": self._clip}

    def _cursor(self) -> dict[str, Any]:
        sums = None
        if self._mean is not None and self._square is not None:
            shape = list(self._mean.shape)
            sums = [shape, self._mean.flatten().tolist(), self._square.flatten().tolist()]
        return {"n": self._n, "sums": sums, **super()._cursor()}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        super()._seek(cursor)
        self._forget()
        self._n = int(cursor["n"])
        if cursor["sums"] is not None:
            shape, mean, square = cursor["sums"]
            self._mean = torch.tensor(mean, dtype=torch.float64).reshape(shape)
            self._square = torch.tensor(square, dtype=torch.float64).reshape(shape)

    def _samples(self) -> Iterator[Sample]:
        for sample in self.inner:
            if not isinstance(sample.u, Tensor):
                raise SampleError(
                    f"standardize takes inputs that are tensors, not {type(sample.u).__name__}. "
                    "Put them together in a streams.map before."
                )
            u = sample.u.double()
            if self._mean is None or self._square is None:
                self._mean, self._square = torch.zeros_like(u), torch.zeros_like(u)
            self._n += 1
            off = u - self._mean
            self._mean = self._mean + off / self._n
            self._square = self._square + off * (u - self._mean)
            spread = (self._square / self._n).sqrt()
            scaled = torch.where(spread > 0, (u - self._mean) / spread, 0.0).clamp(-self._clip, self._clip)
            yield replace(sample, u=scaled.to(sample.u.dtype))


class AutoregressiveStream(Wrapper):
    """What `autoregress` returns."""

    def __init__(self, inner: Stream, lags: int, relative: bool) -> None:
        super().__init__(inner)
        self._lags, self._relative = lags, relative
        self._past: deque[list[float]] = deque(maxlen=lags)

    @property
    def spec(self) -> Spec:
        """The input of the stream inside, longer by the past targets."""
        spec = self.inner.spec
        if not all(isinstance(part, TensorSpec) and len(part.shape) == 1 for part in (spec.u, spec.target)):
            return Spec(None, spec.target, spec.length)
        more = self._lags * (spec.target.shape[0] or 0)
        return Spec(TensorSpec(((spec.u.shape[0] or 0) + more,), spec.u.dtype), spec.target, spec.length)

    def _rewind(self) -> None:
        super()._rewind()
        self._past.clear()

    def _config(self) -> dict[str, Any]:
        return {"lags": self._lags, "relative": self._relative}

    def _cursor(self) -> dict[str, Any]:
        return {"past": [list(values) for values in self._past], **super()._cursor()}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        super()._seek(cursor)
        self._past.clear()
        self._past.extend(list(values) for values in cursor["past"])

    def _samples(self) -> Iterator[Sample]:
        for sample in self.inner:
            target = sample.target
            if (
                not isinstance(sample.u, Tensor)
                or sample.u.dim() != 1
                or (target is not None and target.dim() != 1)
            ):
                raise SampleError(
                    "autoregress takes inputs and targets that are vectors, without a batch dimension. "
                    "Shape them in a streams.map before."
                )
            size = self._size(target)
            newest = self._past[0] if self._past else [0.0] * size
            base = newest if self._relative else [0.0] * size
            past = [[a - b for a, b in zip(values, base, strict=True)] for values in self._past]
            past += [[0.0] * size] * (self._lags - len(past))
            more = torch.tensor([x for values in past for x in values], dtype=sample.u.dtype)
            shown = target
            if self._relative and target is not None:
                known = bool(self._past)
                shown = target - torch.tensor(base, dtype=target.dtype) if known else None
            if target is not None:
                self._past.appendleft(target.tolist())
            elif self._past:
                self._past.appendleft(list(newest))
            yield replace(sample, u=torch.cat([sample.u, more]), target=shown)

    def _size(self, target: Tensor | None) -> int:
        if target is not None:
            return len(target)
        spec = self.inner.spec.target
        if self._past:
            return len(self._past[0])
        if isinstance(spec, TensorSpec):
            return spec.shape[0] or 0
        raise SampleError(
            "the first sample has no target, so that nobody knows its size. Begin with one that has."
        )
