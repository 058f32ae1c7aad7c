"""PyTorch's private functions, all that are used here, and why each of them.

A release of PyTorch may change any of these without notice. No other file of this package uses one. Each is bound
once, when this file is imported, so that a release without one of them says so at once.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

USED: dict[str, tuple[str, str]] = {}
"""By the name in this file: where PyTorch has it, and why no public function is used."""


def _bound(name: str, path: str, why: str) -> Any:
    USED[name] = path, why
    try:
        return operator.attrgetter(path)(torch)
    except AttributeError as error:
        raise ImportError(
            f"PyTorch {torch.__version__} has no torch.{path}, which hamlearn needs ({why}): install one of the "
            "releases that hamlearn is tested with, as constraints.txt names them"
        ) from error


_MANY = "one call for a list of tensors; one call for each takes several times as long if they are small"
foreach_mul = _bound("foreach_mul", "_foreach_mul", _MANY)
foreach_mul_ = _bound("foreach_mul_", "_foreach_mul_", _MANY)
foreach_add = _bound("foreach_add", "_foreach_add", _MANY)
foreach_add_ = _bound("foreach_add_", "_foreach_add_", _MANY)
foreach_addcmul_ = _bound("foreach_addcmul_", "_foreach_addcmul_", _MANY)
foreach_addcdiv_ = _bound("foreach_addcdiv_", "_foreach_addcdiv_", _MANY)
foreach_div_ = _bound("foreach_div_", "_foreach_div_", _MANY)
foreach_sqrt = _bound("foreach_sqrt", "_foreach_sqrt", _MANY)
foreach_lerp = _bound("foreach_lerp", "_foreach_lerp", _MANY)
foreach_copy_ = _bound("foreach_copy_", "_foreach_copy_", _MANY)
foreach_norm = _bound("foreach_norm", "_foreach_norm", _MANY)
non_finite_ = _bound(
    "non_finite_",
    "_amp_foreach_non_finite_check_and_unscale_",
    "the check that gradient scalers make: one call for a list, where `isfinite` takes two for each tensor",
)
run_backward = _bound(
    "run_backward",
    "autograd.Variable._execution_engine.run_backward",
    "`torch.autograd.grad` spends about 30 µs in Python per call, a fifth of a step of a small network",
)
set_grad = _bound(
    "set_grad", "_C._set_grad_enabled", "switched twice a step, where the public class takes four times as long"
)

_TREES = "states and inputs may be trees, and PyTorch has no public functions for them"
tree_flatten = _bound("tree_flatten", "utils._pytree.tree_flatten", _TREES)
tree_unflatten = _bound("tree_unflatten", "utils._pytree.tree_unflatten", _TREES)
tree_leaves = _bound("tree_leaves", "utils._pytree.tree_leaves", _TREES)
tree_map = _bound("tree_map", "utils._pytree.tree_map", _TREES)
tree_map_only = _bound("tree_map_only", "utils._pytree.tree_map_only", _TREES)

_GRAPHLESS = "the loss of a classifier and its derivative, without a graph"
log_softmax = _bound("log_softmax", "ops.aten._log_softmax.default", _GRAPHLESS)
log_softmax_backward = _bound("log_softmax_backward", "ops.aten._log_softmax_backward_data.default", _GRAPHLESS)

_dispatch_mode = _bound(
    "_dispatch_mode", "utils._python_dispatch.TorchDispatchMode", "operations are seen while a step is recorded"
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
    """How PyTorch takes large operations apart into small ones."""
    from torch._decomp import decomposition_table

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
    from torch._dynamo.exc import TorchDynamoException

    return TorchDynamoException


# What modules and tensors keep about themselves, to see when it changes. No public function tells of all hooks.

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""The names under which a module keeps its hooks."""


def tensor_hooks(tensor: Tensor) -> Any:
    """The hooks of a tensor, which run when it gets a gradient; `None` or empty where it has none."""
    return tensor._backward_hooks
