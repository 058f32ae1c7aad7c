"""What is learned, as a list of nodes: a chain, a graph or neurons brought into one form, and cut into groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from hamlearn._base import trees
from hamlearn._base.replay import evaluating
from hamlearn.errors import ConfigError, HamlearnError, SampleError
from hamlearn.rules.local.graph import Graph, Start, find_cycle, topological
from hamlearn.rules.local.neurons import Neurons

Groups = int | Sequence[int] | None


@dataclass(frozen=True)
class Node:
    """One module with its own output as state, and the names of what it reads."""

    name: str
    module: nn.Module
    sources: tuple[str, ...]

    def __call__(self, *inputs: Tensor) -> Tensor:
        """ĥ of this node from what its edges bring; says which node and which edges did not fit."""
        try:
            out = self.module(*inputs)
        except (torch.OutOfMemoryError, HamlearnError):
            raise
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise self.misfit(inputs, error) from error
        if not isinstance(out, Tensor):
            raise ConfigError(f"node {self.name!r} returned {trees.describe(out)}: a node must return one tensor")
        return out

    def misfit(self, inputs: Sequence[Any], error: Exception) -> SampleError:
        """The error for inputs that the module does not take."""
        edges = ", ".join(
            f"{s!r} → {self.name!r} with {trees.describe(x)}" for s, x in zip(self.sources, inputs, strict=True)
        )
        return SampleError(
            f"node {self.name!r} ({type(self.module).__name__}) could not take what its edges bring "
            f"({edges}): {error}. Make the shapes and dtypes on both ends of the edge meet"
        )


@dataclass(frozen=True)
class Wiring:
    """Nodes in order (topological if there are no cycles), inputs, outputs and first states.

    A part of a larger graph reads as inputs what other parts show; along `borders`, which are those of its inputs
    that are nodes elsewhere, costates leave it. The root then holds more modules than the part's own.
    """

    root: nn.Module
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    h0: Mapping[str, Start] = field(default_factory=dict)
    read: Callable[[Tensor], Tensor] | None = None
    borders: tuple[str, ...] = ()
    whole: bool = True

    def modules(self) -> list[nn.Module]:
        """All modules of the nodes, and the root where it holds nothing else."""
        if self.whole:
            return list(self.root.modules())
        return list(dict.fromkeys(m for node in self.nodes for m in node.module.modules()))

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The weights of the nodes, as the root names them."""
        own = {w for m in self.modules() for w in m.parameters(recurse=False)}
        return [(name, w) for name, w in self.root.named_parameters() if w in own]

    def named_buffers(self) -> list[tuple[str, Tensor]]:
        """The buffers of the nodes, as the root names them."""
        own = {b for m in self.modules() for b in m.buffers(recurse=False)}
        return [(name, b) for name, b in self.root.named_buffers() if b in own]

    @property
    def sources(self) -> dict[str, tuple[str, ...]]:
        """What each node reads."""
        return {node.name: node.sources for node in self.nodes}

    def cycle(self) -> list[str] | None:
        """The nodes of one cycle, or `None`."""
        return find_cycle(self.sources)

    def values(self, u: Any) -> dict[str, Any]:
        """The external inputs by name."""
        if len(self.inputs) == 1 and (isinstance(u, Tensor) or not isinstance(u, Mapping)):
            return {self.inputs[0]: u}
        if not isinstance(u, Mapping) or set(u) != set(self.inputs):
            given = sorted(u) if isinstance(u, Mapping) else trees.describe(u)
            raise SampleError(f"u holds {given}: give a mapping with the inputs {list(self.inputs)}")
        return dict(u)

    def forward(self, u: Any) -> dict[str, Tensor]:
        """Outputs of all nodes of an acyclic graph for one input, without delay."""
        values = self.values(u)
        for node in self.nodes:
            values[node.name] = node(*(values[source] for source in node.sources))
        return values

    @torch.no_grad()
    def start(self, u: Any) -> dict[str, Tensor]:
        """First states, zeros where none is given; a trial pass in evaluation mode finds their shapes."""
        h0 = {n: (x if isinstance(x, Tensor) else x(u)).detach() for n, x in self.h0.items()}
        known, waiting = self.values(u) | h0, [n for n in self.nodes if n.name not in h0]
        with evaluating(self.root):
            while waiting:
                node = next((n for n in waiting if all(s in known for s in n.sources)), None)
                if node is None:
                    cycle = find_cycle({n.name: n.sources for n in waiting}) or []
                    raise ConfigError(
                        f"the shapes on the cycle {' → '.join(cycle)} do not follow from the input: give "
                        f"h0={{{cycle[0]!r}: ...}}, a tensor or a function of u"
                    )
                known[node.name] = node(*(known[s] for s in node.sources))
                waiting.remove(node)
        return {n.name: h0[n.name] if n.name in h0 else torch.zeros_like(known[n.name]) for n in self.nodes}


