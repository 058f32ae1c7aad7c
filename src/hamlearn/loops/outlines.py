"""The operations of a function, written down as they are called on tensors that have a shape and no values.

PyTorch's own way of doing this serves every function: it looks at each operation in a dozen layers of Python, and
loads a compiler first. A step needs little of that. Here each operation is called once on the device "meta", which
works out shapes, types and shared memory and computes nothing. Where that does not do (an operation that depends
on values, or gives a tensor another shape in place), the function is recorded anew in PyTorch's own way.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from hamlearn._base.torch_private import DispatchMode, as_if_traced, outline, reshaped_
from hamlearn._base.torch_private import traced as traced_by_pytorch
from hamlearn.loops.kinds import kind_of
from hamlearn.loops.plainly import plainly

aten = torch.ops.aten
_CPU, _META = torch.device("cpu"), torch.device("meta")
_PLAIN = (Tensor, nn.Parameter)


@dataclass(frozen=True)
class Traced:
    """A graph of operations, and what holds the tensors that it refers to by name."""

    root: nn.Module
    graph: fx.Graph


def traced(function: Callable[..., Any], inputs: Sequence[Tensor], table: dict[Any, Any] | None = None) -> Traced:
    """The graph of the operations that a function calls, derivatives included; each node knows what it gives.

    Args:
        function: From tensors to lists of tensors.
        inputs: Tensors of the shapes and types to expect.
        table: Operations that are to be taken apart, and how.

    Example:
        >>> found = traced(lambda x: [x.tanh() + 1], [torch.zeros(3)])
        >>> [str(node.target) for node in found.graph.nodes]
        ['input_0', 'aten.tanh.default', 'aten.add.Tensor', 'output']
    """
    found = outlined(function, inputs, table)
    if found is None:
        whole = traced_by_pytorch(function, inputs, table)
        found = Traced(whole, whole.graph)
    return found


def outlined(
    function: Callable[..., Any], inputs: Sequence[Tensor], table: dict[Any, Any] | None
) -> Traced | None:
    """The same, or `None` where it takes PyTorch's own way."""
    recorder = _Recorder(table or {})
    cached = torch.is_autocast_cache_enabled()
    # A weight that autocast keeps in another type would be seen without the operation that made it.
    torch.set_autocast_cache_enabled(False)
    try:
        given = [recorder.input(tensor) for tensor in inputs]
        with as_if_traced(), recorder:
            results = function(*given)
        recorder.graph.output(recorder.nodes_of(results))
    except Exception:
        # Whatever is wrong with the function is said when it is recorded anew.
        return None
    finally:
        torch.set_autocast_cache_enabled(cached)
    return None if recorder.failed else Traced(recorder.root, recorder.graph)


class _Beyond(Exception):  # noqa: N818 (nothing went wrong here)
    """It would take more than this file does."""


