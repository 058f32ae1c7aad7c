"""What a recorded step has read besides its inputs, and the values it had: a recording holds while they last.

A recording keeps whatever Python computed while it was made: a module's gain, a weight in a loss, an entry of a
dict. So everything that the recorded code could read is noted down by value: all that network and loss refer to,
and the globals of every function of the user's that was called. What cannot be compared is refused by name.
"""

from __future__ import annotations

import dis
import functools
import gc
import itertools
import random
import sys
import types
import weakref
from collections import deque
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hamlearn._torch_private import HOOKS, tensor_hooks
from hamlearn.loops import outside
from hamlearn.loops.alone import alone
from hamlearn.loops.compared import (
    MISSING,
    content,
    entries,
    generators,
    in_library,
    is_atom,
    own_dict,
    own_names,
    restore_generators,
    same_items,
    slot_names,
    stands_alone,
)
from hamlearn.loops.noted import Items, Noted
from hamlearn.loops.values import UnsupportedError

_MOST = 20_000
"""How many values are followed before the search is given up."""

_VIEWS = (Iterator, KeysView, ValuesView, ItemsView, bytearray, memoryview)
_MADE_ANEW = (Tensor, tuple, list, dict, set, torch.autograd.function.FunctionCtx, *_VIEWS)
"""Kinds of arguments that are not followed."""

Parts = list[tuple[str, Any]]
"""Things that something refers to, with the names by which they are told."""


