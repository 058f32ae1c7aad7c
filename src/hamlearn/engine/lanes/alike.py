"""Whether two learners compute the same function of their weights, so that one compiled step serves both."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from hamlearn.engine.eager.parts import LearnerParts

PLAIN = (bool, int, float, complex, str, bytes, type(None))


def how_members_differ(one: LearnerParts, other: LearnerParts) -> str | None:
    """Where two learners differ in modules, shapes, or the plain values of modules and loss; `None` if nowhere."""
    first, second = facts_of(one), facts_of(other)
    for label in {**first, **second}:
        a, b = first.get(label, "absent"), second.get(label, "absent")
        if type(a) is not type(b) or a != b:
            return f"{label} is {_shown(a)} here and {_shown(b)} there"
    return None


def facts_of(parts: LearnerParts) -> dict[str, Any]:
    """What a recorded step has built in, by what to call it."""
    return dict(_of_module("the network", parts.network)) | dict(_of_function("the loss", parts.system.loss))


def _of_module(label: str, network: nn.Module) -> Iterator[tuple[str, Any]]:
    for path, module in network.named_modules():
        name = f"{label}.{path}" if path else label
        # A module with parametrizations (weight_norm, spectral_norm) has a class of its own.
        parametrized = parametrize.is_parametrized(module)
        yield name, type(module).__bases__[0] if parametrized else type(module)
        for key, value in vars(module).items():
            if not key.startswith("_") and _is_plain(value):
                yield f"{name}.{key}", value
            elif isinstance(value, types.FunctionType):
                yield from _of_function(f"{name}.{key}", value)
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            yield f"{name}.{key}", _layout(tensor)


def _of_function(label: str, function: Any) -> Iterator[tuple[str, Any]]:
    """The code of a function and the plain values that it closes over; the attributes of a callable object."""
    if isinstance(function, nn.Module):
        yield from _of_module(label, function)
    elif isinstance(function, functools.partial):
        yield from _of_function(label, function.func)
        yield f"the arguments of {label}", tuple(filter(_is_plain, function.args))
        yield from ((f"{k}=... of {label}", v) for k, v in function.keywords.items() if _is_plain(v))
    elif isinstance(function, types.FunctionType):
        yield label, function.__code__
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            value = cell.cell_contents
            if _is_plain(value):
                yield f"{name!r} in {label}", value
            elif isinstance(value, types.FunctionType):
                yield from _of_function(f"{name!r} in {label}", value)
    else:
        yield label, type(function) if hasattr(function, "__dict__") else function
        yield from ((f"{label}.{k}", v) for k, v in getattr(function, "__dict__", {}).items() if _is_plain(v))


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if type(value) is tuple else type(value) in PLAIN


def _layout(tensor: Tensor | None) -> Any:
    return None if tensor is None else (tuple(tensor.shape), tensor.dtype, tensor.requires_grad)


def _shown(value: Any) -> str:
    return f"a {value.__name__}" if isinstance(value, type) else repr(value)
