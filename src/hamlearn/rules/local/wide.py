"""Large linear layers of a node: the increments of their weights are kept as two factors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional
from torch.overrides import TorchFunctionMode

LARGE = 2**18
"""Entries from which on a gradient that is written out leaves the cache, and memory is what a tick waits for."""


class Factors(NamedTuple):
    """What the gradient of one weight is made of: its input, and where the derivative by its output is found."""

    x: Tensor
    edge: GradientEdge


def large(weight: Tensor) -> bool:
    """Whether the gradient of a weight should not be written out."""
    return weight.is_cpu and weight.dim() == 2 and weight.is_floating_point() and weight.numel() >= LARGE


class LargeLayers(TorchFunctionMode):
    """Within, sees the linear layers that large weights are used by.

    Args:
        theta: The weights of a node.
    """

    def __init__(self, theta: Sequence[Tensor]) -> None:
        super().__init__()
        # A hook of a weight wants to see its gradient.
        self._index = {id(w): i for i, w in enumerate(theta) if large(w) and not w._backward_hooks}
        self._uses = Counter[int]()
        self._found: dict[int, Factors] = {}

    def factors(self) -> dict[int, Factors]:
        """By the place of the weight: those of weights that one linear layer has used, and nothing else."""
        return {index: found for index, found in self._found.items() if self._uses[index] == 1}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One call of PyTorch."""
        y = func(*args, **(kwargs or {}))
        for given in (*args, *(kwargs or {}).values()):
            for one in given if isinstance(given, list | tuple) else (given,):
                index = self._index.get(id(one))
                if index is not None:
                    self._uses[index] += 1
                    if func is functional.linear and one is args[1] and _pays(args[0], one, y):
                        # In memory of its own: the source may use its memory again before ω is used. The edge is
                        # that of this very value, even if the next layer writes over it.
                        self._found[index] = Factors(args[0].detach().clone(), get_gradient_edge(y))
        return y


def _pays(x: Tensor, weight: Tensor, y: Tensor) -> bool:
    """Whether the factors are smaller than the gradient, and of its type, which they are not under autocast."""
    if y.grad_fn is None or x.layout is not torch.strided or not x.dtype == y.dtype == weight.dtype:
        return False
    rows = x.numel() // x.shape[-1]
    return rows * (x.shape[-1] + y.shape[-1]) <= weight.numel()
