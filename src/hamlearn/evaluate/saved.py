"""Objects as plain values that a checkpoint keeps as JSON: metrics, windows of samples, baselines."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor, nn

from hamlearn.errors import CheckpointError

_SEQUENCES = {kind.__name__: kind for kind in (list, tuple, set, deque)}


class NotPlainError(Exception):
    """A value is not made of numbers, strings, tensors, containers of these and objects that have them."""


def plain(value: Any) -> Any:
    """A value as others that JSON keeps exactly.

    Of an object these are the attributes that its class names in `_state`, else all but functions.

    Example:
        >>> from river import metrics
        >>> plain(metrics.MAE())
        {'vars': {'_mean': {'vars': {'n': 0.0, '_mean': 0.0}}}}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        # JSON has no NaN and no infinity; NumPy's floats are floats, too.
        return float(value) if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, Tensor):
        return {"tensor": [str(value.dtype).removeprefix("torch."), plain(value.tolist())]}
    if isinstance(value, dict):
        return {"dict": [[plain(key), plain(item)] for key, item in value.items()]}
    if type(value) in _SEQUENCES.values():
        return {type(value).__name__: [plain(item) for item in value]}
    if isinstance(value, nn.Module):
        # A metric of torchmetrics: its own state, and the count that it asks for before it computes.
        if type(value).__module__.startswith("torchmetrics.wrappers"):
            raise NotPlainError("wrappers of torchmetrics do not save what they wrap")
        value.persistent(True)  # type: ignore[operator]
        return {"module": [value.update_count, plain(dict(value.state_dict()))]}
    if hasattr(value, "__dict__") and not callable(value):
        return {"vars": {name: plain(getattr(value, name)) for name in _own(value)}}
    raise NotPlainError(f"it holds a {type(value).__module__}.{type(value).__name__}")


def restore(value: Any, state: Any) -> Any:
    """The value that `state` describes. Objects and dictionaries are filled in place: others may share them."""
    if not isinstance(state, dict):
        return state
    ((kind, content),) = state.items()
    if kind == "float":
        return float(content)
    if kind == "tensor":
        dtype, numbers = content
        return torch.tensor(restore(None, numbers), dtype=getattr(torch, dtype))
    if kind == "module":
        count, states = content
        value.persistent(True)
        value.load_state_dict(restore(None, states))
        value._update_count = count
        return value
    if kind == "vars":
        if set(content) != set(_own(value)):
            raise CheckpointError(
                f"the checkpoint has the counts {sorted(content)}, which a {type(value).__name__} does not have. "
                "Resume with the metric, and the version of its library, that it was saved with."
            )
        for name, item in content.items():
            setattr(value, name, restore(getattr(value, name), item))
        return value
    if kind == "dict":
        old = value if isinstance(value, dict) else {}
        # A defaultdict of River makes what it does not have yet.
        new = getattr(old, "default_factory", None) or (lambda: None)
        pairs = [(restore(None, key), item) for key, item in content]
        filled = {key: restore(old[key] if key in old else new(), item) for key, item in pairs}
        old.clear()
        old.update(filled)
        return old
    before = list(value) if isinstance(value, list | tuple) else []
    before += [None] * (len(content) - len(before))
    items = [restore(one, item) for one, item in zip(before, content, strict=False)]
    return deque(items, value.maxlen) if kind == "deque" else _SEQUENCES[kind](items)


def _own(value: Any) -> list[str]:
    """The names of the attributes that make up an object's state."""
    named = getattr(type(value), "_state", None)
    return list(named or (name for name, item in getattr(value, "__dict__", {}).items() if not callable(item)))
