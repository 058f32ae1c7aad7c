"""Runs of layers of one shape kept as one batched tensor, so that a tick costs the same few calls at any depth."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from hamlearn.errors import ConfigError, SampleError
from hamlearn.rules.derivatives import vjp
from hamlearn.rules.local.costates import Outer
from hamlearn.rules.local.layers import Layer, layer_of
from hamlearn.rules.local.wiring import Node


class StackTrace:
    """One evaluation of all layers: δ = z·σ′, messages δW and increments δᵀx, each one batched product.

    `out` is σ(pre), and `pre` has a graph to it; `None` for tanh, whose δ is z(1 − out²). A residual layer shows
    x + out, and its message is z + δW.
    """

    def __init__(self, out: Tensor, pre: Tensor | None, x: Tensor, theta: list[Tensor], residual: bool) -> None:
        self.out = out
        self.pre = pre
        self.x = x
        self.theta = theta
        self.residual = residual

    def state(self) -> Tensor:
        """ĥ of all layers, to be carried on."""
        out = self.out.detach()
        return self.x + out if self.residual else out

    def both(self, z: Tensor) -> tuple[list[Tensor], list[Tensor | Outer]]:
        """Messages to the layers' inputs, and the increments of ω before their sign."""
        delta = self._delta(z)
        return self._messages(delta, z), self._gradients(delta)

    def messages(self, z: Tensor) -> list[Tensor]:
        """z·∂ĥ/∂x; the graph is kept."""
        return self._messages(self._delta(z), z)

    def gradients(self, z: Tensor) -> list[Tensor | Outer]:
        """z·∂ĥ/∂θ."""
        return self._gradients(self._delta(z))

    def _delta(self, z: Tensor) -> Tensor:
        if self.pre is None:
            return _rows(torch.ops.aten.tanh_backward.default(z, self.out))
        return _rows(vjp([self.out], [z], [self.pre], keep=True)[0])

    def _messages(self, delta: Tensor, z: Tensor) -> list[Tensor]:
        message = torch.bmm(delta, self.theta[0]).view(self.x.shape)
        return [message + z if self.residual else message]

    def _gradients(self, delta: Tensor) -> list[Tensor | Outer]:
        weight = Outer(delta, _rows(self.x))
        if len(self.theta) == 1:
            return [weight]
        return [weight, delta.squeeze(1) if delta.shape[1] == 1 else delta.sum(1)]


class LayerStack:
    """A chain of equal layers σ(W_l x_l + b_l) as one cell: state and costate are (layers, ..., n).

    Residual layers add x_l to that. x_0 comes from outside and x_l = h_{l−1}; a message to x_l is one to h_{l−1}.
    The layers' parameters become views of the stacked tensors, so that the module stays the owner of its weights.
    Ticks run without a graph.

    Args:
        nodes: The layers, each an `nn.Linear`, or one followed by elementwise functions, or a `Residual` of these.
        slots: Positions of the stacked tensors among all that are learned.
        nodes_all: Names of all nodes of the graph.
    """

    def __init__(self, nodes: Sequence[Node], slots: list[int], nodes_all: Sequence[str]) -> None:
        self.names = tuple(node.name for node in nodes)
        self.name = self.names[-1]
        self.sources = nodes[0].sources
        self.parents = [s for s in self.sources if s in nodes_all]
        self.slots = slots
        self.length = len(nodes)
        self.nodes = nodes
        self.modules = [m for node in nodes for m in node.module.modules()]
        layers = [cast(Layer, layer_of(node.module)) for node in nodes]
        self.residual, functions = layers[0].residual, layers[0].functions
        self.activation = functions[0] if len(functions) == 1 else nn.Sequential(*functions)
        self._tanh = type(self.activation) is nn.Tanh
        self._linear = [layer.linear for layer in layers]
        kinds = [[layer.weight for layer in self._linear]]
        if self._linear[0].bias is not None:
            kinds.append([layer.bias for layer in self._linear])
        self.theta = [torch.stack([w.detach() for w in kind]) for kind in kinds]
        self.own()

    def own(self) -> None:
        """Make the layers' weights views of the stacked tensors, which hold the same values."""
        self._places: list[list[tuple[Tensor, int]]] = []
        for index, layer in enumerate(self._linear):
            place = []
            for stacked, weight in zip(self.theta, (layer.weight, layer.bias), strict=False):
                weight.data = stacked[index]
                place.append((weight, weight.data_ptr()))
            self._places.append(place)
        self._lay_out()

    def _lay_out(self) -> None:
        self._columns = self.theta[0].transpose(1, 2)
        self._bias = self.theta[1].unsqueeze(1) if len(self.theta) == 2 else None

    def over(self, theta: list[Tensor]) -> LayerStack:
        """The same layers with other weights: tensors to be recorded, or wider."""
        twin = copy.copy(self)
        twin.theta = theta
        twin._lay_out()
        return twin

    def start(self, h0: dict[str, Tensor]) -> Tensor:
        """First state of all layers."""
        return torch.stack([h0[name] for name in self.names])

    def last(self, h: Tensor) -> Tensor:
        """What other nodes see: the last layer."""
        return h[-1]

    def gather(self, h: Tensor, inputs: list[Tensor]) -> list[Tensor]:
        """The inputs of all layers: one from outside, the others from the layer before."""
        if inputs[0].shape != h.shape[1:]:
            raise SampleError(
                f"node {self.names[0]!r} got {list(inputs[0].shape)} where its layers hold {list(h.shape[1:])}: "
                "the shape of the input changed. Keep the batch size; or mark the last sample of a sequence with "
                "boundary=True, or reset()"
            )
        return [torch.cat([inputs[0].unsqueeze(0), h[:-1]])]

    def scatter(self, messages: list[Tensor]) -> tuple[Tensor | None, list[Tensor]]:
        """Messages to inside (layer l's to l − 1) and to outside (the first layer's)."""
        return messages[0][1:], [messages[0][0]] if self.parents else []

    def join(self, inner: Tensor | None, incoming: Tensor) -> Tensor:
        """Messages from inside and, for the last layer, from outside."""
        assert inner is not None
        return torch.cat([inner, incoming.unsqueeze(0)])

    def split(self, x: Tensor) -> list[Tensor]:
        """One tensor per layer."""
        return list(x)

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """ĥ of all layers."""
        pre = self._affine(inputs[0])
        out = torch.tanh(pre) if self._tanh else self.activation(pre)
        return inputs[0] + out if self.residual else out

    def trace(self, inputs: list[Tensor]) -> StackTrace:
        """ĥ of all layers, ready to be differentiated."""
        pre = self._affine(inputs[0])
        if self._tanh:
            return StackTrace(torch.tanh(pre), None, inputs[0], self.theta, self.residual)
        with torch.enable_grad():
            return StackTrace(self.activation(pre.requires_grad_()), pre, inputs[0], self.theta, self.residual)

    def check_weights(self) -> None:
        """Raise if the weights of a layer have left the stack."""
        for name, place in zip(self.names, self._places, strict=True):
            if any(weight.data_ptr() != address for weight, address in place):
                raise ConfigError(
                    f"the weights of {name!r} have got new storage since they were stacked (module.to(), "
                    "weight.data = ...): build the learner afterwards, or pass stacked=False"
                )

    def _affine(self, x: Tensor) -> Tensor:
        if self._bias is None:
            return torch.bmm(_rows(x), self._columns).view(x.shape)
        return torch.baddbmm(self._bias, _rows(x), self._columns).view(x.shape)


def _rows(x: Tensor) -> Tensor:
    return x if x.dim() == 3 else x.reshape(x.shape[0], -1, x.shape[-1])