def wire(module: nn.Module, groups: Groups) -> Wiring:
    """The wiring of a chain, a graph or neurons, its consecutive nodes merged into `groups`."""
    if isinstance(module, Neurons):
        node = Node("neurons", module, ("u", "neurons"))
        wiring = Wiring(module, (node,), ("u",), ("neurons",), {"neurons": module.start}, module.read)
    elif isinstance(module, Graph):
        cyclic = find_cycle(module.sources) is not None
        order = list(module.sources) if cyclic else topological(module.sources)
        nodes = tuple(Node(name, module.nodes[name], module.sources[name]) for name in order)
        wiring = Wiring(module, nodes, module.inputs, module.outputs, module.h0)
    elif isinstance(module, nn.Sequential) and len(module) and type(module).forward is nn.Sequential.forward:
        names = list(module._modules)  # named_children() passes over a module that stands at two places
        if has_hooks(module):
            raise ConfigError(
                "the Sequential has hooks, which are not called, since its children are nodes by themselves: put "
                "them on the children, or wrap the module, nn.Sequential(module), which is then one node"
            )
        chain = zip(names, module, ["u", *names], strict=False)
        wiring = Wiring(module, tuple(Node(n, m, (s,)) for n, m, s in chain), ("u",), (names[-1],))
    else:
        raise ConfigError(
            "a LocalLearner takes an nn.Sequential, whose children are nodes, a Graph or Neurons, not "
            f"{type(module).__name__}: say in a Graph what its nodes are, or wrap it into one node by "
            "nn.Sequential(module)"
        )
    return wiring if groups is None else _merge(wiring, groups)


def has_hooks(module: nn.Module) -> bool:
    """Whether functions are called before or after a module, forward or backward."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks)


def _merge(wiring: Wiring, groups: int | Sequence[int]) -> Wiring:
    nodes = wiring.nodes
    cycle = wiring.cycle()
    if cycle:
        raise ConfigError(f"groups={groups!r}: the cycle {' → '.join(cycle)} has no consecutive layers to merge")
    bounds = [0, *_starts(groups, len(nodes)), len(nodes)]
    members = [nodes[a:b] for a, b in pairwise(bounds)]
    group_of = {node.name: index for index, group in enumerate(members) for node in group}
    for index, node in enumerate(nodes):
        for source in node.sources:
            inner = source in group_of and source != members[group_of[source]][-1].name
            if inner and group_of[source] != group_of[node.name]:
                raise ConfigError(
                    f"groups={groups!r} cuts through the edge {source!r} → {node.name!r} (node {index}): a group "
                    f"shows only its last output, that of {members[group_of[source]][-1].name!r}. Move the "
                    "boundary to before or behind this block"
                )
    for name in wiring.outputs:
        if name != members[group_of[name]][-1].name:
            raise ConfigError(f"groups={groups!r}: output {name!r} is inside a group: end a group with it")
    merged = tuple(group[0] if len(group) == 1 else _merged(group) for group in members)
    h0 = {node.name: wiring.h0[node.name] for node in merged if node.name in wiring.h0}
    return replace(wiring, nodes=merged, h0=h0)


def _starts(groups: int | Sequence[int], count: int) -> list[int]:
    """Index of the first node of each group but the first."""
    if isinstance(groups, int):
        if not 1 <= groups <= count:
            raise ConfigError(f"groups={groups} must lie between 1 and the number of nodes, {count}")
        size, larger = divmod(count, groups)
        return [g * size + min(g, larger) for g in range(1, groups)]
    starts = list(groups)
    if any(b <= a for a, b in pairwise([0, *starts, count])):
        raise ConfigError(
            f"groups={starts} must be growing indices of first nodes, each above 0 and below {count}, the number "
            "of nodes"
        )
    return starts


def _merged(group: Sequence[Node]) -> Node:
    inside = {node.name for node in group}
    outside = tuple(dict.fromkeys(s for node in group for s in node.sources if s not in inside))
    # A group carries the name of its last node, so that readers of that node read the group.
    return Node(group[-1].name, Merged(group, outside), outside)


class Merged(nn.Module):
    """Consecutive nodes computed at once; `straight` where each reads only the one before."""

    def __init__(self, group: Sequence[Node], outside: tuple[str, ...]) -> None:
        super().__init__()
        self.group = tuple(group)
        self.straight = all(b.sources == (a.name,) for a, b in pairwise(group)) and len(group[0].sources) == 1
        self.outside = outside
        self.members = nn.ModuleList(node.module for node in group)

    def forward(self, *inputs: Tensor) -> Tensor:
        """The last node's output."""
        values = dict(zip(self.outside, inputs, strict=True))
        for node in self.group:
            values[node.name] = node(*(values[source] for source in node.sources))
        return values[self.group[-1].name]
