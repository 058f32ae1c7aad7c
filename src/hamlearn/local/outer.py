"""Increments of stacked weights as the two factors that they are made of."""

from __future__ import annotations

import torch
from torch import Tensor


class Outer:
    """Σ_b δ_b x_bᵀ for each layer of a stack, kept as δ and x: weights move by it without its being written out.

    Memory is what limits a tick of many layers, and these factors are smaller than the weights by their width.

    Args:
        delta: (layers, rows, n).
        x: (layers, rows, n).

    Example:
        >>> import torch
        >>> Outer(torch.ones(1, 1, 2), torch.tensor([[[3.0, 4.0]]])).dense()
        tensor([[[3., 4.],
                 [3., 4.]]])
    """

    def __init__(self, delta: Tensor, x: Tensor) -> None:
        self.delta = delta
        self.x = x

    def dense(self) -> Tensor:
        """The product, written out."""
        columns = self.delta.transpose(1, 2)
        return columns * self.x if self.x.shape[1] == 1 else torch.bmm(columns, self.x)

    def add_to_(self, target: Tensor, alpha: float) -> None:
        """Add alpha·Σ_b δ_b x_bᵀ to `target`, in one pass over it."""
        columns = self.delta.transpose(1, 2)
        if target.dtype is not self.x.dtype:
            # The sum is rounded to the type of narrow weights once.
            target.add_(self.dense(), alpha=alpha)
        elif self.x.shape[1] == 1:
            # For one row this is several times faster than a batched matrix product.
            target.addcmul_(columns, self.x, value=alpha)
        else:
            target.baddbmm_(columns, self.x, alpha=alpha)

    def bound(self) -> float:
        """A bound on the size of every entry of the product: each is at most ‖δ‖·‖x‖."""
        return torch.linalg.vector_norm(self.delta).item() * torch.linalg.vector_norm(self.x).item()


def dense(value: Tensor | Outer) -> Tensor:
    """A tensor, whichever form it was kept in."""
    return value.dense() if isinstance(value, Outer) else value
