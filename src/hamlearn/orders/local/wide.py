"""Large linear layers of a node, found so that their weights' increments can be kept as two factors."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from hamlearn._base.torch_private import global_hooks, tensor_hooks
from hamlearn.orders.local.layers import flat, module_hooks

LARGE = 2**18
"""Entries from which on a gradient that is written out leaves the cache, and memory is what a tick waits for."""


class Factors(NamedTuple):
    """What the gradient of one weight is made of: its input, and where the derivative by its output is found."""

    x: Tensor
    edge: GradientEdge


class WideLayers:
    """A chain of PyTorch's own layers, to be called one by one to see what goes through its large linear ones.

    Args:
        leaves: The layers in order.
        holders: The modules that would call them.
        theta: The weights that are learned, in the order in which gradients are asked for.
    """

    def __init__(self, leaves: list[nn.Module], holders: list[nn.Module], theta: list[Tensor]) -> None:
        self.leaves = leaves
        uses = Counter(weight.data_ptr() for leaf in leaves for weight in leaf.parameters())
        self._large = {
            place: index
            for place, leaf in enumerate(leaves)
            if type(leaf) is nn.Linear
            for index, weight in enumerate(theta)
            if weight is leaf.weight and weight.numel() >= LARGE and uses[weight.data_ptr()] == 1
            if weight.is_floating_point()
        }
        self._holders = holders

    @classmethod
    def of(cls, module: nn.Module, theta: list[Tensor]) -> WideLayers | None:
        """The layers of a module, where it is a chain of PyTorch's own with a large one among them; else `None`.

        Example:
            >>> net = nn.Sequential(nn.Linear(512, 512), nn.Tanh())
            >>> WideLayers.of(net, list(net.parameters())) is None, WideLayers.of(nn.Tanh(), []) is None
            (False, True)
        """
        leaves = flat(module)
        # Layers of other origin may use weights that are not their own.
        if leaves is None or not all(type(leaf).__module__.startswith("torch.nn.modules.") for leaf in leaves):
            return None
        holders = [m for m in module.modules() if m not in set(leaves)]
        wide = cls(leaves, holders, theta)
        return wide if wide._large and all(weight.is_cpu for weight in theta) else None

    def usual(self) -> bool:
        """Whether nothing has to be called, at this moment, but the layers themselves."""
        called = any(any(module_hooks(m)) or "forward" in vars(m) for m in self._holders)
        return not (called or global_hooks() or torch.is_autocast_enabled("cpu"))

    def walk(self) -> Walk:
        """A way through the layers that remembers what it sees; for one evaluation."""
        return Walk(self)

    def factors(self, place: int, x: Tensor, y: Tensor) -> tuple[int, Factors] | None:
        """The weight of the layer at a place, by its index, and what its gradient is made of, if that is small."""
        if place not in self._large or y.grad_fn is None or x.layout is not torch.strided:
            return None
        leaf: Any = self.leaves[place]
        rows = x.numel() // x.shape[-1]
        called = any(module_hooks(leaf)) or tensor_hooks(leaf.weight) or "forward" in vars(leaf)
        if called or rows * (x.shape[-1] + y.shape[-1]) > leaf.weight.numel():
            return None
        # The edge is that of this very value, even if the next layer writes over it.
        return self._large[place], Factors(x.detach(), get_gradient_edge(y))


class Walk:
    """One evaluation of a chain.

    Attributes:
        found: What the gradients of large weights are made of, by the weights' indices.
    """

    def __init__(self, layers: WideLayers) -> None:
        self._layers = layers
        self.found: dict[int, Factors] = {}

    def __call__(self, x: Tensor) -> Tensor:
        """The output of the last layer."""
        given = x
        for place, leaf in enumerate(self._layers.leaves):
            y = leaf(x)
            seen = self._layers.factors(place, x, y)
            if seen is not None:
                index, (held, edge) = seen
                # What was handed in may be written over before the costate is used.
                self.found[index] = Factors(held.clone() if _shared(held, given) else held, edge)
            x = y
        return x


def _shared(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors, of which the first is a plain one, may have memory in common."""
    return y.layout is not torch.strided or x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
