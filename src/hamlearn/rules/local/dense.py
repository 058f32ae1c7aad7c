"""Plain layers, σ(Wx + b), with derivatives written out; equal ones in a row are kept as one batched tensor."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from hamlearn.errors import ConfigError, SampleError
from hamlearn.rules.derivatives import vjp
from hamlearn.rules.local.costates import Outer
from hamlearn.rules.local.graph import Residual
from hamlearn.rules.local.wiring import Merged, Node, Wiring, has_hooks

_ELEMENTWISE = (nn.Tanh, nn.ReLU, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus, nn.Identity)


class Layer(NamedTuple):
    """σ(Wx + b), or x plus that.

    Attributes:
        linear: Holds W and b.
        functions: Whose composition is σ; none of them works in place.
        residual: Whether x is added.
    """

    linear: nn.Linear
    functions: tuple[nn.Module, ...]
    residual: bool


def layer_of(module: nn.Module) -> Layer | None:
    """The layer that a module is; `None` if a call does more, as by a hook, or if a weight is frozen.

    Example:
        >>> layer_of(Residual(nn.Sequential(nn.Linear(2, 2), nn.Tanh())))
        Layer(linear=Linear(in_features=2, out_features=2, bias=True), functions=(Tanh(),), residual=True)
        >>> layer_of(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))) is None
        True
    """
    residual = type(module) is Residual
    leaves = _leaves(module.branch if residual else module)  # type: ignore[arg-type]
    if leaves is None or any(has_hooks(m) or "forward" in vars(m) for m in module.modules()):
        return None
    linear, functions = leaves[0], leaves[1:]
    if type(linear) is not nn.Linear or not all(type(m) in _ELEMENTWISE for m in functions):
        return None
    # The derivatives of layers are written out for real numbers.
    plain = all(w.is_floating_point() and w.requires_grad and not w._backward_hooks for w in linear.parameters())
    return Layer(linear, tuple(map(_out_of_place, functions)), residual) if plain else None


def _leaves(module: nn.Module) -> list[nn.Module] | None:
    """What a module calls one after the other, which may be one module twice; `None`: not a chain."""
    if isinstance(module, Merged):
        parts = [_leaves(node.module) for node in module.group] if module.straight else [None]
    elif type(module) is nn.Sequential:
        parts = [_leaves(child) for child in module]
    else:
        return None if list(module.children()) else [module]
    return None if any(part is None for part in parts) else [m for part in parts for m in part or ()]


def _out_of_place(function: nn.Module) -> nn.Module:
    """The same function, leaving its input as it was: layers are differentiated by it."""
    twin = copy.copy(function)
    if getattr(twin, "inplace", False):
        twin.inplace = False  # type: ignore[assignment]
    return twin


def runs(wiring: Wiring, beta_of: Mapping[Tensor, object], longest: int) -> list[tuple[list[Node], bool]]:
    """The nodes in order, neighbours that may be stacked in one list; and whether they are plain layers.

    Args:
        wiring: The nodes.
        beta_of: β of each weight; layers of one stack have the same.
        longest: How many layers a stack may hold; 0: no node is treated as a plain layer.
    """
    read_by = Counter(source for node in wiring.nodes for source in node.sources)
    # By memory, which tells weights that share it from those that only look alike.
    uses = Counter(weight.data_ptr() for node in wiring.nodes for weight in node.module.parameters())
    result: list[tuple[list[Node], bool]] = []
    kind = None
    for node in wiring.nodes:
        layer = layer_of(node.module) if longest else None
        if layer is not None and any(uses[w.data_ptr()] > 1 for w in layer.linear.parameters()):
            layer = None
        before, kind = kind, None if layer is None else _kind(layer, beta_of)
        follows = bool(result) and node.sources == (result[-1][0][-1].name,)
        alone = follows and read_by[node.sources[0]] == 1 and node.sources[0] not in wiring.outputs
        if alone and kind is not None and kind == before and len(result[-1][0]) < longest:
            result[-1][0].append(node)
        else:
            result.append(([node], layer is not None))
    return result


def _kind(layer: Layer, beta_of: Mapping[Tensor, object]) -> str | None:
    """What two layers must share to be stacked; `None` for a layer that cannot be."""
    linear = layer.linear
    betas = [beta_of[w] for w in linear.parameters()]
    if linear.in_features != linear.out_features or any(isinstance(b, Tensor) and b.dim() for b in betas):
        return None
    kinds = [beta if isinstance(beta, float | int) else id(beta) for beta in betas]
    return f"{layer.residual} {[linear, *layer.functions]} {linear.weight.dtype} {linear.weight.device} {kinds}"


class DenseTrace:
    """One evaluation of all layers: δ = z·σ′, messages δW and increments δᵀx, each one batched product.

    `out` is σ(pre), and `pre` has a graph to it; `None` for tanh, whose δ is z(1 − out²). A residual layer shows
    x + out, and its message is z + δW.
    """

    def __init__(self, cell: Dense, out: Tensor, pre: Tensor | None, x: Tensor, weight: Tensor) -> None:
        self.cell, self.out, self.pre, self.x, self.weight = cell, out, pre, x, weight

    def state(self) -> Tensor:
        """ĥ of all layers, to be carried on."""
        out = self.out.detach()
        return self.x + out if self.cell.residual else out

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
        message = torch.bmm(delta, self.weight)
        if self.x.dim() != 3:
            message = message.view(self.x.shape)
        return [message + z if self.cell.residual else message]

    def _gradients(self, delta: Tensor) -> list[Tensor | Outer]:
        x = _rows(self.x)
        bias = delta.squeeze(1) if delta.shape[1] == 1 else delta.sum(1)
        if self.cell.length == 1:
            # The weights of a single layer are those of its module, without a first axis.
            delta, x, bias = delta[0], x[0], bias[0]
        found: list[Tensor | Outer] = [Outer(delta, x), bias]
        return found[: len(self.cell.slots)]


class Dense:
    """A layer σ(Wx + b), or a chain of equal ones, as one cell: state and costate are (layers, ..., n).

    Residual layers add x_l to that. x_0 comes from outside and x_l = h_{l−1}; a message to x_l is one to h_{l−1}.
    The parameters of several layers become views of the stacked tensors, so that the module stays the owner of its
    weights. Ticks run without a graph.

    Args:
        nodes: The layers, each an `nn.Linear`, or one followed by elementwise functions, or a `Residual` of these.
        slots: Positions of the weights among all that are learned.
        nodes_all: Names of all nodes of the graph.
    """

    def __init__(self, nodes: Sequence[Node], slots: list[int], nodes_all: Sequence[str]) -> None:
        self.names = tuple(node.name for node in nodes)
        self.name = self.names[-1]
        self.sources = nodes[0].sources
        self.parents = [s for s in self.sources if s in nodes_all]
        self.slots, self.nodes, self.length = slots, nodes, len(nodes)
        self.modules = [m for node in nodes for m in node.module.modules()]
        layers = [cast(Layer, layer_of(node.module)) for node in nodes]
        self.residual, functions = layers[0].residual, layers[0].functions
        self.activation = functions[0] if len(functions) == 1 else nn.Sequential(*functions)
        self._tanh = type(self.activation) is nn.Tanh
        self._linear = [layer.linear for layer in layers]
        self.width = self._linear[0].in_features
        kinds = list(zip(*(layer.parameters() for layer in self._linear), strict=True))
        self.theta: list[Tensor] = [kind[0] for kind in kinds]
        if self.length > 1:
            self.theta = [torch.stack([w.detach() for w in kind]) for kind in kinds]
        self.own()

    def own(self) -> None:
        """Make the weights of several layers views of the stacked tensors, which hold the same values."""
        self._places: list[list[tuple[Tensor, int]]] = []
        for index, layer in enumerate(self._linear):
            place = list[tuple[Tensor, int]]()
            for held, weight in zip(self.theta, layer.parameters(), strict=True):
                if self.length > 1:
                    weight.data = held[index]
                place.append((weight, weight.data_ptr()))
            self._places.append(place)
        self._lay_out()

    def _lay_out(self) -> None:
        """Weights and biases with an axis of layers, as products take them."""
        theta = self.theta if self.length > 1 else [w.detach().unsqueeze(0) for w in self.theta]
        self._weight, self._columns = theta[0], theta[0].transpose(1, 2)
        self._bias = theta[1].unsqueeze(1) if len(theta) == 2 else None

    def over(self, theta: list[Tensor]) -> Dense:
        """The same layers with other weights: tensors to be recorded."""
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
        x = inputs[0]
        if x.shape != (*h.shape[1:-1], self.width):
            raise SampleError(
                f"node {self.names[0]!r} got {list(x.shape)} where its layers hold {list(h.shape[1:])}: "
                "the shape of the input changed. Keep the batch size; or mark the last sample of a sequence with "
                "boundary=True, or reset()"
            )
        if self.length > 1:
            return [torch.cat([x.unsqueeze(0), h[:-1]])]
        # A source may use the memory of an input again before ω is used; states stay as they are.
        return [(x if self.parents else x.detach().clone()).unsqueeze(0)]

    def scatter(self, messages: list[Tensor]) -> tuple[Tensor | None, list[Tensor]]:
        """Messages to inside (layer l's to l − 1) and to outside (the first layer's)."""
        return messages[0][1:] if self.length > 1 else None, [messages[0][0]] if self.parents else []

    def join(self, inner: Tensor | None, incoming: Tensor) -> Tensor:
        """Messages from inside and, for the last layer, from outside."""
        return incoming.unsqueeze(0) if inner is None else torch.cat([inner, incoming.unsqueeze(0)])

    def split(self, x: Tensor) -> list[Tensor]:
        """One tensor per layer."""
        return list(x)

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """ĥ of all layers."""
        pre = self._affine(inputs[0])
        out = torch.tanh(pre) if self._tanh else self.activation(pre)
        return inputs[0] + out if self.residual else out

    def trace(self, inputs: list[Tensor]) -> DenseTrace:
        """ĥ of all layers, ready to be differentiated."""
        pre = self._affine(inputs[0])
        if self._tanh:
            return DenseTrace(self, torch.tanh(pre), None, inputs[0], self._weight)
        with torch.enable_grad():
            return DenseTrace(self, self.activation(pre.requires_grad_()), pre, inputs[0], self._weight)

    def check_weights(self) -> None:
        """Raise if the weights of a layer have got other memory."""
        for name, place in zip(self.names, self._places, strict=True):
            if any(weight.data_ptr() != address for weight, address in place):
                raise ConfigError(
                    f"the weights of {name!r} have got new storage since the learner was made (module.to(), "
                    "weight.data = ...): build the learner afterwards, or pass stacked=False"
                )

    def _affine(self, x: Tensor) -> Tensor:
        """Wx + b of all layers."""
        rows, bias = _rows(x), self._bias
        try:
            pre = torch.bmm(rows, self._columns) if bias is None else torch.baddbmm(bias, rows, self._columns)
        except RuntimeError as error:
            raise self.nodes[0].misfit([x[0]], error) from error
        return pre if rows is x else pre.view(*x.shape[:-1], -1)


def _rows(x: Tensor) -> Tensor:
    return x if x.dim() == 3 else x.reshape(x.shape[0], -1, x.shape[-1])
