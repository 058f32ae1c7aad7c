"""Modules as layers: what they call, what is called along with them, and which of them may be stacked."""

from __future__ import annotations

import copy
from collections import Counter

from torch import nn

from hamlearn.rules.local.residual import Residual
from hamlearn.rules.local.traced import has_hooks
from hamlearn.rules.local.wiring import Merged, Node, Wiring

_ELEMENTWISE = (nn.Tanh, nn.ReLU, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus, nn.Identity)


def flat(module: nn.Module) -> list[nn.Module] | None:
    """What a module calls one after the other, a module that is called twice at both places; `None`: not a chain.

    Example:
        >>> tanh = nn.Tanh()
        >>> flat(nn.Sequential(nn.Linear(2, 2), nn.Sequential(tanh, tanh)))
        [Linear(in_features=2, out_features=2, bias=True), Tanh(), Tanh()]
    """
    if isinstance(module, Merged):
        parts = [flat(node.module) for node in module.group] if module.straight else [None]
    elif type(module) is nn.Sequential:
        parts = [flat(child) for child in module]
    else:
        return None if list(module.children()) else [module]
    return None if any(part is None for part in parts) else [m for part in parts for m in part or ()]


def branch_of(module: nn.Module) -> tuple[nn.Module, bool]:
    """What a layer computes from its input, and whether it adds that to it.

    Example:
        >>> branch_of(Residual(nn.Tanh()))
        (Tanh(), True)
    """
    return (module.branch, True) if type(module) is Residual else (module, False)


def out_of_place(function: nn.Module) -> nn.Module:
    """The same function, leaving its input as it was."""
    # The stack differentiates by the value that a function in place would destroy.
    twin = copy.copy(function)
    if getattr(twin, "inplace", False):
        twin.inplace = False  # type: ignore[assignment]
    return twin


def altered(module: nn.Module) -> bool:
    """Whether a call of a module may do more than its class says: by a hook, or a forward of its own."""
    return any(has_hooks(m) or "forward" in vars(m) for m in module.modules())


def runs(wiring: Wiring) -> list[list[Node]]:
    """The nodes in order, neighbours that may be stacked in one list."""
    read_by = Counter(source for node in wiring.nodes for source in node.sources)
    # By memory, which tells weights that share it from those that only look alike.
    uses = Counter(weight.data_ptr() for node in wiring.nodes for weight in node.module.parameters())
    result: list[list[Node]] = []
    shape = None
    for node in wiring.nodes:
        before, shape = shape, _shape(node, uses)
        follows = result and node.sources == (result[-1][-1].name,)
        alone = follows and read_by[node.sources[0]] == 1 and node.sources[0] not in wiring.outputs
        if alone and shape is not None and shape == before:
            result[-1].append(node)
        else:
            result.append([node])
    return result


def _shape(node: Node, uses: Counter[int]) -> str | None:
    """What two layers must share to be stacked; `None` for a node that cannot be."""
    branch, residual = branch_of(node.module)
    leaves = flat(branch)
    if leaves is None or altered(node.module) or type(leaves[0]) is not nn.Linear:
        return None
    linear, functions = leaves[0], leaves[1:]
    # The derivatives of a stack are written out for real numbers.
    if not linear.weight.is_floating_point():
        return None
    if linear.in_features != linear.out_features or not all(type(m) in _ELEMENTWISE for m in functions):
        return None
    if not all(w.requires_grad and uses[w.data_ptr()] == 1 and not w._backward_hooks for w in linear.parameters()):
        return None
    kind = "residual " if residual else ""
    return f"{kind}{[linear, *map(out_of_place, functions)]} {linear.weight.dtype} {linear.weight.device}"
