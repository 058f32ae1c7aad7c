"""Which layers of a graph may be stacked."""

from __future__ import annotations

from collections import Counter

from torch import nn

from hamlearn.rules.local.layers import branch_of, flat, module_hooks, out_of_place
from hamlearn.rules.local.wiring import Node, Wiring

_ELEMENTWISE = (nn.Tanh, nn.ReLU, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus, nn.Identity)


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
    modules = list(node.module.modules())
    called = any(any(module_hooks(m)) or "forward" in vars(m) for m in modules)
    branch, residual = branch_of(node.module)
    leaves = flat(branch)
    if leaves is None or called or type(leaves[0]) is not nn.Linear:
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
