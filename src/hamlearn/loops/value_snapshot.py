"""Plain Python values by the place that holds them, as they were, and whether they still are."""

from __future__ import annotations

import enum
import functools
import types
from collections import deque
from collections.abc import Callable
from itertools import repeat
from operator import call, is_
from typing import Any

import torch
from torch import Tensor


class Missing(enum.Enum):
    """Stands for a name that has no value."""

    MISSING = enum.auto()


MISSING = Missing.MISSING
_PLAIN = {bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size}
# Functions and classes are compared by identity: a cell of a notebook that is run again defines new ones.
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, type)
_CONTAINERS = (list, dict, set, deque)


class ValueSnapshot:
    """Numbers, strings, booleans, None, tensors, tuples of them and functions, and where each of them is held.

    Of a tensor only the identity counts: a recording reads its entries at every step. A value is held by a dict,
    a cell of a closure, a class, or the defaults of a function.

    Example:
        >>> settings = {"gain": 1.0}
        >>> snapshot = ValueSnapshot()
        >>> snapshot.add("gain", settings, "gain", 1.0)
        >>> snapshot.changed()
        >>> settings["gain"] = 2.0
        >>> snapshot.changed()
        'gain'
    """

    def __init__(self) -> None:
        # Parallel lists, so that a comparison runs in C.
        self._getters: list[Callable[[str, Any], Any]] = []
        self._names: list[str] = []
        self._values: list[Any] = []
        self._labels: list[str] = []
        self._scopes: list[Any] = []
        self._lengths: list[tuple[Any, int, str]] = []
        self._places: set[tuple[int, str]] = set()

    def add(self, label: str, scope: Any, name: str, value: Any) -> None:
        """Note down what a name stands for; of lists, dicts and sets the length, of other objects nothing."""
        place = (id(scope), name)
        if place in self._places:
            return
        self._places.add(place)
        if is_plain(value):
            self._getters.append(scope.get if isinstance(scope, dict) else functools.partial(look_up, scope))
            self._names.append(name)
            self._values.append(value)
            self._labels.append(label)
            self._scopes.append(scope)
        elif type(value) in _CONTAINERS:
            self._lengths.append((value, len(value), label))

    def values(self) -> dict[str, Any]:
        """The values by label, as they were noted down."""
        return dict(zip(self._labels, self._values, strict=True))

    def changed(self) -> str | None:
        """The label of the first value that is not what it was; lengths are not compared here."""
        now = list(map(call, self._getters, self._names, repeat(MISSING)))
        if not all(map(is_, now, self._values)):
            for label, value, before in zip(self._labels, now, self._values, strict=True):
                if value is not before and not _equal(value, before):
                    return label
            # Equal, but other objects: with these, the next comparison is by identity again.
            self._values = now
        return None

    def put_back(self) -> str | None:
        """Give everything its value and its length back; the label of the first that had changed."""
        found = self.changed()
        if found is not None:
            for scope, name, value in zip(self._scopes, self._names, self._values, strict=True):
                if not _equal(look_up(scope, name), value):
                    _assign(scope, name, value)
        for container, length, label in self._lengths:
            if len(container) != length:
                found = found or f"the length of {label}"
                if isinstance(container, list):
                    del container[length:]
        return found


def is_plain(value: Any) -> bool:
    """Whether a value is one that is compared."""
    if type(value) is tuple:
        return all(map(is_plain, value))
    return type(value) in _PLAIN or isinstance(value, (enum.Enum, Tensor, *_FUNCTIONS))


def _equal(now: Any, before: Any) -> bool:
    """Whether two values are equal and of one type: 1, 1.0 and True lead to other types of tensors."""
    if type(now) is not type(before) or not is_plain(now):
        return False
    if isinstance(now, Tensor):
        return now is before
    if type(now) is tuple:
        return len(now) == len(before) and all(map(_equal, now, before))
    return bool(now == before)


def look_up(scope: Any, name: str, default: Any = MISSING) -> Any:
    """What a name stands for in a dict, a class, a function or a cell of a closure."""
    if isinstance(scope, dict):
        return scope.get(name, default)
    if isinstance(scope, types.CellType):
        try:
            return scope.cell_contents
        except ValueError:  # the variable has not been assigned yet
            return default
    if isinstance(scope, type):
        # Not getattr, which looks into the bases as well.
        return vars(scope).get(name, default)
    return getattr(scope, name, default)


def _assign(scope: Any, name: str, value: Any) -> None:
    if isinstance(scope, dict):
        scope[name] = value
        if value is MISSING:
            del scope[name]
    elif isinstance(scope, types.CellType):
        scope.cell_contents = value
    else:
        setattr(scope, name, value)
