"""Streams made ready for a network: inputs of like size."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn.errors import ConfigError, SampleError
from hamlearn.sample import Label, Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.blocks import Block
from hamlearn.streams.combine import Wrapper
from hamlearn.streams.iterables import from_iterable
from hamlearn.streams.moments import Moments
from hamlearn.streams.values import Spec, TensorSpec

ENOUGH, STEPS = 32, 16
"""Inputs after which a column is looked at, and how many steps of its type a standard deviation should have."""

logger = logging.getLogger("hamlearn")


def standardize(stream: Iterable[Any], clip: float = 10.0) -> Stream:
    """Each entry of the input less its mean, over its standard deviation, both of all inputs so far.

    u ← (u − m_k) / s_k, with m_k and s_k over inputs 1 to k, from running sums; s_k = 0 gives 0. Entries of a
    table that stand for a category or a missing cell are 0 or 1 and stay so. Whole blocks are computed at
    once, with the bits of single rows.

    Args:
        stream: Samples whose inputs are tensors of one shape.
        clip: Largest absolute value that is let through: the first inputs know little of the scale.

    Example:
        >>> [round(sample.u.item(), 4) for sample in standardize([[1.0], [3.0], [5.0]])]
        [0.0, 1.0, 1.2247]
    """
    if not clip > 0:
        raise ConfigError(f"clip={clip} lets nothing through. Give a positive number.")
    return StandardizedStream(from_iterable(stream), clip)


class StandardizedStream(Wrapper):
    """What `standardize` returns."""

    passes_blocks = True
    _fixed = ("_clip",)

    def __init__(self, inner: Stream, clip: float) -> None:
        super().__init__(inner)
        self._clip = clip
        self._forget()

    def _forget(self) -> None:
        self._shape: list[int] | None = None
        self._moments = Moments(0)

    @property
    def spec(self) -> Spec:
        """As the stream inside, but whole numbers become fractions."""
        spec = self.inner.spec
        if not isinstance(spec.u, TensorSpec) or spec.u.dtype.is_floating_point:
            return spec
        return Spec(TensorSpec(spec.u.shape, torch.get_default_dtype()), spec.target, spec.length)

    def _rewind(self) -> None:
        super()._rewind()
        # An iterator goes on where it was.
        if not self.inner.once:
            self._forget()

    def _cursor(self) -> dict[str, Any]:
        return {"shape": self._shape, "moments": self._moments.state(), **super()._cursor()}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        super()._seek(cursor)
        self._shape, self._moments = cursor["shape"], Moments.of(cursor["moments"])

    def encode(self, row: Mapping[str, Any]) -> Tensor:
        """As the stream inside, less the mean and over the deviation, in which the row itself counts."""
        u = self.inner.encode(row)
        moments = Moments(u.numel()) if self._shape is None else Moments.of(self._moments.state())
        return self._scaled_by(moments, u[None])[0]

    def _samples(self) -> Iterator[Sample]:
        for sample in self.inner:
            yield sample if isinstance(sample, Label) else self._standard(sample)

    def _standard(self, sample: Sample) -> Sample:
        if not isinstance(sample.u, Tensor):
            raise _no_tensor(sample)
        if not bool(sample.u.isfinite().all()):
            raise _not_finite(sample.u)
        return replace(sample, u=self._scaled(sample.u[None])[0])

    def _blocks(self, size: Callable[[], int], turn: int) -> Iterator[Block]:
        for block in self.inner.blocks(size):
            self._check_turn(turn)
            if block.u is None and block.count == 1:
                sample = block.sample(0)
                yield block if isinstance(sample, Label) else replace(block, samples=[self._standard(sample)])
                continue
            if block.u is None or block.u_spec is not None:
                raise _no_tensor(block.sample(0))
            u, count = block.u[0], block.count
            if not bool(u.isfinite().all()):
                # The samples before the first that is not finite come first.
                count = int(u.isfinite().flatten(1).all(1).long().argmin())
            if count:
                yield replace(block.part(0, count), u=[self._scaled(u[:count])], samples=None)
            if count < block.count:
                raise _not_finite(u[count])

    def _scaled(self, u: Tensor) -> Tensor:
        """Inputs, one after the other along the first axis, each by what is known once it has come."""
        shape = list(u.shape[1:])
        if self._shape is None:
            self._shape, self._moments = shape, Moments(math.prod(shape))
        if self._shape != shape:
            raise SampleError(
                f"standardize has seen inputs of shape {self._shape}, and now one of {shape}: each entry has a "
                "mean of its own. Give all inputs one shape."
            )
        before = self._moments.n
        scaled = self._scaled_by(self._moments, u)
        if before < ENOUGH <= self._moments.n:
            self._tell_rounding(u.dtype)
        return scaled

    def _tell_rounding(self, dtype: torch.dtype) -> None:
        """Say so where a column differs by little more than its numbers are rounded by."""
        if not dtype.is_floating_point:
            return
        mean, spread = self._moments.now()
        step = np.abs(mean) * torch.finfo(dtype).eps
        # A column that never changes is told of only where whole numbers may be lost.
        blurred = np.where(spread > 0, step * STEPS > spread, step > 0.5)
        if blurred.any():
            entry = int(blurred.argmax())
            logger.warning(
                "entry %d of the input is %.6g on average and varies by %.3g, of which %s keeps little. Take a "
                "constant away from that column before, or read it with dtype=torch.float64",
                entry,
                mean[entry],
                spread[entry],
                dtype,
            )

    def _scaled_by(self, moments: Moments, u: Tensor) -> Tensor:
        """The same by these moments, in which the inputs are counted."""
        rows = u.detach().cpu().reshape(len(u), -1).double().numpy()
        mean, spread = moments.extend(rows)
        scaled = np.divide(rows - mean, spread, out=np.zeros_like(rows), where=spread > 0)
        np.clip(scaled, -self._clip, self._clip, out=scaled)
        measured = self.inner.numbers
        if measured is not None and len(measured) == rows.shape[1]:
            scaled = np.where(measured, scaled, rows)
        dtype = u.dtype if u.dtype.is_floating_point else torch.get_default_dtype()
        return torch.from_numpy(scaled).reshape(u.shape).to(u.device, dtype)


def _no_tensor(sample: Sample) -> SampleError:
    return SampleError(
        f"standardize takes inputs that are tensors, not {type(sample.u).__name__}. "
        "Put them together in a streams.map before."
    )


def _not_finite(u: Tensor) -> SampleError:
    return SampleError(
        f"an input of standardize is not finite: {u}. It would be part of every mean to come: mend the source, or "
        'use finite(stream, policy="skip") or "hold" before.'
    )
