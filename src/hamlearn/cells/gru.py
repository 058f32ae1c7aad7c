"""A GRU in columns: every unit is a gated recurrent net of one neuron."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hamlearn.cells.columnar import Local, outer
from hamlearn.errors import ConfigError


class ColumnarGRU(nn.Module):
    """Gated units that see the input and their own past only (see `Columnar`; k = 1).

    p = σ(Wₚ u + vₚ⊙h + bₚ) (update), r = σ(Wᵣ u + vᵣ⊙h + bᵣ) (reset), c = tanh(W u + r⊙v⊙h + b) (candidate),
    h⁺ = h + p⊙(c − h).

    A unit forgets at the rate p. By the chrono rule its bias starts at −log T with T uniform in 1…`t_max`, so that
    the units begin with time constants spread over that range. W starts uniform in ±1/√inputs, v and the other
    biases in ±1: a unit has one neighbour in time, itself, and units differ in where they bend.

    Args:
        inputs: Size of u.
        units: Number of units.
        t_max: Longest time constant at the start, in steps; about as long as what is to be remembered.

    Example:
        >>> import torch, hamlearn as hl
        >>> network = hl.Network.recurrent(hl.cells.ColumnarGRU(3, 8, t_max=20), torch.nn.Linear(8, 1))
        >>> h = network.initial_state(torch.zeros(5, 3))
        >>> network.output_net(None, network.state_net(torch.zeros(5, 3), h)).shape
        torch.Size([5, 1])
    """

    def __init__(self, inputs: int, units: int, t_max: float = 10.0) -> None:
        super().__init__()
        if not t_max >= 1 or math.isinf(t_max):
            raise ConfigError(f"t_max={t_max!r} must be a number of steps, at least 1")
        self.units = self.hidden_size = units
        self.input_size = inputs
        wide = 1 / math.sqrt(inputs)
        for gate in ("update", "reset", "candidate"):
            setattr(self, f"weight_{gate}", nn.Parameter(torch.empty(units, inputs).uniform_(-wide, wide)))
            setattr(self, f"recurrent_{gate}", nn.Parameter(torch.empty(units).uniform_(-1, 1)))
            setattr(self, f"bias_{gate}", nn.Parameter(torch.empty(units).uniform_(-1, 1)))
        with torch.no_grad():
            self.bias_update.copy_(-torch.empty(units).uniform_(1, t_max).log())

    weight_update: nn.Parameter
    weight_reset: nn.Parameter
    weight_candidate: nn.Parameter
    recurrent_update: nn.Parameter
    recurrent_reset: nn.Parameter
    recurrent_candidate: nn.Parameter
    bias_update: nn.Parameter
    bias_reset: nn.Parameter
    bias_candidate: nn.Parameter

    def initial_state(self, u: Tensor) -> Tensor:
        """Zeros, sized by the batch of `u`."""
        return self.bias_update.new_zeros(*u.shape[:-1], self.units)

    def forward(self, u: Tensor, h: Tensor) -> Tensor:
        """h⁺."""
        p, _, c = self._gates(u, h)
        return h + p * (c - h)

    def local(self, u: Tensor, h: Sequence[Tensor]) -> Local:
        """h⁺, ∂h⁺/∂h and ∂h⁺/∂θ."""
        (own,) = h
        p, r, c = self._gates(u, own)
        change = c - own
        # Slopes of h⁺ in what each gate sums up.
        update = change * p * (1 - p)
        candidate = p * (1 - c * c)
        reset = candidate * self.recurrent_candidate * own * r * (1 - r)
        J = 1 - p + update * self.recurrent_update + reset * self.recurrent_reset
        J = J + candidate * r * self.recurrent_candidate
        F = {}
        for gate, slope, seen in (
            ("update", update, own),
            ("reset", reset, own),
            ("candidate", candidate, r * own),
        ):
            F[f"weight_{gate}"] = [outer(slope, u)]
            F[f"recurrent_{gate}"] = [slope * seen]
            F[f"bias_{gate}"] = [slope]
        return [own + p * change], [[J]], F

    def _gates(self, u: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        linear = nn.functional.linear
        p = torch.sigmoid(linear(u, self.weight_update, self.bias_update) + self.recurrent_update * h)
        r = torch.sigmoid(linear(u, self.weight_reset, self.bias_reset) + self.recurrent_reset * h)
        own = r * (self.recurrent_candidate * h)
        return p, r, torch.tanh(linear(u, self.weight_candidate, self.bias_candidate) + own)
