"""Settings as JSON that can be compared."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def identity(value: Any) -> Any:
    """A JSON description of a setting: values of numbers and tensors, names of functions, attributes of objects.

    Two functions with one name have one description: what they compute is not compared.

    Example:
        >>> import math
        >>> identity({"eta": 0.5, "beta": math.exp})
        {'eta': 0.5, 'beta': 'math.exp'}
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return f"tensor {value.dtype}{list(value.shape)} {hashlib.sha256(data).hexdigest()[:16]}"
    if isinstance(value, Mapping):
        return {str(key): identity(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [identity(item) for item in value]
    if isinstance(value, functools.partial):
        return identity([value.func, value.args, value.keywords])
    if hasattr(value, "__qualname__"):  # functions, methods and classes
        return f"{value.__module__}.{value.__qualname__}"
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return {"type": kind, **identity(vars(value) if hasattr(value, "__dict__") else {"repr": repr(value)})}
