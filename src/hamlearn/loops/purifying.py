"""A recorded graph made pure: what is written in place becomes new values, large operations are taken apart.

PyTorch does both by running the graph once more, which takes as long as recording it. Most graphs need little of
that: a value that nothing else looks into is written to, a few operations have no loops. Those are changed node
by node here; where that is not plainly right, `purified` returns `None`, and the graph is run once more.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx

from hamlearn._base.torch_private import schema
from hamlearn.loops.outlines import Traced, traced
from hamlearn.loops.plainly import plainly

Table = dict[Any, Callable[..., Any]]
"""Operations, and how they are taken apart."""
_KEPT = 1000
"""How many operations that were taken apart are kept, by what they are given."""
_apart: dict[Any, Traced] = {}
_SAME = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)
_LAID_OUT = (torch.ops.aten.as_strided.default, torch.ops.aten.set_.source_Tensor)
_REPLACED = (torch.ops.aten.set_, torch.ops.aten.resize_, torch.ops.aten.resize_as_)
_PARTED = (torch.ops.aten.unsafe_split.Tensor, torch.ops.aten.unsafe_chunk.default)


class _Shared(Exception):  # noqa: N818 (nothing went wrong here)
    """It would take more than this file does."""


def writes(node: fx.Node) -> bool:
    """Whether an operation changes one of the tensors it is given."""
    told = schema(node.target)
    return told is not None and told.is_mutable


def unpurifiable(graph: fx.Graph) -> str | None:
    """What no way of making a graph pure does as PyTorch does it step by step; `None` where there is nothing."""
    for node in graph.nodes:
        if getattr(node.target, "overloadpacket", None) in _REPLACED:
            return f"{node.target} gives a tensor other memory"
        if _parted(node) is not None and _is_written(node) and _whole_is_used(node):
            return f"{node.args[0].target} gives parts that are written, while the whole is used too"
        if writes(node) and any(_root(each).op == "get_attr" for each in _written(node)):
            return "it writes to a tensor that it holds by itself: register that as a buffer"
        if writes(node) and _writes_to_itself_twice(node):
            return f"{node.target} writes to a tensor whose entries share memory, as those of expand do"
        if writes(node) and _overlaps(node):
            return f"{node.target} writes to a tensor that stands in another place of its lists too"
    return None


def _writes_to_itself_twice(node: fx.Node) -> bool:
    """Whether one number in memory stands in several places of a tensor that is written to."""
    tensors = [each.meta["val"] for each in _written(node)]
    return any(0 in _strides_of(tensor) for tensor in tensors if isinstance(tensor, Tensor))


def _written(node: fx.Node) -> list[fx.Node]:
    """The tensors that a call writes to, one by one."""
    told = zip(node.args, schema(node.target).arguments, strict=False)
    given = [each for each, argument in told if argument.alias_info is not None and argument.alias_info.is_write]
    return [each for each in given if isinstance(each, fx.Node)]


def _strides_of(tensor: Tensor) -> list[int]:
    """The strides of the axes that have several entries."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def _overlaps(node: fx.Node) -> bool:
    """Whether what a call writes to in one place of a list stands in another place of it, or of another list."""
    arguments = schema(node.target).arguments
    lists = [
        (argument.alias_info is not None and argument.alias_info.is_write, list(given))
        for given, argument in zip(node.args, arguments, strict=False)
        if isinstance(given, list | tuple) and all(isinstance(each, fx.Node) for each in given)
    ]
    for written in [given for is_write, given in lists if is_write]:
        for place, each in enumerate(written):
            memory = set(_storages(each.meta["val"]))
            for _, other in lists:
                rest = [one for index, one in enumerate(other) if index != place]
                if any(memory & set(_storages(one.meta["val"])) for one in rest):
                    return True
    return False


def _is_written(node: fx.Node) -> bool:
    return any(writes(user) for user in node.users)


def _whole_is_used(part: fx.Node) -> bool:
    split = part.args[0]
    assert isinstance(split, fx.Node)
    whole = split.args[0]
    return isinstance(whole, fx.Node) and any(user is not split for user in whole.users)


def purified(graph: fx.Graph, table: Table) -> fx.Graph | None:
    """The same operations with nothing changed in place, and those of `table` taken apart.

    Args:
        graph: As it was recorded; each node knows its value's shape, type and memory.
        table: As for PyTorch's own tracing.

    Returns:
        `None` where a tensor is written that others share memory with, or that is an input.
    """
    try:
        return _Purifier(graph, table).run()
    except _Shared:
        return None


