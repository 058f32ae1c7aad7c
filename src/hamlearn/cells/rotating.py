"""Units of two numbers that turn and fade: the linear recurrent unit, and the recurrent trace unit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hamlearn.cells.columnar import Local, outer, side_by_side
from hamlearn.errors import ConfigError

Pair = tuple[Tensor, Tensor]


class LRU(nn.Module):
    """Linear units that turn and fade, each a complex number kept as two real slots (see `Columnar`; k = 2).

    h1⁺ = g⊙h1 − φ⊙h2 + γ⊙W1 u, h2⁺ = g⊙h2 + φ⊙h1 + γ⊙W2 u, with g = r cos θ, φ = r sin θ, r = exp(−exp ν) and
    γ = √(1 − r²): that is h⁺ = λ⊙h + γ⊙W u with λ = r exp(iθ), stable for all ν, and γ keeps h as large as u.

    It is linear in time. What is made of the memory belongs to the readout: let that be a small multi-layer
    perceptron.

    Args:
        inputs: Size of u.
        units: Number of units; a readout sees 2·`units` numbers.
        radius: Range of r = |λ| at the start.
        phase: Largest θ at the start; the smallest is 0. With small phases, units cannot tell one recent step
            from the next.

    Example:
        >>> import torch, hamlearn as hl
        >>> cell = hl.cells.LRU(3, 8)
        >>> readout = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        >>> network = hl.Network.recurrent(cell, readout)
        >>> [slot.shape for slot in network.initial_state(torch.zeros(5, 3))]
        [torch.Size([5, 8]), torch.Size([5, 8])]
    """

    visible = staticmethod(side_by_side)

    def __init__(
        self, inputs: int, units: int, radius: tuple[float, float] = (0.9, 0.999), phase: float = math.pi
    ) -> None:
        super().__init__()
        low, high = radius
        if not 0 < low <= high < 1:
            raise ConfigError(f"radius={radius!r} must be two numbers between 0 and 1, the smaller first")
        self.units, self.input_size, self.hidden_size = units, inputs, 2 * units
        wide = 1 / math.sqrt(inputs)
        self.nu = nn.Parameter(torch.empty(units).uniform_(low, high).log().neg().log())
        self.theta = nn.Parameter(torch.empty(units).uniform_(0, phase))
        self.weight_1 = nn.Parameter(torch.empty(units, inputs).uniform_(-wide, wide))
        self.weight_2 = nn.Parameter(torch.empty(units, inputs).uniform_(-wide, wide))

    def initial_state(self, u: Tensor) -> Pair:
        """Zeros, sized by the batch of `u`."""
        zeros = self.nu.new_zeros(*u.shape[:-1], self.units)
        return zeros, zeros.clone()

    def forward(self, u: Tensor, h: Pair) -> Pair:
        """h⁺."""
        g, phi, gamma, _ = self._turn()
        h1, h2 = self._moved(h, g, phi, gamma, *self._read(u))
        return h1, h2

    def local(self, u: Tensor, h: Sequence[Tensor]) -> Local:
        """h⁺, ∂h⁺/∂h and ∂h⁺/∂θ."""
        h1, h2 = h
        g, phi, gamma, r_nu = self._turn()
        x1, x2 = self._read(u)
        value = self._moved((h1, h2), g, phi, gamma, x1, x2)
        slope1, slope2 = (self._slope(h) for h in value)
        J = [[slope1 * g, slope1 * -phi], [slope2 * phi, slope2 * g]]
        # By r first, ∂γ/∂r = −r/γ, and then by ν.
        c, s, gamma_r = torch.cos(self.theta), torch.sin(self.theta), -torch.exp(-torch.exp(self.nu)) / gamma
        by_r1, by_r2 = c * h1 - s * h2 + gamma_r * x1, c * h2 + s * h1 + gamma_r * x2
        wide1, wide2 = outer(slope1 * gamma, u), outer(slope2 * gamma, u)
        F = {
            "nu": [slope1 * r_nu * by_r1, slope2 * r_nu * by_r2],
            "theta": [slope1 * (-phi * h1 - g * h2), slope2 * (g * h1 - phi * h2)],
            "weight_1": [wide1, torch.zeros_like(wide1)],
            "weight_2": [torch.zeros_like(wide2), wide2],
        }
        return value, J, F

    def _turn(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """G, φ, γ and ∂r/∂ν."""
        rate = torch.exp(self.nu)
        r = torch.exp(-rate)
        # 1 − r² by expm1: near r = 1 the difference itself would have lost its digits.
        gamma = torch.sqrt(-torch.expm1(-2 * rate))
        return r * torch.cos(self.theta), r * torch.sin(self.theta), gamma, -rate * r

    def _read(self, u: Tensor) -> Pair:
        return nn.functional.linear(u, self.weight_1), nn.functional.linear(u, self.weight_2)

    def _moved(self, h: Pair, g: Tensor, phi: Tensor, gamma: Tensor, x1: Tensor, x2: Tensor) -> list[Tensor]:
        h1, h2 = h
        return [
            self._activation(g * h1 - phi * h2 + gamma * x1),
            self._activation(g * h2 + phi * h1 + gamma * x2),
        ]

    def _activation(self, a: Tensor) -> Tensor:
        return a

    def _slope(self, value: Tensor) -> Tensor:
        """Of the activation, by what it gave."""
        return torch.ones_like(value)


class RTU(LRU):
    """Recurrent trace units: an `LRU` whose two slots each pass through a ReLU (see `Columnar`; k = 2).

    h1⁺ = relu(g⊙h1 − φ⊙h2 + γ⊙W1 u), h2⁺ = relu(g⊙h2 + φ⊙h1 + γ⊙W2 u), with g, φ and γ as there. The memory is not
    linear any more, and a linear readout will do.

    Args:
        inputs: Size of u.
        units: Number of units; a readout sees 2·`units` numbers.
        radius: Range of r at the start.
        phase: Largest θ at the start; the smallest is 0.

    Example:
        >>> import torch, hamlearn as hl
        >>> network = hl.Network.recurrent(hl.cells.RTU(3, 8), torch.nn.Linear(16, 1))
        >>> h1, h2 = network.initial_state(torch.zeros(5, 3))
        >>> h1.shape
        torch.Size([5, 8])
    """

    def _activation(self, a: Tensor) -> Tensor:
        return torch.relu(a)

    def _slope(self, value: Tensor) -> Tensor:
        return (value > 0).to(value.dtype)
