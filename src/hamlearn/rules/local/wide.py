"""Large linear layers of a node: the increments of their weights are kept as two factors."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from hamlearn._base.torch_private import tensor_hooks
from hamlearn.rules.local.layers import altered, flat

LARGE = 2**18
"""Entries from which on a gradient that is written out leaves the cache, and memory is what a tick waits for."""


class Factors(NamedTuple):
    """What the gradient of one weight is made of: its input, and where the derivative by its output is found."""

    x: Tensor
    edge: GradientEdge


class WideLayers:
    """A chain of PyTorch's own layers, called one by one to see what goes through its large linear ones.

    Args:
        leaves: The layers in order.
        theta: The weights that are learned, in the order in which gradients are asked for.
    """

    def __init__(self, leaves: list[nn.Module], theta: list[Tensor]) -> None:
        self.leaves = leaves
        uses = Counter(weight.data_ptr() for leaf in leaves for weight in leaf.parameters())
        self.large = {
            place: index
            for place, leaf in enumerate(leaves)
            if type(leaf) is nn.Linear
            for index, weight in enumerate(theta)
            if weight is leaf.weight and weight.numel() >= LARGE and uses[weight.data_ptr()] == 1
            if weight.is_floating_point()
        }

    @classmethod
    def of(cls, module: nn.Module, theta: list[Tensor]) -> WideLayers | None:
        """The layers of a module, if it is a chain of PyTorch's own with a large one among them; else `None`.

        Example:
            >>> net = nn.Sequential(nn.Linear(512, 512), nn.Tanh())
            >>> WideLayers.of(net, list(net.parameters())) is None, WideLayers.of(nn.Tanh(), []) is None
            (False, True)
        """
        leaves = flat(module)
        # Layers of other origin may use weights that are not their own.
        if leaves is None or not all(type(leaf).__module__.startswith("torch.nn.modules.") for leaf in leaves):
            return None
        if altered(module):
            return None
        wide = cls(leaves, theta)
        return wide if wide.large and all(weight.is_cpu for weight in theta) else None

    def evaluate(self, x: Tensor, found: dict[int, Factors]) -> Tensor:
        """The output of the last layer; `found` gets the factors of large weights, by their index."""
        given = x
        for place, leaf in enumerate(self.leaves):
            y = leaf(x)
            if self._pays(place, leaf, x, y):
                held = x.detach()
                # What was handed in may be written over before the costate is used.
                held = held.clone() if _shared(held, given) else held
                # The edge is that of this very value, even if the next layer writes over it.
                found[self.large[place]] = Factors(held, get_gradient_edge(y))
            x = y
        return x

    def _pays(self, place: int, leaf: Any, x: Tensor, y: Tensor) -> bool:
        """Whether the factors of a weight's gradient are smaller than the gradient, and all that it is."""
        if place not in self.large or y.grad_fn is None or x.layout is not torch.strided:
            return False
        rows = x.numel() // x.shape[-1]
        return rows * (x.shape[-1] + y.shape[-1]) <= leaf.weight.numel() and not tensor_hooks(leaf.weight)


def _shared(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors, of which the first is a plain one, may have memory in common."""
    return y.layout is not torch.strided or x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
