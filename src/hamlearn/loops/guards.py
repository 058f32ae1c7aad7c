"""What a recorded step may read beside its tensors, compared before every block.

A recording is a pure function of weights, buffers, state and sample, and holds while what `Guards` lists is as it
was. Everything else that Python reads in a step (objects, files, the clock, the entries of a dict) is fixed when
the step is recorded, as with `jax.jit`.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Mapping
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn

from hamlearn._base.torch_private import HOOKS
from hamlearn.loops.value_snapshot import MISSING, ValueSnapshot, is_plain, look_up
from hamlearn.loops.values import UnsupportedError

_LIBRARIES = {"torch", "hamlearn", "numpy"}
_FOLLOWED = (types.FunctionType, types.MethodType, functools.partial, nn.Module, type)
_MODULE_FIELDS = vars(nn.Module()).keys() - {"training"}
"""Where every module keeps parts and hooks, which are compared by themselves."""
_requires_grad, _weight_hooks = attrgetter("requires_grad"), attrgetter("_backward_hooks")


class Guards:
    """A snapshot of what a recorded step may read, and the comparison with what is there now.

    Compared are:

    - training modes, `requires_grad`, identity and number of parameters, buffers and submodules, hooks of modules
      and of weights;
    - numbers, strings, booleans, None, tuples of them, functions, and the identity of tensors, if the modules or
      the functions hold them: in attributes, closures, defaults, and globals that their code names;
    - autocast, the default dtype and the precision of matrix products.

    Args:
        functions: What the step calls, by label: functions, methods, partials, callable objects or modules.
        modules: Modules that it calls, by label.

    Example:
        >>> layer = nn.Dropout(0.5)
        >>> guards = Guards({}, {"network": layer})
        >>> guards.changed()
        >>> layer.p = 0.25
        >>> guards.changed()
        'network.p'
    """

    def __init__(self, functions: Mapping[str, Any], modules: Mapping[str, nn.Module]) -> None:
        self._values = ValueSnapshot()
        self._tables: list[dict[str, Any]] = []
        """Dicts of parameters, buffers and submodules."""
        self._weights: list[Tensor] = []
        every = nn.modules.module
        self._hooks: list[Any] = [vars(every).get(f"_global{name}", ()) for name in HOOKS]
        self._visited: dict[int, Any] = {}
        for label, given in (*modules.items(), *functions.items()):
            self._visit(label, given)
        self._sizes = list(map(len, self._tables))
        self._parts = list(chain.from_iterable(map(dict.values, self._tables)))
        self._grads = list(map(_requires_grad, self._weights))
        self._hooked = self._count_hooks()
        self._modes = _modes()

    def changed(self) -> str | None:
        """What differs from the snapshot, the first thing found; `None` if nothing does."""
        # Runs before every block: only C loops over flat lists, some microseconds for a small network.
        found = self._values.changed()
        if found is not None:
            return found
        parts = chain.from_iterable(map(dict.values, self._tables))
        if list(map(len, self._tables)) != self._sizes or not all(map(is_, parts, self._parts)):
            return "a parameter, buffer or submodule (another object, one more or one less)"
        if list(map(_requires_grad, self._weights)) != self._grads:
            return "requires_grad of a parameter"
        if self._count_hooks() != self._hooked:
            return "the hooks of a module or of a weight"
        return None if _modes() == self._modes else "autocast, dtype or precision of products"

    def values(self) -> dict[str, Any]:
        """The numbers, strings, functions and tensors that are compared, by label."""
        return self._values.values()

    def require_recordable(self) -> None:
        """Raise `UnsupportedError` if modules or weights have hooks."""
        if any(self._hooked):
            raise UnsupportedError(
                "a module or a weight of the network has hooks, which a compiled step would not call: remove "
                "them, or use engine='eager'"
            )

    def require_unchanged_by_step(self) -> None:
        """Raise `UnsupportedError` if a call of the step has changed a value, and put that value back.

        A counter or a list that grows would stand still in a compiled step.
        """
        found = self._values.put_back()
        if found is not None:
            raise UnsupportedError(f"a step changes {found}, which a compiled step would leave as it is")

    def _count_hooks(self) -> tuple[int, int]:
        weights = map(_weight_hooks, self._weights)
        return sum(map(len, self._hooks)), sum(len(hooks) for hooks in weights if hooks)

    def _visit(self, label: str, value: Any) -> None:
        if id(value) in self._visited:
            return
        self._visited[id(value)] = value  # held, so that no other object takes its id
        if isinstance(value, nn.Module):
            for name, module in value.named_modules():
                self._module(f"{label}.{name}" if name else label, module)
        elif isinstance(value, types.FunctionType):
            self._function(label, value)
        elif isinstance(value, types.MethodType):
            self._visit(label, value.__func__)
            self._visit(label, value.__self__)
        elif isinstance(value, functools.partial):
            self._visit(label, value.func)
            self._values.add(f"the arguments of {label}", value, "args", value.args)
            for name, argument in value.keywords.items():
                self._add(f"{name}=... of {label}", value.keywords, name, argument)
        elif isinstance(value, type):
            self._class(value)
        elif callable(value) and hasattr(value, "__dict__"):
            self._object(label, value)

    def _add(self, label: str, scope: Any, name: str, value: Any) -> None:
        self._values.add(label, scope, name, value)
        if isinstance(value, _FOLLOWED):
            self._visit(label, value)

    def _module(self, label: str, module: nn.Module) -> None:
        self._visited[id(module)] = module
        self._tables += [module._parameters, module._buffers, module._modules]
        self._weights += [weight for weight in module._parameters.values() if weight is not None]
        self._hooks += [getattr(module, name) for name in HOOKS]
        self._object(label, module)

    def _object(self, label: str, value: Any) -> None:
        """The attributes of an object and of its class, and what its methods read."""
        own = vars(value)
        for name, held in list(own.items()):
            if not (isinstance(value, nn.Module) and name in _MODULE_FIELDS):
                self._add(f"{label}.{name}", own, name, held)
        for name in self._class(type(value)):
            # An attribute of the object itself would hide that of its class.
            self._values.add(f"{label}.{name}", own, name, own.get(name, MISSING))

    def _class(self, kind: type) -> set[str]:
        """What the methods of a class read; the names of its other attributes."""
        names: set[str] = set()
        for cls in kind.__mro__:
            if _in_library(cls.__module__):
                continue
            for name, held in list(vars(cls).items()):
                function = getattr(held, "__func__", None) or getattr(held, "fget", None) or held
                if isinstance(function, types.FunctionType):
                    self._visit(f"{cls.__name__}.{name}", function)
                elif not name.startswith("__"):
                    self._values.add(f"{cls.__name__}.{name}", cls, name, held)
                    names.add(name)
        return names

    def _function(self, label: str, function: types.FunctionType) -> None:
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            value = look_up(cell, name)
            # A decorator may keep a list of its own, of timings say, which is not a part of the step.
            if is_plain(value) or isinstance(value, _FOLLOWED) or not hasattr(function, "__wrapped__"):
                self._add(f"{name!r} in {label}", cell, name, value)
        if _in_library(function.__globals__.get("__name__")):
            return
        self._values.add(f"the defaults of {label}", function, "__defaults__", function.__defaults__)
        for name, value in (function.__kwdefaults__ or {}).items():
            self._add(f"{name}=... of {label}", function.__kwdefaults__, name, value)
        for name in _names_in(code) & function.__globals__.keys():
            self._add(f"the global {name!r}", function.__globals__, name, function.__globals__[name])


def _names_in(code: types.CodeType) -> set[str]:
    """Names in a function, and in the functions and comprehensions that are written within it."""
    nested = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*map(_names_in, nested))


def _in_library(module: str | None) -> bool:
    first = str(module).partition(".")[0]
    return first in _LIBRARIES or first in sys.stdlib_module_names


def _modes() -> tuple[Any, ...]:
    return (
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
        torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
    )
