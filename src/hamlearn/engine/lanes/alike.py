"""Whether two learners compute the same function of their weights, so that one compiled step serves both."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

CALLED: dict[type, tuple[str, ...]] = {
    types.FunctionType: ("__code__", "__defaults__"),
    types.MethodType: ("__self__", "__func__"),
    functools.partial: ("func", "args", "keywords"),
}
"""What functions are made of, beside the variables that they close over."""


def difference(label: str, one: Any, other: Any, twins: Iterable[tuple[Any, Any]] = ()) -> str | None:
    """Where two things differ in types, shapes or plain attributes; `None` if nowhere.

    Args:
        label: What they are called.
        one: The first.
        other: The second.
        twins: Tensors that stand for each other: the weights of one module and those of the other.

    Example:
        >>> difference("net", nn.Sequential(nn.Tanh()), nn.Sequential(nn.Sigmoid()))
        'net.0 is a Tanh here and a Sigmoid there'
        >>> difference("net", nn.Linear(2, 1), nn.Linear(2, 1))
    """
    waiting = [(label, one, other)]
    # With the things themselves, so that no other gets the number of one that is gone.
    seen = {(id(a), id(b)): (a, b) for a, b in twins}
    while waiting:
        label, one, other = waiting.pop()
        if one is other or (id(one), id(other)) in seen:
            continue
        seen[id(one), id(other)] = one, other
        if _kind(one) != _kind(other):
            return f"{label} is a {type(one).__name__} here and a {type(other).__name__} there"
        parts, others = _parts(label, one), _parts(label, other)
        if parts is None or others is None:
            if not _equal(one, other):
                return f"{label} is {one!r} here and {other!r} there"
        elif list(parts) != list(others):
            return f"{label} has {sorted({*parts} ^ {*others})} on one side only"
        else:
            waiting += [(name, part, others[name]) for name, part in parts.items()]
    return None


def _kind(thing: Any) -> Any:
    # A module with parametrizations (weight_norm, spectral_norm) has a class of its own.
    parametrized = isinstance(thing, nn.Module) and parametrize.is_parametrized(thing)
    return type(thing).__bases__ if parametrized else type(thing)


def _parts(label: str, thing: Any) -> dict[str, Any] | None:
    """What a thing is made of, by name; `None` if it is a value."""
    if isinstance(thing, nn.Module):
        return _of_module(label, thing)
    if isinstance(thing, dict):
        return {f"{label}.{key}": part for key, part in thing.items()}
    if isinstance(thing, list | tuple):
        return {f"{label}[{index}]": part for index, part in enumerate(thing)}
    if type(thing) in CALLED:
        parts = {f"{name.strip('_')} of {label}": getattr(thing, name) for name in CALLED[type(thing)]}
        names = thing.__code__.co_freevars if isinstance(thing, types.FunctionType) else ()
        return parts | {f"{n!r} in {label}": thing.__closure__[k].cell_contents for k, n in enumerate(names)}
    compares = isinstance(thing, type) or type(thing).__eq__ is not object.__eq__  # type: ignore[comparison-overlap]
    if compares or not hasattr(thing, "__dict__"):
        return None
    return {f"{label}.{name}": part for name, part in vars(thing).items()}


def _of_module(label: str, module: nn.Module) -> dict[str, Any]:
    """Children, layouts of weights and buffers, hooks, and plain attributes."""
    parts: dict[str, Any] = {}
    for name, value in vars(module).items():
        if name in ("_parameters", "_buffers"):
            parts |= {f"{label}.{key}": _layout(tensor) for key, tensor in value.items()}
        elif name == "_modules":
            parts |= {f"{label}.{key}": child for key, child in value.items()}
        elif isinstance(value, list) and any(isinstance(entry, weakref.ref) for entry in value):
            continue  # nn.RNN keeps weak references of its weights.
        elif "hooks" in name and isinstance(value, dict):
            # Their keys are numbers that no two hooks of a program share.
            parts[f"{label}.{name}"] = list(value.values())
        elif not {f"{name}_g", f"{name}_orig"} & module._parameters.keys():
            # With torch.nn.utils.weight_norm and spectral_norm a hook computes this from a weight of that name.
            parts[f"{label}.{name}"] = value
    return parts


def _layout(tensor: Tensor | None) -> Any:
    return None if tensor is None else (tuple(tensor.shape), tensor.dtype, tensor.requires_grad)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)
