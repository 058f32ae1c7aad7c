"""How large the gradients of wide layers can be, told by the two factors that they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hamlearn._base.torch_private import linear_layers, tensor_hooks

WIDE = 1 << 17
"""Entries of a weight from which on its gradient is not read, where its size can be told without that."""
MOST = 1000
"""Nodes of a graph that are looked at for that: to look at more would take longer than to read."""


class Slopes:
    """‖∂L/∂W‖ ≤ ‖δ‖·‖x‖ of layers y = x Wᵀ + b, with δ = ∂L/∂y (Cauchy and Schwarz): no pass over a gradient.

    To be made before the loss is differentiated, and asked afterwards.

    Args:
        L: The loss.
        theta: Weights that are differentiated by.
        wide: Which of them are wide.

    Example:
        >>> layer, x = torch.nn.Linear(3, 2), torch.ones(1, 3)
        >>> L = layer(x).sum()
        >>> slopes = Slopes(L, [layer.weight], [0])
        >>> (gradient,) = torch.autograd.grad(L, [layer.weight])
        >>> round(slopes.bounds()[0], 3), round(gradient.norm().item(), 3)
        (2.449, 2.449)
    """

    def __init__(self, L: Tensor, theta: Sequence[Tensor], wide: Sequence[int]) -> None:
        self._factors: dict[int, tuple[Tensor, list[Tensor]]] = {}
        if type(L) is not Tensor or L.grad_fn is None:
            return
        for weight, node, x in linear_layers(L, MOST):
            for index in wide:
                if theta[index] is weight and not tensor_hooks(weight):
                    deltas: list[Tensor] = []
                    self._factors[index] = x, deltas
                    node.register_prehook(_keeping(deltas))

    def bounds(self) -> dict[int, float]:
        """By index, what the norm of a gradient is at most; only of weights of which that is known."""
        norm = torch.linalg.vector_norm
        return {
            index: norm(x).item() * norm(delta[0]).item()
            for index, (x, delta) in self._factors.items()
            if len(delta) == 1
        }


def _keeping(kept: list[Tensor]) -> Any:
    def keep(grads: tuple[Tensor, ...]) -> None:
        kept.append(grads[0])

    return keep
