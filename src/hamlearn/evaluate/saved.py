"""What a run has counted, as plain values that a checkpoint keeps as JSON: River's metrics, windows, records."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hamlearn.errors import CheckpointError

_SEQUENCES = {kind.__name__: kind for kind in (list, tuple, set, deque)}


class NotPlainError(Exception):
    """A value is not made of numbers, strings, tensors, containers of these and River's own objects."""


class Saved:
    """Something whose state is that of the attributes that `_state` names.

    Example:
        >>> class Count(Saved):
        ...     _state = ("n",)
        ...     n = 3
        >>> Count().state_dict()
        {'n': 3}
    """

    _state: tuple[str, ...] = ()

    def state_dict(self) -> dict[str, Any]:
        """What to continue from, JSON-able."""
        return {name: plain(getattr(self, name)) for name in self._state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, which `state_dict` gave."""
        for name in self._state:
            setattr(self, name, restore(getattr(self, name), state[name]))


def plain(value: Any) -> Any:
    """A metric of River, or what a metric holds, as values that JSON keeps exactly.

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
    if isinstance(value, Saved):
        return {"state": value.state_dict()}
    if isinstance(value, Tensor):
        return {"tensor": [str(value.dtype).removeprefix("torch."), plain(value.tolist())]}
    if isinstance(value, dict):
        return {"dict": [[plain(key), plain(item)] for key, item in value.items()]}
    if type(value) in _SEQUENCES.values():
        return {type(value).__name__: [plain(item) for item in value]}
    if type(value).__module__.startswith("river.") and hasattr(value, "__dict__"):
        return {"vars": {name: plain(item) for name, item in _own(value).items()}}
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
    if kind == "state":
        value.load_state_dict(content)
        return value
    if kind == "vars":
        if set(content) != set(_own(value)):
            raise CheckpointError(
                f"the checkpoint has the counts {sorted(content)}, which a {type(value).__name__} does not have. "
                "Resume with the metric, and the version of its library, that it was saved with."
            )
        vars(value).update({name: restore(getattr(value, name), item) for name, item in content.items()})
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


def _own(value: Any) -> dict[str, Any]:
    """What an object holds, without functions."""
    return {name: item for name, item in getattr(value, "__dict__", {}).items() if not callable(item)}
