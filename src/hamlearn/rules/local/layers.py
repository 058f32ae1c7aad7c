"""Modules as layers: an `nn.Linear` with elementwise functions behind it, and which of these may be stacked."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor, nn

from hamlearn.rules.local.residual import Residual
from hamlearn.rules.local.traced import has_hooks
from hamlearn.rules.local.wiring import Merged, Node, Wiring

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


def runs(wiring: Wiring, beta_of: Mapping[Tensor, object]) -> list[list[Node]]:
    """The nodes in order, neighbours that may be stacked in one list: with them, weights have one β."""
    read_by = Counter(source for node in wiring.nodes for source in node.sources)
    # By memory, which tells weights that share it from those that only look alike.
    uses = Counter(weight.data_ptr() for node in wiring.nodes for weight in node.module.parameters())
    result: list[list[Node]] = []
    shape = None
    for node in wiring.nodes:
        before, shape = shape, _shape(node, uses, beta_of)
        follows = result and node.sources == (result[-1][-1].name,)
        alone = follows and read_by[node.sources[0]] == 1 and node.sources[0] not in wiring.outputs
        if alone and shape is not None and shape == before:
            result[-1].append(node)
        else:
            result.append([node])
    return result


def _shape(node: Node, uses: Counter[int], beta_of: Mapping[Tensor, object]) -> str | None:
    """What two layers must share to be stacked; `None` for a node that cannot be."""
    layer = layer_of(node.module)
    if layer is None or layer.linear.in_features != layer.linear.out_features:
        return None
    weight, betas = layer.linear.weight, [beta_of[w] for w in layer.linear.parameters()]
    if any(uses[w.data_ptr()] > 1 for w in layer.linear.parameters()):
        return None
    if any(isinstance(beta, Tensor) and beta.dim() for beta in betas):
        return None
    kinds = [beta if isinstance(beta, float | int) else id(beta) for beta in betas]
    return f"{layer.residual} {[layer.linear, *layer.functions]} {weight.dtype} {weight.device} {kinds}"
