"""Running means and standard deviations of vectors, whole blocks of them at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from hamlearn.errors import SampleError

Array = np.ndarray[Any, np.dtype[np.float64]]

_SPAN = 256
"""Values after which deviations are counted from the present mean, so that no rounding error can grow."""


class RunningMoments:
    """Mean and standard deviation of all tensors so far, with the same bits however blocks are cut.

    With c one of the means before, S₁ = Σ(u − c) and S₂ = Σ(u − c)² give the mean c + S₁/n and the variance
    S₂/n − (S₁/n)². Sums along time are made one after the other, so that a block is as good as its rows; c
    moves to the mean after every 256th row, wherever blocks end.

    Args:
        what: What the tensors are called in messages.

    Example:
        >>> import torch
        >>> moments = RunningMoments("inputs")
        >>> mean, spread = moments.extend(moments.rows(torch.tensor([[1.0], [3.0], [5.0]])))
        >>> mean.ravel().tolist(), spread.ravel().round(4).tolist()
        ([1.0, 2.0, 3.0], [0.0, 1.0, 1.633])
    """

    def __init__(self, what: str) -> None:
        self._what, self.n = what, 0
        self.shape: list[int] | None = None
        self._center = self._sum = self._square = np.zeros(0)

    def rows(self, values: Tensor) -> Array:
        """Tensors, one after the other along the first axis, as vectors; the first of all sets the shape."""
        shape = list(values.shape[1:])
        if self.shape is None:
            self.shape = shape
            self._center, self._sum, self._square = np.zeros((3, math.prod(shape)))
        if self.shape != shape:
            raise SampleError(
                f"standardize has seen {self._what} of shape {self.shape}, and now one of {shape}: each entry has "
                f"a mean of its own. Give all {self._what} one shape."
            )
        return values.detach().cpu().reshape(len(values), -1).double().numpy()

    def extend(self, rows: Array) -> tuple[Array, Array]:
        """Count rows in; answers mean and standard deviation as they are after each of them."""
        mean, spread = np.empty_like(rows), np.empty_like(rows)
        start = 0
        while start < len(rows):
            stop = min(len(rows), start + _SPAN - self.n % _SPAN)
            self._extend(rows[start:stop], mean[start:stop], spread[start:stop])
            start = stop
        return mean, spread

    def now(self) -> tuple[Array, Array]:
        """Mean and standard deviation of all rows so far; 0 before the first."""
        shift = self._sum / max(self.n, 1)
        return self._center + shift, np.sqrt(np.maximum(self._square / max(self.n, 1) - shift * shift, 0.0))

    def _extend(self, rows: Array, mean: Array, spread: Array) -> None:
        if self.n == 0:
            self._center = rows[0].copy()
        off = rows - self._center
        sums, squares = (
            np.cumsum(np.vstack(parts), 0)[1:] for parts in ((self._sum, off), (self._square, off * off))
        )
        count = np.arange(self.n + 1, self.n + 1 + len(rows), dtype=np.float64)[:, None]
        shift = sums / count
        np.add(self._center, shift, out=mean)
        # A column that never changed has sums of exactly 0; rounding must not make a variance negative.
        np.sqrt(np.maximum(squares / count - shift * shift, 0.0), out=spread)
        self.n += len(rows)
        self._sum, self._square = sums[-1].copy(), squares[-1].copy()
        if self.n % _SPAN == 0:
            shift = self._sum / self.n
            self._square = np.maximum(self._square - self._sum * shift, 0.0)
            self._center, self._sum = self._center + shift, np.zeros_like(self._sum)

    def state(self) -> list[Any]:
        """Everything, in values that JSON keeps exactly."""
        return [self.n, self.shape, self._center.tolist(), self._sum.tolist(), self._square.tolist()]

    def load(self, state: Sequence[Any]) -> None:
        """Continue where `state` was taken."""
        self.n, self.shape, *sums = state
        self._center, self._sum, self._square = (np.array(values, dtype=np.float64) for values in sums)


def in_deviations(rows: Array, mean: Array, spread: Array, clip: float) -> Array:
    """Rows in standard deviations from the mean, at most `clip` either way; 0 where there is no deviation."""
    scaled = np.divide(rows - mean, spread, out=np.zeros_like(rows), where=spread > 0)
    return np.clip(scaled, -clip, clip, out=scaled)
