"""Settings as JSON that two of them share if, and only if, they compute the same."""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def identity(value: Any, above: tuple[Any, ...] = ()) -> Any:
    """A JSON description that two equal settings share: of numbers, schedules, tensors and mappings.

    Args:
        value: The setting.
        above: What holds it, for functions and objects that hold themselves.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return f"tensor {value.dtype}{list(value.shape)} {_digest(data)}"
    for distance, holder in enumerate(reversed(above), start=1):
        if holder is value:
            return f"the one {distance} above"
    inner = functools.partial(identity, above=(*above, value))
    if isinstance(value, Mapping):
        return {str(key): inner(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [inner(item) for item in value]
    if isinstance(value, functools.partial):
        return {"partial": inner([value.func, value.args, value.keywords])}
    if isinstance(value, types.MethodType):
        return {"method": inner([value.__func__, value.__self__])}
    if isinstance(value, types.FunctionType):
        closed = [_closed(cell) for cell in value.__closure__ or ()]
        parts = repr([_code(value.__code__), inner([closed, value.__defaults__, value.__kwdefaults__])])
        return f"function {value.__module__}.{value.__qualname__} {_digest(parts.encode())}"
    if isinstance(value, types.BuiltinFunctionType):
        return f"builtin {value.__module__}.{value.__qualname__}"
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if not hasattr(value, "__dict__"):
        return {"type": kind, "repr": repr(value)}
    return {"type": kind, **inner(vars(value))}


def _closed(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it was deleted, or not yet made
        return None


def _code(code: types.CodeType) -> list[Any]:
    inner = [_code(item) if isinstance(item, types.CodeType) else repr(item) for item in code.co_consts]
    return [code.co_code, code.co_names, inner]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
