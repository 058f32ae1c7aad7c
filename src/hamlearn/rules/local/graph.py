"""Directed graphs of modules: which node reads which, where input enters and where it leaves; residual layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

import torch
from torch import Tensor, nn

from hamlearn.errors import ConfigError

Start = Tensor | Callable[..., Tensor]
"""A node's first state: a tensor, or a function of the input u that returns one."""


class Graph(nn.Module):
    """Named nodes, each with its own output as state, and the edges along which they read each other.

    ĥ_c = f_c(h_p for each edge p → c). Cycles and self-loops are allowed. Parameters are named
    `nodes.<node>.…`.

    Args:
        nodes: Modules by name. Each takes one tensor per incoming edge, in the order of `edges`, and returns one.
        edges: Pairs (source, target); a source is a node or an input.
        inputs: Names of the external inputs. With one, `Sample.u` is its tensor; with several, a mapping by name.
        outputs: Nodes that are read as y and may get targets, any of them; `None`: those that no node reads.
            With one, y and the target are as the loss takes them; with several, mappings by node.
        h0: First state by node, a tensor or a function of u. Zeros where missing; on each cycle at least one
            node needs it, because its shape does not follow from the input.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> graph = Graph({"a": nn.Linear(2, 3), "b": nn.Bilinear(3, 2, 1)}, [("u", "a"), ("a", "b"), ("u", "b")])
        >>> graph.sources["b"], graph.outputs
        (('a', 'u'), ('b',))
    """

    def __init__(
        self,
        nodes: Mapping[str, nn.Module],
        edges: Iterable[tuple[str, str]],
        inputs: Sequence[str] = ("u",),
        outputs: Sequence[str] | None = None,
        h0: Mapping[str, Start] | None = None,
    ) -> None:
        super().__init__()
        edges = list(edges)
        _check_names(nodes, edges, inputs)
        self.nodes = nn.ModuleDict(nodes)
        self.inputs = tuple(inputs)
        self.sources = {name: tuple(a for a, b in edges if b == name) for name in nodes}
        for name, sources in self.sources.items():
            if not sources:
                raise ConfigError(f"node {name!r} has no incoming edge: add one, from a node or from {inputs!r}")
        read = {source for source, _ in edges}
        self.outputs = tuple(name for name in nodes if name not in read) if outputs is None else tuple(outputs)
        if not self.outputs:
            raise ConfigError("every node is read by another, so none stands out as the output: name outputs=")
        for name in (*self.outputs, *(h0 or {})):
            if name not in self.nodes:
                raise ConfigError(f"{name!r} is named as an output or in h0, but the nodes are {list(nodes)}")
        self.h0 = dict(h0 or {})


def _check_names(nodes: Mapping[str, nn.Module], edges: list[tuple[str, str]], inputs: Sequence[str]) -> None:
    for name in nodes:
        if not name or "." in name or name in inputs:
            raise ConfigError(
                f"{name!r} cannot name a node: it is empty, holds a dot, or is an input of {inputs!r}"
            )
    for source, target in edges:
        if target not in nodes or (source not in nodes and source not in inputs):
            unknown = source if target in nodes else target
            raise ConfigError(
                f"edge {source!r} → {target!r}: {unknown!r} is neither a node of {list(nodes)} nor an input of "
                f"{list(inputs)}, or an input is its target"
            )
    unread = [name for name in inputs if name not in {source for source, _ in edges}]
    if unread:
        raise ConfigError(
            f"input {unread[0]!r} is read by no node: add an edge from it, or leave it out of inputs"
        )


def find_cycle(sources: Mapping[str, Sequence[str]]) -> list[str] | None:
    """The nodes of one cycle in the order that the signal takes, or `None`.

    Example:
        >>> find_cycle({"a": ["u", "c"], "b": ["a"], "c": ["b"]})
        ['a', 'b', 'c', 'a']
        >>> find_cycle({"a": ["u"], "b": ["a", "u"]}) is None
        True
    """
    try:
        TopologicalSorter(sources).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1][:-1]
        first = cycle.index(min(cycle, key=list(sources).index))
        return [*cycle[first:], *cycle[: first + 1]]
    return None


def topological(sources: Mapping[str, Sequence[str]]) -> list[str]:
    """The nodes of an acyclic graph, each after all that it reads.

    Example:
        >>> topological({"b": ["a"], "a": ["u"]})
        ['a', 'b']
    """
    order: list[str] = []
    waiting = dict(sources)
    while waiting:
        ready = next(name for name, given in waiting.items() if not any(s in waiting for s in given))
        order.append(ready)
        del waiting[ready]
    return order


class Residual(nn.Module):
    """x + f(x): one node, with the skip edge inside it, so that nothing has to wait in a delay register.

    A costate z passes as z + z·∂f/∂x. Where the branch f is an `nn.Linear`, or one followed by elementwise
    functions, equal layers in a row are stacked like any others.

    Args:
        branch: f; its output has the shape of its input.
        scale: What the branch's weights are multiplied by when the layer is made. Small branches make a deep net
            begin near the identity, where late gradients are nearly the present ones.

    Example:
        >>> import torch
        >>> layer = Residual(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), scale=0.0)
        >>> layer(torch.tensor([1.0, 2.0, 3.0])).tolist()
        [1.0, 2.0, 3.0]
    """

    def __init__(self, branch: nn.Module, scale: float = 0.1) -> None:
        super().__init__()
        self.branch = branch
        with torch.no_grad():
            for weight in branch.parameters():
                weight.mul_(scale)

    def forward(self, x: Tensor) -> Tensor:
        """X and the branch's output, which must have its shape."""
        change = self.branch(x)
        if change.shape != x.shape:
            raise ValueError(
                f"the branch of a residual layer gave {list(change.shape)} for {list(x.shape)}: it must keep the "
                "shape"
            )
        return x + change