class _Purifier:
    def __init__(self, graph: fx.Graph, table: Table) -> None:
        self._old, self._table = graph, table
        self._new = fx.Graph()
        self._now: dict[fx.Node, Any] = {}
        """What stands for each node of the old graph at this place."""
        self._memory: dict[Any, list[fx.Node]] = {}
        """Which nodes look into the same memory."""
        self._place = {node: number for number, node in enumerate(graph.nodes)}

    def run(self) -> fx.Graph:
        nodes = list(self._old.nodes)
        if any(node.target in _LAID_OUT for node in nodes):
            raise _Shared
        for node in nodes:
            for storage in _storages(node.meta.get("val")):
                self._memory.setdefault(storage, []).append(node)
        for node in nodes:
            if writes(node):
                self._write(node)
            elif node.target in self._table:
                self._take_apart(node)
            else:
                self._copy(node)
        return self._new

    def _copy(self, node: fx.Node) -> None:
        whole = node.args[0] if node.target is operator.getitem else None
        if isinstance(whole, fx.Node) and isinstance(self._now[whole], list | tuple):
            # One of several results of what was taken apart.
            self._now[node] = self._now[whole][node.args[1]]
        else:
            self._now[node] = self._new.node_copy(node, self._now.__getitem__)

    def _write(self, node: fx.Node) -> None:
        """A new value in the place of the one that is written, for all that comes after."""
        written, result = node.args[0] if node.args else None, node.meta.get("val")
        pure = _out_of_place(node.target)
        if pure is None or torch.Tag.inplace_view in getattr(node.target, "tags", ()):
            # The latter changes how one name looks at its memory, and no other name of it.
            raise _Shared
        if isinstance(written, list | tuple):
            self._write_each(node, pure, list(written))
            return
        if not isinstance(written, fx.Node) or not isinstance(result, Tensor):
            raise _Shared
        names = self._names(written, node)
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: _like(each.meta["val"]))
        value = plainly(pure, args, kwargs)
        if value is None:
            value = pure(*args, **kwargs)
        if value.dtype != result.dtype or value.shape != result.shape:
            raise _Shared
        if pure in self._table:
            made = self._inlined(pure, node)
        else:
            made = self._new.call_function(pure, *fx.map_arg((node.args, node.kwargs), self._now.__getitem__))
            made.meta = {**node.meta, "val": value}
        self._rename(names, made, node)

    def _write_each(self, node: fx.Node, pure: Any, written: list[Any]) -> None:
        """The same for one call that writes to each tensor of a list, and to nothing else."""
        given = [argument.alias_info for argument in schema(node.target).arguments]
        alone = sum(alias is not None and alias.is_write for alias in given)
        apart = {storage for each in written for storage in _storages(each.meta["val"])}
        if alone != 1 or len(apart) != len(written) or pure not in self._table:
            raise _Shared
        names = [self._names(each, node) for each in written]
        made = self._inlined(pure, node)
        for old, own, new in zip(written, names, made, strict=True):
            before, after = old.meta["val"], new.meta["val"]
            if before.dtype != after.dtype or before.shape != after.shape:
                raise _Shared
            self._rename(own, new, node)

    def _names(self, written: fx.Node, write: fx.Node) -> list[fx.Node]:
        """The nodes that are other names of the value that is written."""
        root, [storage] = _root(written), _storages(written.meta["val"])
        if root.op != "call_function" or any(
            self._is_read(other, write, root) for other in self._memory[storage] if _root(other) is not root
        ):
            raise _Shared
        return [other for other in self._memory[storage] if _root(other) is root]

    def _rename(self, names: list[fx.Node], made: fx.Node, write: fx.Node) -> None:
        for other in names:
            if other in self._now or other is write:
                self._now[other] = made

    def _is_read(self, other: fx.Node, write: fx.Node, root: fx.Node) -> bool:
        """Whether what `write` does to the memory of `root` may be seen in another node's value."""
        later = self._place[other] > self._place[write]
        if later or (_parted(root) is not None and _parted(_root(other)) is _parted(root)):
            return False
        return any(self._place[user] > self._place[write] for user in other.users)

    def _take_apart(self, node: fx.Node) -> None:
        self._now[node] = self._inlined(node.target, node)

    def _inlined(self, target: Any, old: fx.Node) -> Any:
        given: list[fx.Node] = []
        fx.map_arg((old.args, old.kwargs), given.append)
        part = self._part(target, old, given)
        if any(writes(node) for node in part.graph.nodes):
            raise _Shared
        places = dict(zip(part.graph.find_nodes(op="placeholder"), given, strict=True))
        inside: dict[fx.Node, Any] = {place: self._now[node] for place, node in places.items()}
        for node in part.graph.nodes:
            if node.op == "get_attr":
                raise _Shared
            if node.op == "call_function":
                inside[node] = self._new.node_copy(node, inside.__getitem__)
            if node.op == "output":
                return fx.map_arg(node.args[0], inside.__getitem__)
        raise AssertionError("a graph without an output")

    def _part(self, target: Any, old: fx.Node, given: list[fx.Node]) -> Traced:
        """The operation taken apart, by what it is given; the same for all graphs."""
        values = [_like(node.meta["val"], "cpu") for node in given]
        shapes = tuple((value.dtype, value.shape, value.stride()) for value in values)
        names = {node: f"<{number}>" for number, node in enumerate(given)}
        told = repr(fx.map_arg((old.args, old.kwargs), lambda node: names[node]))
        key = (target, told, shapes)
        if key not in _apart:
            if len(_apart) >= _KEPT:
                _apart.clear()

            def call(*tensors: Tensor) -> Any:
                taken = dict(zip(given, tensors, strict=True))
                args, kwargs = fx.map_arg((old.args, old.kwargs), taken.__getitem__)
                return target(*args, **kwargs)

            _apart[key] = traced(call, values, self._table)
        return _apart[key]


def _root(node: fx.Node) -> fx.Node:
    """The value that this is another name of: what a write returns is the tensor that was written."""
    while (writes(node) or node.target in _SAME) and node.args and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _parted(node: fx.Node) -> fx.Node | None:
    """What this is a part of, where the parts have no memory in common."""
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node) and node.args[0].target in _PARTED:
        return node.args[0]
    return None


def _out_of_place(target: Any) -> Any:
    """The operation that computes what this one writes; `None` where there is none."""
    packet, overload = str(target).removeprefix("aten.").rpartition(".")[::2]
    if not packet.endswith("_") or packet.endswith("__"):
        return None
    return getattr(getattr(torch.ops.aten, packet[:-1], None), overload, None)


def _storages(value: Any) -> Iterator[Any]:
    for each in value if isinstance(value, list | tuple) else [value]:
        if isinstance(each, Tensor):
            yield each.untyped_storage()


def _like(value: Any, device: str = "meta") -> Tensor:
    """A tensor of the same shape and type, with no values that matter."""
    if not isinstance(value, Tensor):
        raise _Shared
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
