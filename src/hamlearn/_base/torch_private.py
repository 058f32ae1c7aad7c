"""PyTorch's private functions, all that are used here: why each of them, and what stands in where it is missing.

A release of PyTorch may change any of these without notice. No other file of this package uses one, each is bound
once, when this file is imported, and `USED` lists them with their reasons and their substitutes. The substitutes
give the same results, only more slowly; the tests run with all of them in place of the originals.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hamlearn._base import plain_trees

Tensors = Sequence[Tensor]


class Private(NamedTuple):
    """One private function.

    Attributes:
        path: Where PyTorch has it.
        why: Why no public one is used.
        instead: What is used where it is missing.
    """

    path: str
    why: str
    instead: Any


USED: dict[str, Private] = {}
"""By the name that it has in this file."""


def _bound(name: str, path: str, why: str, instead: Any) -> Any:
    """PyTorch's own function, or the substitute where this release has none."""
    USED[name] = Private(path, why, instead)
    try:
        return operator.attrgetter(path)(torch)
    except AttributeError:
        return instead


# Lists of tensors, one call for all: PyTorch's optimizers are built on these.


def _mul(tensors: Tensors, by: Any) -> list[Tensor]:
    return [tensor * by for tensor in tensors]


def _mul_(tensors: Tensors, by: Any) -> None:
    for tensor in tensors:
        tensor.mul_(by)


def _add(tensors: Tensors, others: Tensors, *, alpha: float = 1) -> list[Tensor]:
    return [torch.add(a, b, alpha=alpha) for a, b in zip(tensors, others, strict=True)]


def _add_(tensors: Tensors, others: Any, *, alpha: float = 1) -> None:
    partners = others if isinstance(others, Sequence) else [others] * len(tensors)
    for a, b in zip(tensors, partners, strict=True):
        a.add_(b, alpha=alpha)


def _addcmul_(tensors: Tensors, ones: Tensors, others: Tensors, *, value: float = 1) -> None:
    for a, b, c in zip(tensors, ones, others, strict=True):
        a.addcmul_(b, c, value=value)


def _addcdiv_(tensors: Tensors, ones: Tensors, others: Tensors, *, value: float = 1) -> None:
    for a, b, c in zip(tensors, ones, others, strict=True):
        a.addcdiv_(b, c, value=value)


def _div_(tensors: Tensors, by: Any) -> None:
    for tensor in tensors:
        tensor.div_(by)


def _sqrt(tensors: Tensors) -> list[Tensor]:
    return [tensor.sqrt() for tensor in tensors]


def _lerp(tensors: Tensors, others: Tensors, weight: float) -> list[Tensor]:
    return [torch.lerp(a, b, weight) for a, b in zip(tensors, others, strict=True)]


def _copy_(tensors: Tensors, others: Tensors) -> None:
    for a, b in zip(tensors, others, strict=True):
        a.copy_(b)


def _norm(tensors: Tensors) -> list[Tensor]:
    return [torch.linalg.vector_norm(tensor) for tensor in tensors]


_MANY = "one call for a list of tensors; one call for each takes several times as long where they are small"
foreach_mul = _bound("foreach_mul", "_foreach_mul", _MANY, _mul)
foreach_mul_ = _bound("foreach_mul_", "_foreach_mul_", _MANY, _mul_)
foreach_add = _bound("foreach_add", "_foreach_add", _MANY, _add)
foreach_add_ = _bound("foreach_add_", "_foreach_add_", _MANY, _add_)
foreach_addcmul_ = _bound("foreach_addcmul_", "_foreach_addcmul_", _MANY, _addcmul_)
foreach_addcdiv_ = _bound("foreach_addcdiv_", "_foreach_addcdiv_", _MANY, _addcdiv_)
foreach_div_ = _bound("foreach_div_", "_foreach_div_", _MANY, _div_)
foreach_sqrt = _bound("foreach_sqrt", "_foreach_sqrt", _MANY, _sqrt)
foreach_lerp = _bound("foreach_lerp", "_foreach_lerp", _MANY, _lerp)
foreach_copy_ = _bound("foreach_copy_", "_foreach_copy_", _MANY, _copy_)
foreach_norm = _bound("foreach_norm", "_foreach_norm", _MANY, _norm)


# Whether all is finite, and derivatives.


def _non_finite_(tensors: Tensors, found: Tensor, one: Tensor) -> None:
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
        found.fill_(1.0)


def _backward(
    roots: Tensors, seeds: Tensors, keep: bool, create: bool, inputs: Tensors, unused: bool, accumulate_grad: bool
) -> Sequence[Tensor | None]:
    return torch.autograd.grad(roots, inputs, seeds, keep, create, allow_unused=unused)


