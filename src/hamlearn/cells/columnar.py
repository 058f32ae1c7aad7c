"""What a cell of independent units says of itself, so that credit can be carried forward unit by unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

Local = tuple[list[Tensor], list[list[Tensor]], dict[str, list[Tensor]]]
"""(value, J, F) of `Columnar.local`."""


@runtime_checkable
class Columnar(Protocol):
    """A cell whose units do not see each other's past: each reads the input and its own state alone.

    The Jacobian ∂h⁺/∂h is then diagonal, unit by unit, and ∂h/∂θ has one column per weight and not one per weight
    and unit: it can be carried forward exactly, in memory of the size of the weights.

    **State.** Each unit has k numbers, k = 1, or 2 where it rotates. h is k separate tensors of shape
    `(batch…, units)`, the *slots*: a plain tensor where k = 1, a tuple of k tensors elsewhere. `batch…` is any
    number of leading axes, none included.

    **Weights.** Every parameter has the units along its first axis, shape `(units, …)`, and entry i has a part in
    the next state of unit i alone. Gates have parameters of their own and are not stacked.

    **Derivatives**, where the cell has them in closed form: an optional method

        local(u, h) -> (value, J, F)

    - `h`: the k slots, as a list (or tuple), also where k = 1;
    - `value`: a list of the k slots of what `forward(u, h)` returns, h⁺ for a cell that returns the next state, ḣ
      for one that returns a rate; it is this value whose derivatives follow;
    - `J[i][j]`: ∂value_i/∂h_j, each unit by its own state, of shape `(batch…, units)`;
    - `F`: from each parameter's name, as in the cell's `named_parameters()`, to a list over the slots i of
      ∂value_i/∂θ, of shape `(batch…, *parameter.shape)`; zeros where a parameter has no direct part in a slot.

    It draws no numbers and changes nothing. A cell without it has J and F by k vector-Jacobian products, since the
    units are independent.

    Attributes:
        units: Number of independent units.

    Example:
        >>> from hamlearn.cells import RTU, ColumnarGRU
        >>> isinstance(ColumnarGRU(2, 3), Columnar), ColumnarGRU(2, 3).units
        (True, 3)
        >>> value, J, F = RTU(2, 3).local(torch.ones(1, 2), [torch.zeros(1, 3), torch.zeros(1, 3)])
        >>> len(value), J[0][1].shape, all(len(parts) == 2 for parts in F.values())
        (2, torch.Size([1, 3]), True)
    """

    units: int

    def initial_state(self, u: Tensor) -> Any:
        """State before the first sample, sized by the batch of `u`."""

    def forward(self, u: Tensor, h: Any) -> Any:
        """The next state, or its rate."""


def outer(slope: Tensor, u: Tensor) -> Tensor:
    """Derivative by a weight of shape (units, inputs) of what has this slope in W u: (batch…, units, inputs).

    Example:
        >>> import torch
        >>> outer(torch.ones(5, 3), torch.ones(5, 2)).shape
        torch.Size([5, 3, 2])
    """
    return slope.unsqueeze(-1) * u.unsqueeze(-2)


def side_by_side(h: Tensor | Sequence[Tensor]) -> Tensor:
    """All numbers of a state in one tensor (batch…, k·units), slot after slot."""
    return h if isinstance(h, Tensor) else torch.cat(tuple(h), dim=-1)


def slots(h: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """The slots of a state as a list, also where there is one."""
    return [h] if isinstance(h, Tensor) else list(h)
