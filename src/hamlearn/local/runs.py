"""Which layers of a graph may be stacked."""

from __future__ import annotations

import itertools
from collections import Counter

from torch import nn

from hamlearn.local.stacked import out_of_place
from hamlearn.local.wiring import Merged, Node, Wiring

_ELEMENTWISE = (nn.Tanh, nn.ReLU, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus, nn.Identity)


def runs(wiring: Wiring) -> list[list[Node]]:
    """The nodes in order, neighbours that may be stacked in one list."""
    read_by = Counter(source for node in wiring.nodes for source in node.sources)
    uses = Counter(id(weight) for node in wiring.nodes for weight in node.module.parameters())
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
    leaves = [m for m in modules if not list(m.children())]
    plain = all(
        type(m) in (nn.Sequential, nn.ModuleList) or (isinstance(m, Merged) and m.straight)
        for m in modules
        if m not in leaves
    )
    hooks = any(itertools.chain.from_iterable((m._forward_hooks, m._forward_pre_hooks) for m in modules))
    linear = leaves[0]
    if not plain or hooks or type(linear) is not nn.Linear or linear.in_features != linear.out_features:
        return None
    if not all(type(m) in _ELEMENTWISE for m in leaves[1:]):
        return None
    if not all(w.requires_grad and uses[id(w)] == 1 for w in linear.parameters()):
        return None
    return f"{[linear, *map(out_of_place, leaves[1:])]} {linear.weight.dtype} {linear.weight.device}"
