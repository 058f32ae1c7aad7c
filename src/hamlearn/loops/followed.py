"""All that a value refers to, noted down: fields, entries, closures, classes, caches."""

from __future__ import annotations

import functools
import gc
import random
import types
import weakref
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hamlearn._base.torch_private import HOOKS
from hamlearn.loops.compared import (
    MISSING,
    content,
    entries,
    in_library,
    is_atom,
    own_dict,
    own_names,
    slot_names,
    stands_alone,
)
from hamlearn.loops.noted import Items, Noted
from hamlearn.loops.values import UnsupportedError

_MOST = 20_000
"""How many values are followed before the search is given up."""

_LEARNERS = (
    "hamlearn.learner",
    "hamlearn.local",
    "hamlearn.engines",
    "hamlearn.orders.local",
    "hamlearn.state.labels",
    "hamlearn.streams.reader",
    "hamlearn.theory.usual_rates",
)
"""Where the classes are whose objects move while a step is made."""

Parts = list[tuple[str, Any]]
"""Things that something refers to, with the names by which they are told."""


class Followed(Noted):
    """Values, and all that they refer to, as they were.

    Attributes:
        given: Parameters and buffers, which are inputs of a step, by identity.
        caches: Functions that keep their results, and how many they had kept when they were met.

    Example:
        >>> gain = {"value": 2.0}
        >>> followed = Followed()
        >>> followed.follow("gain", gain)
        >>> followed.changed()
        >>> gain["value"] = 3.0
        >>> followed.changed()
        "gain['value']"
    """

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[int, Tensor] = {}
        self.caches: list[tuple[str, Any, int]] = []

    def follow(self, label: str, value: Any) -> None:
        """Note down a value and all that it refers to.

        Raises:
            UnsupportedError: If it holds something that cannot be compared.
        """
        waiting: deque[tuple[str, Any]] = deque([(label, value)])
        while waiting:
            label, value = waiting.popleft()
            if is_atom(value) or id(value) in self.seen:
                continue
            if len(self.seen) > _MOST:
                raise UnsupportedError(f"{label} refers to more values than can be followed")
            self.seen[id(value)] = value
            waiting.extend(self._parts(label, value))

    def _parts(self, label: str, value: Any) -> Parts:
        if isinstance(value, Tensor):
            # A recording's own tensors are of another class.
            if type(value) not in (Tensor, nn.Parameter):
                return []
            if value.layout is not torch.strided:
                raise UnsupportedError(f"{label} is a tensor of the layout {value.layout}, which has no loops")
            self.refuse_shared(label, value.data_ptr())
            self.tensor(value, label)
            return self._fields(label, value)
        if isinstance(value, torch.jit.ScriptFunction):
            raise UnsupportedError(f"{label} is compiled by torch.jit, which a recording does not see into")
        if isinstance(value, weakref.ref):
            return [(label, value())]
        if isinstance(value, types.BuiltinMethodType | types.MethodWrapperType):
            # A method of a dict or list reads that.
            return [] if isinstance(value.__self__, types.ModuleType) else [(label, value.__self__)]
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, property):
            return [(label, part) for part in (value.fget, value.fset, value.fdel) if part is not None]
        if isinstance(value, staticmethod | classmethod):
            return [(label, value.__func__)]
        if isinstance(value, types.ModuleType):
            return self._settings(label, value)
        if isinstance(value, torch.Generator):
            self.arrays.append((value, value.get_state(), lambda source: source.get_state(), label))
            return []
        if stands_alone(value):
            return []
        if isinstance(value, types.FunctionType):
            return self._function(label, value)
        if isinstance(value, types.MethodType):
            return [(label, value.__self__), (label, value.__func__)]
        if isinstance(value, functools._lru_cache_wrapper):
            self.caches.append((label, value, value.cache_info().currsize))
            self._results(label, value)
            return self._fields(label, value)
        if isinstance(value, functools.partial):
            for part in ("func", "args", "keywords"):
                self.name(value, part, getattr(value, part), f"{label}.{part}")
            return [(label, value.func), (f"{label}.args", value.args), (f"{label}.keywords", value.keywords)]
        if isinstance(value, np.ndarray):
            self.refuse_shared(label, value.ctypes.data)
            self.arrays.append((value, value.copy(), lambda array: array, label))
            return (
                [(f"{label}[{place}]", item) for place, item in enumerate(value.flat)]
                if value.dtype.hasobject
                else []
            )
        if isinstance(value, random.SystemRandom):
            raise UnsupportedError(f"{label} draws random numbers of the operating system")
        if isinstance(value, random.Random):
            self.arrays.append((value, value.getstate(), lambda source: source.getstate(), label))
            return []
        if isinstance(value, tuple | list | deque | set | frozenset | dict | types.MappingProxyType):
            return [*self._entries(label, value), *self._fields(label, value)]
        return self._object(label, value)

    def refuse_shared(self, label: str, address: int) -> None:
        """Refuse what lies in the memory of a weight or a buffer, and changes with it at every step."""
        for own in self.given.values():
            memory = own.untyped_storage()
            if memory.data_ptr() <= address < memory.data_ptr() + memory.nbytes():
                raise UnsupportedError(
                    f"{label} shares the memory of a weight or a buffer, which a recorded step does not see: hold "
                    "that itself, and take its view or its copy within the step"
                )

    def _entries(self, label: str, value: Any) -> Parts:
        mapping = isinstance(value, dict | types.MappingProxyType)
        items = entries(value) if mapping else list(enumerate(value))
        if isinstance(value, set):
            self.arrays.append((value, set(value), lambda members: members, label))
        elif not isinstance(value, tuple | frozenset):
            self.table(value if mapping else Items(value), items, label)
        parent = label.removesuffix("._modules")
        if parent != label:
            return [(f"{parent}.{key}", item) for key, item in items]
        keys = [key for key, _ in items] if mapping else []
        if any(isinstance(key, Tensor) or (type(key) is int and key in self.given) for key in keys):
            raise UnsupportedError(f"{label} is a dict by tensors, and the weights of a recorded step are others")
        found = [(f"a key of {label}", key) for key in keys if not is_atom(key)]
        return [*found, *((f"{label}[{key!r}]", item) for key, item in items)]

    def _object(self, label: str, value: Any) -> Parts:
        kind = type(value)
        if hasattr(kind, "__next__"):
            raise UnsupportedError(f"{label} is a {kind.__name__}, which changes when it is read")
        if isinstance(value, nn.Module):
            for name in HOOKS:
                if getattr(value, name, None) or getattr(nn.modules.module, f"_global{name}", None):
                    raise UnsupportedError(f"{label} has {name.strip('_')}, which a recorded step would not call")
        elif kind.__module__.startswith(_LEARNERS):
            raise UnsupportedError(f"{label} is a {kind.__name__}, whose state a recorded step cannot follow")
        elif kind.__module__.split(".")[0] == "hamlearn":
            return []
        if own_dict(value) is None and not slot_names(kind):
            raise UnsupportedError(f"{label} is a {kind.__module__}.{kind.__name__}, which cannot be compared")
        self.kind(value, label)
        return [*self._fields(label, value), (kind.__name__, kind)]

    def _fields(self, label: str, value: Any) -> Parts:
        found: Parts = []
        own = own_dict(value)
        if own is not None:
            items = list(own.items())
            if isinstance(value, nn.RNNBase):
                # What it keeps of its weights for itself, and renews where they are others.
                items = [
                    (name, item) for name, item in items if name not in ("_flat_weights", "_flat_weight_refs")
                ]
                for name, item in items:
                    self.name(own, name, item, f"{label}.{name}")
            else:
                self.table(own, items, f"{label}.")
            found += [(f"{label}.{name}", item) for name, item in items]
        for name in slot_names(type(value)):
            item = getattr(value, name, MISSING)
            if item is not MISSING:
                self.name(value, name, item, f"{label}.{name}")
                found.append((f"{label}.{name}", item))
        return found

    def _class(self, cls: type) -> Parts:
        """What the user's classes hold, which methods read like the fields of an object."""
        found: Parts = []
        if not in_library(type(cls).__module__):
            found.append((type(cls).__name__, type(cls)))
        for base in cls.__mro__:
            if in_library(base.__module__):
                continue
            self.classes.append((base, base.__mro__, own_names(base)))
            for name, value in list(vars(base).items()):
                if name.startswith("__") and not isinstance(value, types.FunctionType):
                    continue
                self.name(base, name, value, f"{base.__name__}.{name}")
                found.append((f"{base.__name__}.{name}", value))
        return found

    def _function(self, label: str, value: types.FunctionType) -> Parts:
        # `functools.wraps` gives a function the name of another's module, the user's or a library's.
        written = value.__globals__.get("__name__")
        if written is not None and in_library(written) and in_library(value.__module__):
            return []
        name = value.__name__
        for part in ("__code__", "__defaults__", "__kwdefaults__"):
            self.name(value, part, getattr(value, part), f"{part.strip('_')} of {name}()")
        found: Parts = [(f"a default of {name}()", default) for default in value.__defaults__ or ()]
        found.append((f"defaults of {name}()", value.__kwdefaults__))
        for free, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            held, where = content(cell), f"{free!r} in {name}()"
            self.cells.append((cell, held, where))
            found.append((where, held))
        return [*found, *self._fields(label, value)]

    def _settings(self, label: str, module: types.ModuleType) -> Parts:
        """What a module of the user's that was met by itself holds beside functions, classes and modules."""
        if in_library(module.__name__):
            return []
        found: Parts = []
        for name, value in list(vars(module).items()):
            if name.startswith("__") or isinstance(value, type | types.FunctionType | types.ModuleType):
                continue
            self.name(vars(module), name, value, f"{label}.{name}")
            found.append((f"{label}.{name}", value))
        return found

    def _results(self, label: str, cached: Any) -> None:
        """Note down what a cache holds: while it does, the function is not called, whatever has changed since."""
        for held in gc.get_referents(cached):
            if isinstance(held, type) or held is vars(cached):
                continue
            if type(held) is not dict:
                # The result of a bounded cache, or what it was called with.
                self.follow(label, held)
                continue
            for key, result in list(held.items()):
                self.name(held, key, result, label)
                if not type(result).__module__.startswith("functools"):
                    self.follow(label, result)
