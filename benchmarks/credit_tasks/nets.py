"""The dense net that the other rules were made for, and lanes that restart each at its own time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hamlearn.cells.columnar import Local, outer, slots


class DenseTanh(nn.Module):
    """h⁺ = tanh(W u + U h + b): every unit sees all others' past. W, U start uniform in ±1/√n, b at 0.

    The spectral radius of such a U is about 1/√3 = 0.58: at first, what the state holds shrinks to that share or
    below at every step. With `radius`, U starts normal instead, with deviation `radius`/√n, and its spectral
    radius is about `radius` for large n; W stays as it is.

    `local` is each unit's own part alone, and so not the whole derivative; `whole` has all of ∂h⁺/∂h.

    Args:
        inputs: Size of u.
        units: n.
        radius: Spectral radius of U at the start, about; `None`: U uniform in ±1/√n.

    Example:
        >>> import torch
        >>> cell = DenseTanh(2, 3)
        >>> cell.whole(torch.ones(5, 2), torch.zeros(5, 3))[1].shape
        torch.Size([5, 3, 3])
    """

    def __init__(self, inputs: int, units: int, radius: float | None = None) -> None:
        super().__init__()
        self.units = self.hidden_size = units
        self.input_size = inputs
        wide = 1 / math.sqrt(units)
        self.weight = nn.Parameter(torch.empty(units, inputs).uniform_(-wide, wide))
        self.recurrent = nn.Parameter(torch.empty(units, units).uniform_(-wide, wide))
        if radius is not None:
            nn.init.normal_(self.recurrent, std=radius * wide)
        self.bias = nn.Parameter(torch.zeros(units))

    def initial_state(self, u: Tensor) -> Tensor:
        """Zeros, sized by the batch of `u`."""
        return self.bias.new_zeros(*u.shape[:-1], self.units)

    def forward(self, u: Tensor, h: Tensor) -> Tensor:
        """h⁺."""
        linear = nn.functional.linear
        return torch.tanh(linear(u, self.weight, self.bias) + linear(h, self.recurrent))

    def local(self, u: Tensor, h: Sequence[Tensor]) -> Local:
        """h⁺, the diagonal of ∂h⁺/∂h, and ∂h⁺/∂θ at a given h."""
        (before,) = h
        after = self(u, before)
        slope = 1 - after * after
        F = {"weight": [outer(slope, u)], "recurrent": [outer(slope, before)], "bias": [slope]}
        return [after], [[slope * torch.diagonal(self.recurrent)]], F

    def whole(self, u: Tensor, h: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """h⁺, ∂h⁺/∂h (…, n, n), and ∂h⁺/∂θ at a given h, which has each unit's own weights alone."""
        (after,), _, F = self.local(u, [h])
        return after, (1 - after * after).unsqueeze(-1) * self.recurrent, {name: own for name, (own,) in F.items()}


class Restarting(nn.Module):
    """A cell in lanes that begin episodes each at its own time: where the last input is 1, h is 0 before the step.

    A boundary of a stream restarts all lanes at once. Here the flag comes with the input, and
    h⁺ = cell(u, (1 − flag) h). That is exact for every credit: ∂h⁺/∂h is zero at the flag too, so that nothing
    that was carried for credit, backward or forward, passes it. For cells that start at 0.

    Args:
        cell: Takes u without its last column.

    Example:
        >>> import torch
        >>> cell = Restarting(DenseTanh(2, 3))
        >>> begins = torch.tensor([[0.5, 0.5, 1.0]])
        >>> torch.equal(cell(begins, torch.ones(1, 3)), cell(begins, torch.zeros(1, 3)))
        True
    """

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.cell = cell
        self.units, self.input_size, self.hidden_size = cell.units, cell.input_size + 1, cell.hidden_size
        self.visible = getattr(cell, "visible", _itself)

    def initial_state(self, u: Tensor) -> Any:
        """As the cell's."""
        return self.cell.initial_state(u[..., :-1])

    def forward(self, u: Tensor, h: Any) -> Any:
        """h⁺."""
        kept = [(1 - u[..., -1:]) * slot for slot in slots(h)]
        return self.cell(u[..., :-1], kept[0] if isinstance(h, Tensor) else tuple(kept))

    def local(self, u: Tensor, h: Sequence[Tensor]) -> Local:
        """As the cell's, with ∂h⁺/∂h = 0 where a lane restarts."""
        keep = 1 - u[..., -1:]
        value, J, F = self.cell.local(u[..., :-1], [keep * slot for slot in h])
        return value, [[keep * j for j in row] for row in J], {f"cell.{name}": f for name, f in F.items()}

    def whole(self, u: Tensor, h: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """As the cell's, with ∂h⁺/∂h = 0 where a lane restarts."""
        keep = 1 - u[..., -1:]
        value, J, F = self.cell.whole(u[..., :-1], keep * h)
        return value, keep.unsqueeze(-1) * J, {f"cell.{name}": f for name, f in F.items()}


def _itself(h: Tensor) -> Tensor:
    return h