non_finite_ = _bound(
    "non_finite_",
    "_amp_foreach_non_finite_check_and_unscale_",
    "the check that gradient scalers make: one call for a list, where `isfinite` takes two for each tensor",
    _non_finite_,
)
run_backward = _bound(
    "run_backward",
    "autograd.Variable._execution_engine.run_backward",
    "`torch.autograd.grad` spends about 30 µs in Python per call, a fifth of a step of a small network",
    _backward,
)

# Trees of tensors. PyTorch's own know whatever a user registered with them; the substitute knows tuples, lists and
# dicts.

_TREES = "states and inputs may be trees, and PyTorch has no public functions for them"
tree_flatten = _bound("tree_flatten", "utils._pytree.tree_flatten", _TREES, plain_trees.tree_flatten)
tree_unflatten = _bound("tree_unflatten", "utils._pytree.tree_unflatten", _TREES, plain_trees.tree_unflatten)
tree_leaves = _bound("tree_leaves", "utils._pytree.tree_leaves", _TREES, plain_trees.tree_leaves)
tree_map = _bound("tree_map", "utils._pytree.tree_map", _TREES, plain_trees.tree_map)
tree_map_only = _bound("tree_map_only", "utils._pytree.tree_map_only", _TREES, plain_trees.tree_map_only)


# Gradients on and off.

set_grad = _bound(
    "set_grad",
    "_C._set_grad_enabled",
    "switched twice a step, where the public class takes four times as long",
    torch.set_grad_enabled,
)


# The loss of a classifier and its derivative, without a graph.


def _unsupported(*given: Any) -> Tensor:
    raise RuntimeError("this release of PyTorch has no such operation")


_GRAPHLESS = "a loss and its derivative without a graph; if it is missing, the loss is differentiated instead"
log_softmax = _bound("log_softmax", "ops.aten._log_softmax.default", _GRAPHLESS, _unsupported)
log_softmax_backward = _bound(
    "log_softmax_backward", "ops.aten._log_softmax_backward_data.default", _GRAPHLESS, _unsupported
)


# Recording a step.


class _NoDispatch:
    def __enter__(self) -> Any:
        raise RuntimeError("this release of PyTorch does not show which operations are called")

    def __exit__(self, *error: object) -> None:
        return None


_dispatch_mode = _bound(
    "_dispatch_mode",
    "utils._python_dispatch.TorchDispatchMode",
    "operations are seen while a step is recorded; where they cannot be, it is not, and runs eagerly",
    _NoDispatch,
)


class DispatchMode(_dispatch_mode):  # type: ignore[misc,valid-type]
    """Sees every operation that is called within."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else the first operation that is seen imports the compiler of PyTorch, only to keep it away.
        return False


# What follows is imported when a step is recorded: it takes longer to import than all the rest.


def aten(name: str) -> Any:
    """An operation that recorded graphs hold, by its private name; an object of its own where there is none.

    Example:
        >>> aten("_to_copy") is torch.ops.aten._to_copy
        True
    """
    try:
        return operator.attrgetter(name)(torch.ops.aten)
    except AttributeError:
        return object()


def schema(target: Any) -> Any:
    """What an operation takes and whether it writes, where it says so; `None` where it does not."""
    return getattr(target, "_schema", None)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """How PyTorch takes large operations apart into small ones; none, and steps with large ones run eagerly."""
    try:
        from torch._decomp import decomposition_table
    except ImportError:
        return {}
    return dict(decomposition_table)


def traced(function: Callable[..., Any], inputs: Sequence[Tensor], table: dict[Any, Any] | None = None) -> Any:
    """The graph of the operations that a function calls, derivatives included, with no writes to its inputs.

    Writes in place become new values while the operations are recorded, as in the tracing of `torch.compile`.
    """
    from torch._subclasses.functional_tensor import dispatch_functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    options: dict[str, Any] = {"tracing_mode": "fake", "decomposition_table": table}
    if "_allow_non_fake_inputs" in inspect.signature(make_fx).parameters:
        # A step holds tensors of its own, such as constants of a module, that are not among its inputs.
        options["_allow_non_fake_inputs"] = True
    return make_fx(dispatch_functionalize(function), **options)(*inputs)


def compile_errors() -> type[Exception]:
    """What `torch.compile` raises where it cannot compile a function."""
    try:
        from torch._dynamo.exc import TorchDynamoException
    except ImportError:
        return RuntimeError
    return TorchDynamoException


# What modules and tensors keep about themselves, to see when it changes. No public function tells of all hooks.

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""The names under which a module keeps its hooks."""


def forward_hooks(module: torch.nn.Module) -> bool:
    """Whether a call of a module alone, without its parts, runs hooks."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def global_hooks() -> bool:
    """Whether a call of any module runs hooks."""
    every = torch.nn.modules.module
    return bool(every._global_forward_hooks or every._global_forward_pre_hooks)


def tensor_hooks(tensor: Tensor) -> Any:
    """The hooks of a tensor, which run when it gets a gradient; `None` or empty where it has none."""
    return tensor._backward_hooks
