"""Whether two learners compute the same function of their weights, so that one recorded step serves both."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Pair = tuple[str, Any, Any]


def difference(label: str, one: Any, other: Any, pairs: Iterable[tuple[Any, Any]] = ()) -> str | None:
    """Where two things differ, other than in the values of a module's parameters and buffers; `None` if nowhere.

    Args:
        label: What they are called.
        one: Here.
        other: There.
        pairs: Things that stand for each other, wherever they are met.

    Example:
        >>> difference("net", nn.Sequential(nn.Tanh()), nn.Sequential(nn.Sigmoid()))
        'net.0 is a Tanh here and a Sigmoid there'
        >>> difference("net", nn.Linear(2, 1), nn.Linear(2, 1))
    """
    waiting: deque[Pair] = deque([(label, one, other)])
    seen: dict[tuple[int, int], Any] = {(id(a), id(b)): (a, b) for a, b in pairs}
    while waiting:
        label, one, other = waiting.popleft()
        if one is other or (id(one), id(other)) in seen:
            continue
        seen[id(one), id(other)] = one, other
        if type(one) is not type(other):
            return f"{label} is a {_kind(one)} here and a {_kind(other)} there"
        parts = _parts(label, one, other)
        if isinstance(parts, str):
            return parts
        waiting.extend(parts)
    return None


def _kind(thing: Any) -> str:
    return getattr(type(thing), "__name__", str(type(thing)))


def _parts(label: str, one: Any, other: Any) -> list[Pair] | str:
    if isinstance(one, nn.Module):
        return _modules(label, one, other)
    if isinstance(one, Tensor):
        alike = one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
        return [] if alike else f"{label} holds other numbers"
    if isinstance(one, np.ndarray):
        alike = one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
        return [] if alike else f"{label} holds other numbers"
    if isinstance(one, dict):
        if list(one) != list(other):
            return f"{label} has the entries {list(one)} here and {list(other)} there"
        return [(f"{label}.{key}", one[key], other[key]) for key in one]
    if isinstance(one, tuple | list | deque):
        if len(one) != len(other):
            return f"{label} has {len(one)} entries here and {len(other)} there"
        return [(f"{label}[{i}]", a, b) for i, (a, b) in enumerate(zip(one, other, strict=True))]
    if isinstance(one, types.FunctionType):
        if one.__code__ is not other.__code__:
            return f"{label} is {one.__qualname__} here and {other.__qualname__} there"
        cells = zip(one.__code__.co_freevars, one.__closure__ or (), other.__closure__ or (), strict=True)
        found = [(f"{name!r} in {label}", a.cell_contents, b.cell_contents) for name, a, b in cells]
        return [*found, (f"defaults of {label}", one.__defaults__, other.__defaults__)]
    if isinstance(one, types.MethodType):
        return [(label, one.__self__, other.__self__), (label, one.__func__, other.__func__)]
    if isinstance(one, functools.partial):
        given, there = (one.func, one.args, one.keywords), (other.func, other.args, other.keywords)
        return [(label, a, b) for a, b in zip(given, there, strict=True)]
    if hasattr(one, "__dict__") and "__eq__" not in _defined(type(one)):
        return [(label, vars(one), vars(other))]
    return [] if one == other else f"{label} is {one!r} here and {other!r} there"


def _modules(label: str, one: nn.Module, other: nn.Module) -> list[Pair] | str:
    found: list[Pair] = []
    mine, there = vars(one), vars(other)
    if mine.keys() != there.keys():
        return f"{label} has the attributes {sorted({*mine} ^ {*there})} on one side only"
    for name, value in mine.items():
        if name in ("_parameters", "_buffers"):
            layouts = [{key: _layout(tensor) for key, tensor in table.items()} for table in (value, there[name])]
            if layouts[0] != layouts[1]:
                return f"{label} has {layouts[0]} here and {layouts[1]} there"
        elif name == "_modules":
            if list(value) != list(there[name]):
                return f"{label} has the parts {list(value)} here and {list(there[name])} there"
            found += [(f"{label}.{key}", child, there[name][key]) for key, child in value.items()]
        elif "hooks" in name and isinstance(value, dict):
            # Under numbers that no two hooks of a program share.
            found.append((f"{label}.{name}", list(value.values()), list(there[name].values())))
        else:
            found.append((f"{label}.{name}", value, there[name]))
    return found


def _layout(tensor: Tensor | None) -> Any:
    return None if tensor is None else (tuple(tensor.shape), tensor.dtype, tensor.requires_grad)


def _defined(kind: type) -> set[str]:
    return {name for base in kind.__mro__ if base is not object for name in vars(base)}
