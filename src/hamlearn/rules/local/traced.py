"""Any module whose forward is a fixed graph of calls, as nodes and the edges between them."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx, nn

from hamlearn._base.replay import evaluating
from hamlearn.errors import ConfigError

_REMEDY = "Build an hl.local.Graph, which says itself what its nodes and edges are"
_CONSTANT = "_tensor_constant"
"""How `torch.fx` calls tensors that a forward makes or finds elsewhere, and leaves as attributes of the module."""
_SHAPES = {"size", "dim", "numel", "ndimension"}
_ABOUT = {"shape", "ndim", "dtype", "device"}
_NOT_IN_PLACE = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}
Piece = tuple[str, nn.Module, tuple[str, ...]]
"""A node: its name, what it computes, and what it reads."""


def traced(module: nn.Module) -> tuple[list[Piece], str]:
    """The nodes of a module in the order of its calls, and the name of the output. Its forward is not run again.

    Every module that is called is a node. A function of a value that no other call reads belongs to the node that
    makes that value: a ReLU after a layer, the sum of a layer and a skip. Others are nodes of their own.

    Raises:
        ConfigError: The forward cannot be traced, does other things in evaluation mode or the next time, or does
            not have one input and one output.

    Example:
        >>> class Residual(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        ...     def forward(self, u):
        ...         h = self.a(u).relu()
        ...         return h + self.b(h)
        >>> [(name, sources) for name, _, sources in traced(Residual())[0]]
        [('a', ('u',)), ('b', ('a',))]
    """
    try:
        return _pieces(module, _graph_of(module))
    finally:
        _forget_constants(module)


def _forget_constants(module: nn.Module) -> None:
    for name in [name for name in vars(module) if name.startswith(_CONSTANT)]:
        delattr(module, name)


def _pieces(module: nn.Module, graph: fx.Graph) -> tuple[list[Piece], str]:
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    result = next(node for node in graph.nodes if node.op == "output").args[0]
    kind = type(module).__name__
    if len(inputs) != 1:
        taken = [str(node.target) for node in inputs]
        raise ConfigError(f"the forward of {kind} takes {taken}, and a traced module has one input. {_REMEDY}")
    if not isinstance(result, fx.Node) or result is inputs[0]:
        said = "its input" if result is inputs[0] else f"{type(result).__name__} of several values"
        raise ConfigError(f"the forward of {kind} returns {said}, and a node returns one tensor. {_REMEDY}")
    graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
    calls = [n for n in graph.nodes if n is not inputs[0] and n.op != "output" and not _is_inline(n)]
    groups = _groups(calls, result)
    names = {group[-1]: _name(group) for group in groups} | {inputs[0]: "u"}
    return [_piece(module, group, names) for group in groups], names[result]


class _Tracer(fx.Tracer):
    """Raises for `no_grad` and autocast within a forward, and for hooks of modules that it takes apart."""

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """One call."""
        if not torch.is_grad_enabled() or any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
            raise ConfigError(
                "the forward computes a part of itself without gradients, or under autocast (`with …:`), which a "
                f"graph of calls does not keep. {_REMEDY}"
            )
        return super().create_node(*args, **kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module is called as a whole."""
        leaf = super().is_leaf_module(m, module_qualified_name)
        if not leaf and has_hooks(m):
            raise hooked(m)
        return leaf


def _graph_of(module: nn.Module) -> fx.Graph:
    """The calls of a forward, none of them in place; raises if they differ in evaluation mode."""
    kind, training = type(module).__name__, [m for m in module.modules() if m.training]
    if has_hooks(module):
        raise hooked(module)
    try:
        with evaluating(module), torch.enable_grad():
            evaluated = _Tracer().trace(module)
            _forget_constants(module)
            for one in training:
                one.training = True
            graph = _Tracer().trace(module)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the forward of {kind} cannot be traced ({type(error).__name__}: {error}): what it calls must not "
            "depend on values, as in `if x.sum() > 0`, and all of it must be calls of modules and functions. "
            f"{_REMEDY}"
        ) from error
    if str(graph) != str(evaluated):
        raise ConfigError(
            f"the forward of {kind} does other things in evaluation mode, as functional dropout does: use "
            f"modules, such as nn.Dropout. {_REMEDY}"
        )
    for node in graph.nodes:
        _out_of_place(node)
    return graph


def has_hooks(module: nn.Module) -> bool:
    """Whether functions are called before or after a module, forward or backward."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks)


def hooked(module: nn.Module) -> ConfigError:
    """The error for hooks that would not be called."""
    return ConfigError(
        f"{type(module).__name__} has hooks, which are not called where its forward is taken apart: put them on "
        f"the layers that it calls. {_REMEDY}"
    )


def _is_inline(node: fx.Node) -> bool:
    """Whether a value cannot be a state: a weight, a shape, or what is made of shapes alone."""
    if node.op == "get_attr":
        return True
    if node.op == "call_method" and node.target in _SHAPES:
        return True
    if node.op == "call_function" and node.target is getattr:
        return node.args[1] in _ABOUT
    given = node.all_input_nodes
    return node.op == "call_function" and bool(given) and all(_is_inline(one) for one in given)


def _out_of_place(node: fx.Node) -> None:
    """Leave what a call reads as it was, since it is the state of another node: `h += x` becomes `h = h + x`."""
    if node.op == "call_function" and node.target in _NOT_IN_PLACE:
        node.target = _NOT_IN_PLACE[node.target]
    if node.op == "call_function" and node.kwargs.get("inplace"):
        node.kwargs = {**node.kwargs, "inplace": False}


def _reads(node: fx.Node) -> list[fx.Node]:
    """The values that a call reads, through weights and shapes."""
    found: list[fx.Node] = []
    for one in node.all_input_nodes:
        found += _reads(one) if _is_inline(one) else [one]
    return list(dict.fromkeys(found))


def _groups(calls: list[fx.Node], result: fx.Node) -> list[list[fx.Node]]:
    readers: dict[fx.Node, set[fx.Node]] = {}
    for node in calls:
        for one in _reads(node):
            readers.setdefault(one, set()).add(node)
    groups: list[list[fx.Node]] = []
    of: dict[fx.Node, list[fx.Node]] = {}
    for node in calls:
        own = [one for one in _reads(node) if one in of and readers[one] == {node} and one is not result]
        if node.op == "call_module" or not own:
            of[node] = []
            groups.append(of[node])
        else:
            of[node] = of[max(own, key=calls.index)]
        of[node].append(node)
    return sorted(groups, key=lambda group: calls.index(group[-1]))


def _name(group: Iterable[fx.Node]) -> str:
    """That of the module in it, or of its last function."""
    called = [node for node in group if node.op == "call_module"]
    return (called or list(group))[-1].name


def _piece(root: nn.Module, group: list[fx.Node], names: dict[fx.Node, str]) -> Piece:
    outside = list(dict.fromkeys(one for node in group for one in _reads(node) if one not in group))
    sources, first = tuple(names[one] for one in outside), group[0]
    if len(group) == 1 and first.op == "call_module" and first.args == tuple(outside) and not first.kwargs:
        return names[first], root.get_submodule(str(first.target)), sources
    if not outside:
        raise ConfigError(f"{first.name} of {type(root).__name__} reads no input: a node needs one. {_REMEDY}")
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {one: graph.placeholder(f"h_{k}") for k, one in enumerate(outside)}

    def copy(node: fx.Node) -> fx.Node:
        if node not in copies:
            copies[node] = graph.node_copy(node, copy)
        return copies[node]

    graph.output(copy(group[-1]))
    return names[group[-1]], fx.GraphModule(root, graph), sources