class _Recorder(DispatchMode):
    def __init__(self, table: dict[Any, Any]) -> None:
        super().__init__()
        self.graph, self.root, self.failed = fx.Graph(), nn.Module(), False
        self._table = table
        self._known: dict[int, tuple[fx.Node, Tensor]] = {}
        """The node that an outline comes from, and what it is on the device meta, by its identity."""
        self._outlines: dict[int, tuple[Tensor, Tensor]] = {}
        """What is on the device meta, and its outline, by the identity of the former; kept, so that it is one."""
        self._constants: dict[int, tuple[Tensor, Tensor, str]] = {}
        """Tensors that the function holds: what stands for each on the device meta, and its name."""
        self._read = 0
        """How often one of them has been used."""
        self._memory: dict[int, Tensor] = {}

    def input(self, tensor: Tensor) -> Tensor:
        """What the function is given in the place of a tensor."""
        shown = self._empty(tensor)
        return self._note(self._outline(shown), self.graph.placeholder(f"input_{len(self._known)}"), shown)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return self._call(func, args, kwargs or {})
        except BaseException:
            # The function may go on regardless.
            self.failed = True
            raise

    def _call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        apart = self._table.get(func)
        if apart is not None:
            with self:
                result = apart(*args, **kwargs)
            if result is not NotImplemented:
                return result
        kind = kind_of(func)
        if kind.composite:
            with self:
                return func.decompose(*args, **kwargs)
        if kind.beyond or (func is aten.index.Tensor and any(_picks(index) for index in args[1])):
            raise _Beyond
        if kind.view is not None:
            return self._reshape(func, kind.view, args, kwargs)
        if func is aten.lift_fresh.default:
            # Whoever runs the graph twice gets a fresh one twice.
            func = aten.lift_fresh_copy.default
        read = self._read
        node = self.graph.call_function(func, self.nodes_of(args), self.nodes_of(kwargs))
        if kind.writes and self._read != read:
            raise _Beyond
        given, named = self._shown(args), self._shown(kwargs)
        if kind.placed:
            named["device"] = named.get("device") or _META
        result = plainly(func, given, named)
        return self._noted(func(*given, **named) if result is None else result, node)

    def _reshape(self, func: Any, view: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Another shape for one name of some memory is a view of it, that this name stands for from now on."""
        name = args[0]
        if id(name) not in self._known:
            raise _Beyond
        node = self.graph.call_function(view, self.nodes_of(args), self.nodes_of(kwargs))
        shown = view(*self._shown(args), **kwargs)
        self._outlines[id(shown)] = shown, name
        reshaped_(func, args, kwargs)
        return self._note(name, node, shown)

    def nodes_of(self, value: Any) -> Any:
        """The same with nodes in the place of tensors."""
        if isinstance(value, Tensor):
            known = self._known.get(id(value))
            return self._get(value) if known is None else known[0]
        if isinstance(value, list | tuple):
            return type(value)([self.nodes_of(each) for each in value])
        if isinstance(value, dict):
            return {name: self.nodes_of(each) for name, each in value.items()}
        return value

    def _shown(self, value: Any) -> Any:
        """The same with tensors on the device meta."""
        if isinstance(value, Tensor):
            known = self._known.get(id(value))
            return self._constant(value)[1] if known is None else known[1]
        if isinstance(value, list | tuple):
            return [self._shown(each) for each in value]
        if isinstance(value, dict):
            return {name: self._shown(each) for name, each in value.items()}
        if isinstance(value, torch.device):
            if value.type != "cpu":
                raise _Beyond
            return _META
        return value

    def _noted(self, result: Any, node: fx.Node) -> Any:
        """Outlines of what an operation gave, and which nodes they come from."""
        if isinstance(result, Tensor):
            if result.device != _META or result.is_complex():
                raise _Beyond
            kept = self._outlines.get(id(result))
            made = self._outline(result) if kept is None else kept[1]
            return self._note(made, node, result)
        if isinstance(result, list | tuple):
            node.meta["val"] = list(result)
            return [
                self._noted(each, self.graph.call_function(operator.getitem, (node, place)))
                for place, each in enumerate(result)
            ]
        if result is not None:
            raise _Beyond
        return None

    def _note(self, made: Tensor, node: fx.Node, shown: Tensor) -> Tensor:
        self._known[id(made)] = node, shown
        node.meta["val"] = shown
        return made

    def _outline(self, shown: Tensor) -> Tensor:
        made = outline(shown)
        self._outlines[id(shown)] = shown, made
        return made

    def _get(self, tensor: Tensor) -> fx.Node:
        _, shown, name = self._constant(tensor)
        node = self.graph.create_node("get_attr", name)
        node.meta["val"] = shown
        self._read += 1
        return node

    def _constant(self, tensor: Tensor) -> tuple[Tensor, Tensor, str]:
        if id(tensor) not in self._constants:
            name = f"_tensor_constant{len(self._constants)}"
            self._constants[id(tensor)] = tensor, self._empty(tensor), name
            setattr(self.root, name, tensor)
        return self._constants[id(tensor)]

    def _empty(self, tensor: Tensor) -> Tensor:
        """A tensor like this one on the device meta, in memory that it shares with those that this one does."""
        if (
            type(tensor) not in _PLAIN
            or tensor.device != _CPU
            or tensor.layout != torch.strided
            or tensor.is_complex()
        ):
            raise _Beyond
        storage = tensor.untyped_storage()
        memory = self._memory.get(storage.data_ptr())
        if memory is None or not storage.data_ptr():
            memory = torch.empty(storage.nbytes(), dtype=torch.uint8, device=_META)
            self._memory[storage.data_ptr()] = memory
        made = torch.empty(0, dtype=tensor.dtype, device=_META)
        return made.set_(memory.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def _picks(index: Any) -> bool:
    """Whether an index picks entries by their values."""
    return index is not None and index.dtype in (torch.bool, torch.uint8)
