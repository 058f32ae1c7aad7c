"""Nodes as the engines compute them: forward, and the vector-Jacobian product of one node at a time."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hamlearn._base.replay import Buffers, devices_of, drawing, tensors_of
from hamlearn.errors import ConfigError
from hamlearn.rules.derivatives import vjp
from hamlearn.rules.local.graph import Residual
from hamlearn.rules.local.wiring import Merged, Node

# Modules of exactly these types draw no random numbers; a node with any other is taken to, to be safe.
_STEADY = {
    Merged, Residual,
    nn.Linear, nn.Bilinear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Flatten, nn.Unflatten, nn.Identity, nn.LayerNorm,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.Sequential, nn.ModuleList, nn.Tanh, nn.ReLU,
    nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d,
    nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.Embedding,
}  # fmt: skip


class CellTrace:
    """One evaluation of a cell, ready to be differentiated: z·∂ĥ/∂inputs and z·∂ĥ/∂θ."""

    def __init__(self, out: Tensor, inputs: list[Tensor], theta: list[Tensor]) -> None:
        self.out, self.inputs, self.theta = out, inputs, theta

    def state(self) -> Tensor:
        """ĥ by itself, to be carried on: a node may return its input, its weight, or memory that it uses again."""
        return self.out.detach().clone()

    def both(self, z: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Messages to the nodes that were read, and the increments of ω before their sign."""
        grads = vjp([self.out], [z], [*self.inputs, *self.theta])
        return grads[: len(self.inputs)], grads[len(self.inputs) :]

    def messages(self, z: Tensor) -> list[Tensor]:
        """z·∂ĥ/∂inputs; the graph is kept."""
        return vjp([self.out], [z], self.inputs, keep=True)

    def gradients(self, z: Tensor) -> list[Tensor]:
        """z·∂ĥ/∂θ."""
        return vjp([self.out], [z], self.theta)


class Cell:
    """One node, computed by itself.

    Args:
        node: What it computes.
        slots: Positions of its weights among all that are learned.
        theta: Those weights.
        nodes: Names of all nodes, to tell what it reads of others from external input.
    """

    def __init__(self, node: Node, slots: list[int], theta: list[Tensor], nodes: Sequence[str]) -> None:
        self.node = node
        self.name = node.name
        self.names = (node.name,)
        self.sources = node.sources
        self.slots = slots
        self.theta = theta
        self.length = 1
        self.from_nodes = [i for i, source in enumerate(node.sources) if source in nodes]
        self.parents = [node.sources[i] for i in self.from_nodes]
        modules = list(node.module.modules())
        self.buffers = Buffers(modules)
        self.devices = devices_of(tensors_of(modules))
        self._steady = all(type(m) in _STEADY and "forward" not in vars(m) for m in modules)
        self._hooks = [hooks for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks)]

    def over(self, theta: list[Tensor]) -> Cell:
        """The same node with other weights, which its module holds meanwhile: tensors to be recorded."""
        twin = copy.copy(self)
        # A recorded step draws nothing.
        twin.theta, twin._steady, twin._hooks = theta, True, []
        return twin

    def start(self, h0: dict[str, Tensor]) -> Tensor:
        """First state."""
        return h0[self.name]

    def last(self, h: Tensor) -> Tensor:
        """What other nodes see."""
        return h

    def gather(self, h: Tensor, inputs: list[Tensor]) -> list[Tensor]:
        """What this cell computes from: its own state is not among it unless an edge says so."""
        return inputs

    def scatter(self, messages: list[Tensor]) -> tuple[Tensor | None, list[Tensor]]:
        """Messages to inside and to outside."""
        return None, messages

    def join(self, inner: Tensor | None, incoming: Tensor) -> Tensor:
        """Messages from inside and from outside, in the shape of z."""
        return incoming

    def split(self, x: Tensor) -> list[Tensor]:
        """One tensor per node."""
        return [x]

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """ĥ, to be carried on; ticks run without a graph."""
        return self._evaluate(inputs).clone()

    def trace(self, inputs: list[Tensor]) -> CellTrace:
        """ĥ with a graph from the nodes that were read and from θ."""
        inputs = list(inputs)
        for i in self.from_nodes:
            if not inputs[i].is_floating_point() and not inputs[i].is_complex():
                raise ConfigError(
                    f"node {self.sources[i]!r} gives {inputs[i].dtype}, along which no costate can pass: compute "
                    f"whole numbers inside a node, for example by one group with {self.name!r}"
                )
            inputs[i] = inputs[i].detach().requires_grad_()
        with torch.enable_grad():
            out = self._evaluate(inputs)
        return CellTrace(out, [inputs[i] for i in self.from_nodes], self.theta)

    def again(
        self, inputs: list[Tensor], draws: list[Tensor] | None, z: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Both products of a second evaluation, with the draws of the first; statistics do not move again."""
        kept = self.buffers.keep()
        if draws is None:
            trace = self.trace(inputs)
        else:
            with drawing(self.devices, draws):
                trace = self.trace(inputs)
        result = trace.both(z)
        self.buffers.put_back(kept)
        return result

    def may_draw(self) -> bool:
        """Whether the node may draw random numbers."""
        return not self._steady or any(self._hooks)

    def _evaluate(self, inputs: list[Any]) -> Tensor:
        """ĥ from copies: the inputs are other nodes' states, and a module may work in place."""
        return self.node(*(x.clone() if isinstance(x, Tensor) else x for x in inputs))
