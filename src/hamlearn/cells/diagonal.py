"""Neurons in continuous time that do not touch each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hamlearn.cells.columnar import Local, outer, side_by_side, slots
from hamlearn.errors import ConfigError


class Diagonal(nn.Module):
    """Neurons that do not touch each other: ḣ = λ⊙h + B u, with Re λ < 0 by construction (see `Columnar`).

    Real neurons decay (k = 1). Complex ones also turn (k = 2); their state is a pair of tensors (Re h, Im h),
    which a readout of `Network.recurrent` sees side by side. A step of Euler's method is stable while
    |1 + τλ| ≤ 1, so for real λ while τ ≤ 2/|λ|.

    Args:
        inputs: Size of u.
        size: Number of neurons; a complex one counts once and has two numbers.
        rotating: Whether λ is complex.
        decay: Range from which the decay rates −Re λ are drawn at the start, evenly in their logarithm.
        frequency: Largest |Im λ| at the start.

    Example:
        >>> import torch
        >>> cell = Diagonal(2, 5, rotating=True)
        >>> u = torch.zeros(3, 2)
        >>> [rate.shape for rate in cell(u, cell.initial_state(u))]
        [torch.Size([3, 5]), torch.Size([3, 5])]
    """

    visible = staticmethod(side_by_side)

    def __init__(
        self,
        inputs: int,
        size: int,
        rotating: bool = False,
        decay: tuple[float, float] = (0.01, 1.0),
        frequency: float = math.pi / 2,
    ) -> None:
        super().__init__()
        low, high = decay
        if not 0 < low <= high:
            raise ConfigError(f"decay={decay!r} must be two positive rates, the smaller first")
        self.units = size
        self.size = 2 * size if rotating else size
        self.inputs = nn.Linear(inputs, size, bias=False)
        self.inputs_imaginary = nn.Linear(inputs, size, bias=False) if rotating else None
        self.log_decay = nn.Parameter(torch.empty(size).uniform_(math.log(low), math.log(high)))
        self.frequency = nn.Parameter(torch.empty(size).uniform_(0, frequency)) if rotating else None

    def initial_state(self, u: Tensor) -> Any:
        """Zeros, sized by the batch of `u`."""
        zeros = self.log_decay.new_zeros(*u.shape[:-1], self.units)
        return zeros if self.frequency is None else (zeros, zeros.clone())

    def forward(self, u: Tensor, h: Any) -> Any:
        """ḣ."""
        rates = self._rates(u, slots(h))
        return rates[0] if self.frequency is None else tuple(rates)

    def local(self, u: Tensor, h: Sequence[Tensor]) -> Local:
        """ḣ, ∂ḣ/∂h and ∂ḣ/∂θ."""
        decay = torch.exp(self.log_decay).expand_as(h[0])
        wide = outer(torch.ones_like(h[0]), u)
        value = self._rates(u, list(h))
        if self.frequency is None:
            return value, [[-decay]], {"inputs.weight": [wide], "log_decay": [-decay * h[0]]}
        real, imaginary = h
        frequency = self.frequency.expand_as(real)
        none = torch.zeros_like(wide)
        F = {
            "log_decay": [-decay * real, -decay * imaginary],
            "frequency": [-imaginary, real],
            "inputs.weight": [wide, none],
            "inputs_imaginary.weight": [none, wide],
        }
        return value, [[-decay, -frequency], [frequency, -decay]], F

    def _rates(self, u: Tensor, h: list[Tensor]) -> list[Tensor]:
        decay = torch.exp(self.log_decay)
        if self.frequency is None or self.inputs_imaginary is None:
            return [self.inputs(u) - decay * h[0]]
        real, imaginary = h
        return [
            self.inputs(u) - decay * real - self.frequency * imaginary,
            self.inputs_imaginary(u) + self.frequency * real - decay * imaginary,
        ]
