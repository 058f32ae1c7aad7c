"""Recording a function as a pure graph of tensor operations, and what a recording cannot follow."""

from __future__ import annotations

import copy
import logging
import operator
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from hamlearn._base.interrupts import defer_sigint
from hamlearn._base.torch_private import aten as private_aten
from hamlearn._base.torch_private import decompositions, schema, traced, tree_leaves
from hamlearn.loops.draws import Draws, uniform_parts
from hamlearn.loops.operations import known
from hamlearn.loops.tracing_lock import tracing_lock
from hamlearn.loops.values import UnsupportedError

aten = torch.ops.aten
_HELD = "it writes to a tensor that it holds by itself: register that as a buffer of the network"
_COPIES = (aten.clone, aten.detach, aten.alias, aten.lift_fresh_copy, private_aten("_to_copy"), aten.contiguous)


def pure_graph(function: Callable[..., Any], inputs: list[Tensor], draws: Draws | None = None) -> fx.GraphModule:
    """The tensor operations of `function`, derivatives included, with nothing changed in place.

    Args:
        function: From tensors to tensors.
        inputs: Tensors of the shapes and types that it is called with.
        draws: Gets the random numbers that it draws, which become inputs of the graph; `None`: it may draw none.

    Raises:
        UnsupportedError: If the function cannot be recorded, with the reason.
    """
    with tracing_lock, defer_sigint():
        graph = _pure_graph(function, inputs)
    if draws is not None:
        draws.become_inputs(graph.graph)
    for node in graph.graph.nodes:
        _require_pure(node)
    _simplify(graph.graph)
    return graph


def _pure_graph(function: Callable[..., Any], inputs: list[Tensor]) -> fx.GraphModule:
    if any(tensor.is_cuda for tensor in inputs):
        # On a GPU PyTorch puts fused operations, which have no loops, in the place of an LSTM and of others. What
        # a step computes does not depend on the device: it is recorded as if it were the CPU.
        try:
            return _recorded(function, [_on_cpu(tensor) for tensor in inputs])
        except UnsupportedError:
            # Tensors that are not inputs stay where they are, and do not go together with those on the CPU.
            pass
    return _recorded(function, [tensor.detach() for tensor in inputs])


def on_device(graph: fx.GraphModule, device: torch.device) -> fx.GraphModule:
    """The same graph with all that it makes, and holds, on a device."""
    moved = copy.deepcopy(graph)
    for node in moved.graph.nodes:
        if node.kwargs.get("device") is not None:
            node.kwargs = {**node.kwargs, "device": device}
        if node.op == "get_attr" and operator.attrgetter(str(node.target))(moved).dim():
            owner, _, name = str(node.target).rpartition(".")
            setattr(moved.get_submodule(owner), name, operator.attrgetter(str(node.target))(moved).to(device))
    # PyTorch compiles a graph from its Python code, which is written here.
    fx.GraphModule.recompile(moved)
    return moved


def held_by(graph: fx.GraphModule) -> list[Tensor]:
    """The tensors that a graph holds, beside those that it is given."""
    names = {str(node.target) for node in graph.graph.nodes if node.op == "get_attr"}
    return [operator.attrgetter(name)(graph) for name in names]


def _on_cpu(tensor: Tensor) -> Tensor:
    """A tensor of the same shape and type, with no values that matter."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")


def _recorded(function: Callable[..., Any], inputs: list[Tensor]) -> fx.GraphModule:
    # The caller reports errors, or the sample does when it is taken eagerly: PyTorch need not log them.
    muted = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with _in_plain_operations():
                graph = traced(_leaving_inputs(function), inputs, _decompositions())
    except UnsupportedError:
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        if "RegisterFunctionalization" in reason:
            raise UnsupportedError(_HELD) from error
        raise UnsupportedError(
            f"the step could not be recorded ({type(error).__name__}: {reason[:200]})"
        ) from error
    finally:
        logging.disable(muted)
    return _WrittenLater(graph, graph.graph)


def _require_pure(node: fx.Node) -> None:
    """Raise `UnsupportedError` for an operation that no loop can repeat."""
    tags, described = getattr(node.target, "tags", ()), schema(node.target)
    if torch.Tag.nondeterministic_seeded in tags:
        raise UnsupportedError(f"it draws random numbers ({node.target})")
    if torch.Tag.data_dependent_output in tags:
        raise UnsupportedError(f"it decides by the value of a tensor ({node.target}): use torch.where")
    if described is not None and described.is_mutable:
        # Writes to what is made of the inputs have become new values.
        raise UnsupportedError(_HELD)
    for value in tree_leaves(node.meta.get("val")):
        if isinstance(value, Tensor) and not all(isinstance(size, int) for size in value.shape):
            raise UnsupportedError(f"it makes a tensor whose shape depends on values ({node.target})")


def _leaving_inputs(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which raises if it writes to its arguments: a graph would leave them as they are."""

    def called(*given: Tensor) -> Any:
        before = [tensor._version for tensor in given]
        results = function(*given)
        if [tensor._version for tensor in given] != before:
            raise UnsupportedError("it writes to its sample, to its state or to a weight that is not learned")
        return results

    return called


