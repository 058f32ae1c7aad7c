"""A fixed-point grid on which floating-point addition is exact.

A float of p significant bits holds every multiple n·q of a power of two q with |n| ≤ 2^p. If q is chosen
so that 2^p·q covers the bound, sums and differences of grid points within the bound are grid points again
and IEEE arithmetic returns them exactly, hence h − (h' − h) = h' holds bit-for-bit. That is all that
a reversible rule needs: only its increments are rounded, once, to the grid.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hamlearn._base.numbers import as_number
from hamlearn.errors import ConfigError, NonFiniteError
from hamlearn.reversible._errors import GridOverflowError

_CHECK_EVERY = 64  # steps between two looks at the extremes: one device synchronisation each


class Grid:
    """The multiples of `quantum` below `bound`, held in floats of type `dtype`.

    The quantum is the smallest power of two with which `dtype` represents every multiple up to `bound`:
    2^⌈log2 bound⌉ / 2^p, with p = 24 for float32 and 53 for float64.

    Example:
        >>> grid = Grid(bound=64.0, dtype=torch.float32)
        >>> grid.quantum == 2.0 ** (6 - 24)
        True
        >>> a, b = grid.snap(torch.tensor([0.1])), grid.snap(torch.tensor([17.3]))
        >>> bool((a + b) - b == a)
        True
    """

    def __init__(self, bound: float, dtype: torch.dtype) -> None:
        if not 2.0**-60 <= as_number(bound) <= 2.0**60:
            raise ConfigError(
                f"bound={bound!r} is not a usable range for the states: give the largest magnitude that a "
                "state may reach, for example bound=64.0."
            )
        self.bound = float(bound)
        digits = 1 - round(math.log2(torch.finfo(dtype).eps))
        self.quantum = 2.0 ** (math.ceil(math.log2(bound)) - digits)

    def snap(self, x: Tensor, scale: float = 1.0) -> Tensor:
        """Round `scale * x` to the grid; the scaling by the quantum, a power of two, is exact."""
        return x.mul(scale / self.quantum).round_().mul_(self.quantum)

    def straight_through(self, x: Tensor) -> Tensor:
        """Round to the grid with the gradient of the identity."""
        return _StraightThrough.apply(x, self)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, grid: Grid) -> Tensor:
        return grid.snap(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class Watch:
    """Sees that every state stays within the grid, without a device synchronisation at every step."""

    def __init__(self, grid: Grid, device: torch.device, dtype: torch.dtype) -> None:
        self.grid = grid
        self.low = torch.zeros(_CHECK_EVERY, device=device, dtype=dtype)
        self.high = torch.zeros_like(self.low)
        # Views made once: indexing at every step would cost more than the reduction of a small state.
        self.slots = list(zip(self.low.unbind(), self.high.unbind(), strict=True))
        self.labels: list[int] = []

    def see(self, k: int, h: Tensor) -> None:
        """Note the extremes of the state h_k."""
        if h.numel():
            torch.aminmax(h.detach(), out=self.slots[len(self.labels)])
            self.labels.append(k)
        if len(self.labels) == _CHECK_EVERY:
            self.check()

    def check(self) -> None:
        """Raise if a state noted since the last check was out of range."""
        seen, self.labels = self.labels, []
        peaks = torch.maximum(-self.low, self.high)[: len(seen)].tolist()
        for k, peak in zip(seen, peaks, strict=True):
            if not math.isfinite(peak):
                raise NonFiniteError(
                    f"the state of step {k} is {peak}: the field diverged, or its weights or u are not finite. "
                    "Lower tau, or use a field that oscillates; hamlearn.reversible.stability tells whether it "
                    "does."
                )
            if not peak < self.grid.bound:
                raise GridOverflowError(
                    f"the state of step {k} reached {peak:.6g}, outside the fixed-point range "
                    f"|h| < {self.grid.bound:g} (grid of {self.grid.quantum:.3g}). Give a larger bound "
                    "(state_dtype=torch.float64 keeps the grid fine with it) or a smaller tau; "
                    "hamlearn.reversible.stability tells whether the field is stable at this tau."
                )