class Reads(Noted):
    """Values that a recording may depend on, as they were, and whether they still are.

    Example:
        >>> gain = {"value": 2.0}
        >>> reads = Reads()
        >>> reads.follow("gain", gain)
        >>> reads.changed()
        >>> gain["value"] = 3.0
        >>> reads.changed()
        "gain['value']"
    """

    def __init__(self) -> None:
        super().__init__()
        self.imports: list[tuple[str, set[str], str]] = []
        self.caches: list[tuple[str, Any, int]] = []
        """Functions that keep their results, and how many they had kept when they were met."""
        self.given: dict[int, Tensor] = {}
        self.made: dict[int, Any] = {}
        """Objects that the step makes itself, and may change as it likes."""
        self.reads_grad = False
        """Whether the step reads something called `grad`, which may be that of a tensor."""

    def network(self, network: nn.Module) -> None:
        """Note down a network, whose parameters and buffers are inputs, not values."""
        self.inputs(network)
        for name, tensor in (*network.named_parameters(), *network.named_buffers()):
            if tensor_hooks(tensor):
                raise UnsupportedError(f"{name!r} has a hook, which a recorded step would not call")
            self.names.append((tensor, "_backward_hooks", tensor_hooks(tensor), f"the hooks of {name!r}"))
            for field, value in self._fields(repr(name), tensor):
                self.follow(field, value)
        self.follow("the network", network)

    def inputs(self, network: nn.Module) -> None:
        """Take a network's parameters and buffers for inputs, whatever refers to them."""
        for tensor in (*network.parameters(), *network.buffers()):
            self.seen[id(tensor)] = self.given[id(tensor)] = tensor

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

    @contextmanager
    def watching(self, *, calls: bool = False) -> Iterator[None]:
        """Within, the globals that the user's functions read are noted down as they are called.

        Args:
            calls: Whether the functions of Python that they call are looked at too, as long as nothing is
                recorded: a recording makes thousands of such calls for each of theirs.

        Raises:
            UnsupportedError: If something that was noted down has changed by the end (it is put back), if random
                numbers of Python or NumPy were drawn, or if the code asked the world outside for anything.
        """
        with alone():
            yield from self._watching(calls)

    def _watching(self, calls: bool) -> Iterator[None]:
        before, outer, profile = generators(), sys.gettrace(), sys.getprofile()
        failed: list[UnsupportedError] = []
        counted: dict[int, types.CodeType] = {}

        def called(frame: types.FrameType, event: str, arg: Any) -> None:
            module = frame.f_globals.get("__name__")
            # What was made by `exec` need not have a module: it is the user's.
            if (module is not None and in_library(module)) or failed or not outside.of_step(frame, counted):
                return
            counted[id(frame.f_code)] = frame.f_code
            try:
                self._frame(frame)
            except UnsupportedError as error:
                failed.append(error)

        def asked(frame: types.FrameType, event: str, arg: Any) -> None:
            if not failed:
                try:
                    outside.refuse_call(frame, event, arg)
                except UnsupportedError as error:
                    failed.append(error)

        # What the garbage collector would call meanwhile is not part of the step.
        collects = gc.isenabled()
        gc.disable()
        sys.settrace(called)
        if calls:
            sys.setprofile(asked)
        try:
            yield
        finally:
            sys.setprofile(profile)
            sys.settrace(outer)
            if collects:
                gc.enable()
            changed = self.changed()
            if changed is not None:
                self.put_back()
                for _, cached, kept in self.caches:
                    if not kept:
                        cached.cache_clear()
            drawn = not same_items(before, generators())
            if drawn:
                restore_generators(before)
        if failed:
            raise failed[0]
        if changed is not None:
            raise UnsupportedError(f"calling it changes {changed}")
        # By now caches are filled, and modules imported, but for those behind a branch that was not taken.
        for label, cached, _ in self.caches:
            self._results(label, cached)
        for name, attributes, where in self.imports:
            self._imported(name, attributes, where)
        if self.reads_grad:
            self._gradients()
        if drawn:
            raise UnsupportedError("it draws random numbers of Python or NumPy")

    def _frame(self, frame: types.FrameType) -> None:
        code, scope = frame.f_code, frame.f_globals
        if id(code) not in self.seen:
            self.seen[id(code)] = code
            self._globals(code, scope)
        if code.co_name == "__init__" and code.co_varnames:
            begun = frame.f_locals.get(code.co_varnames[0])
            self.made[id(begun)] = begun
        for name, value in list(frame.f_locals.items()):
            # Containers and iterators among the arguments are made anew for each step, or are reached from
            # elsewhere; so is what a comprehension runs over, which Python calls ".0".
            if not isinstance(value, _MADE_ANEW) and id(value) not in self.made:
                self.follow(f"{name!r} in {code.co_name}()", value)

    def _globals(self, code: types.CodeType, scope: dict[str, Any]) -> None:
        instructions = list(dis.get_instructions(code))
        attributes = {i.argval for i in instructions if i.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM")}
        # `getattr` and `vars` take the name of an attribute as a text.
        texts = {text for text in code.co_consts if isinstance(text, str)}
        outside.refuse_code(code, attributes)
        self.reads_grad |= "grad" in attributes
        for name in {i.argval for i in instructions if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}:
            value, label = scope.get(name, MISSING), f"the global {name!r} of {scope.get('__name__')}"
            # A global may come later, and hide a name of Python's own.
            self.name(scope, name, value, label)
            if value is MISSING:
                outside.refuse_builtin(name, f"{code.co_name}()")
                continue
            outside.refuse_value(value, attributes, f"{code.co_name}()")
            if isinstance(value, types.ModuleType):
                self._module(value, attributes | texts, name)
            else:
                self.follow(label, value)
        imported = outside.imported(instructions, scope)
        self.imports += [(name, attributes, f"{code.co_name}()") for name in imported]

    def _gradients(self) -> None:
        """Note down `grad` of every tensor; that of a weight, which is an input, only as long as there is none."""
        valued = {id(tensor) for tensor, _, _, _ in self.tensors}
        for tensor in list(self.seen.values()):
            if type(tensor) not in (Tensor, nn.Parameter) or not tensor.is_leaf:
                continue
            if id(tensor) not in valued and tensor.grad is not None:
                raise UnsupportedError("it may read the grad of a weight, which a recorded step does not see")
            self.name(tensor, "grad", tensor.grad, "the grad of a tensor")
            self.follow("the grad of a tensor", tensor.grad)

    def _imported(self, name: str, attributes: set[str], where: str) -> None:
        """What a function imports when it is called, which is what a module holds then."""
        for path in itertools.accumulate(name.split("."), "{}.{}".format):
            module = sys.modules.get(path, MISSING)
            if not in_library(path):
                self.name(sys.modules, path, module, f"the module {path!r}")
            if isinstance(module, types.ModuleType):
                outside.refuse_value(module, attributes, where)
                self._module(module, attributes, path)

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

    def _module(self, module: types.ModuleType, names: set[str], label: str) -> None:
        if in_library(module.__name__) or id(module) in self.seen:
            return
        for name in names:
            value = vars(module).get(name, MISSING)
            if value is MISSING:
                continue
            self.name(vars(module), name, value, f"{label}.{name}")
            if isinstance(value, types.ModuleType):
                # Packages and their modules refer to each other.
                self.seen[id(module)] = module
                self._module(value, names, f"{label}.{name}")
                del self.seen[id(module)]
            else:
                self.follow(f"{label}.{name}", value)

    def _parts(self, label: str, value: Any) -> Parts:
        if isinstance(value, Tensor):
            # A recording's own tensors are of another class.
            if type(value) not in (Tensor, nn.Parameter):
                return []
            if value.layout is not torch.strided:
                raise UnsupportedError(f"{label} is a tensor of the layout {value.layout}, which has no loops")
            self.tensor(value, label)
            return self._fields(label, value)
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
        elif kind.__module__.startswith(("hamlearn.learner", "hamlearn.local")):
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