@contextmanager
def _in_plain_operations() -> Iterator[None]:
    """Within, PyTorch calls operations that have loops, in the place of some that are fused or keep a cache."""
    cached = torch.is_autocast_cache_enabled()
    # A weight that autocast has cast before would be a constant of the recording.
    torch.set_autocast_cache_enabled(False)
    try:
        # Attention by products and a softmax; nn.LSTM by its cells, for which oneDNN has one single operation.
        with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
            yield
    finally:
        torch.set_autocast_cache_enabled(cached)


class _WrittenLater(fx.GraphModule):
    """A graph whose Python is written when it is called first: a loop is made of the graph alone."""

    def recompile(self) -> Any:
        """Leave it for later; PyTorch calls this whenever the graph is another."""

    def forward(self, *given: Any) -> Any:
        """Call the graph; from the first time on, in place of this."""
        super().recompile()
        return self(*given)


def _simplify(graph: fx.Graph) -> None:
    """Drop copies, which mean nothing where nothing changes in place, and compute equal things once."""
    known: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        target = getattr(node.target, "overloadpacket", None)
        source = node.args[0] if node.args else None
        if target in _COPIES and isinstance(source, fx.Node) and _alike(source.meta["val"], node.meta["val"]):
            node.replace_all_uses_with(source)
            continue
        key = (node.target, repr(node.args), repr(node.kwargs))
        same = known.setdefault(key, node)
        if same is not node:
            node.replace_all_uses_with(same)
    graph.eliminate_dead_code()


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride()


def _each_mul(tensors: list[Tensor], by: float) -> list[Tensor]:
    return [tensor * by for tensor in tensors]


def _each_add(tensors: list[Tensor], others: list[Tensor], alpha: float = 1) -> list[Tensor]:
    return [torch.add(a, b, alpha=alpha) for a, b in zip(tensors, others, strict=True)]


def _threshold(x: Tensor, threshold: float, value: float) -> Tensor:
    # PyTorch's own way goes by floating-point numbers, which do not hold all whole numbers.
    return torch.where(x <= threshold, x.new_full((), value), x)


def _layer_norm(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    out, mean, rstd = decompositions()[aten.native_layer_norm.default](*args)
    return _unless_overflown(out, rstd), mean, rstd


def _group_norm(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    out, mean, rstd = decompositions()[aten.native_group_norm.default](*args)
    parts = out.reshape(*rstd.shape, -1)
    return _unless_overflown(parts, rstd.unsqueeze(-1)).reshape(out.shape), mean, rstd


def _unless_overflown(out: Tensor, rstd: Tensor) -> Tensor:
    """NaN where the variance is infinite, as PyTorch has it, and not 0, which would be learned from."""
    return torch.where(rstd == 0, out.new_full((), torch.nan), out)


def _decompositions() -> dict[Any, Callable[..., Any]]:
    """How operations that have no loops are taken apart."""
    loops = known()
    found = {op: each for op, each in decompositions().items() if getattr(op, "overloadpacket", op) not in loops}
    return (
        found
        | uniform_parts()
        | {
            private_aten("_foreach_mul.Scalar"): _each_mul,
            private_aten("_foreach_add.List"): _each_add,
            aten.threshold.default: _threshold,
            aten.native_layer_norm.default: _layer_norm,
            aten.native_group_norm.default: _group_norm,
        }
    )
