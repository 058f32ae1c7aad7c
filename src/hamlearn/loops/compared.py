"""Comparing Python values with what they were, and telling the user's code from that of libraries."""

from __future__ import annotations

import enum
import functools
import logging
import random
import sys
import sysconfig
import types
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hamlearn._base.torch_private import HOOKS

MISSING = object()
"""Stands for an entry that is not there."""

_PLAIN = {bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range, slice}
_PLAIN |= {torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format}
_ALONE: tuple[type, ...] = (
    logging.Logger,
    # What a field of a named tuple is in its class.
    type(vars(namedtuple("_Any", "field"))["field"]),
    types.BuiltinFunctionType,
    types.CodeType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
)
_UNCHANGING = {"_thread", "re", "weakref", "_weakref", "datetime", "decimal", "fractions", "uuid", "zoneinfo"}
_UNCHANGING |= {"operator", "torch._C", "_abc", "torch"}
_LIBRARIES = {"hamlearn", "numpy"}
# PyTorch, and what it calls itself while it records.
_LIBRARIES |= {"torch", "torchgen", "functorch", "triton", "sympy", "mpmath", "typing_extensions", "networkx"}
_LIBRARIES |= {"jinja2", "fsspec", "filelock", "setuptools", "optree", "opt_einsum"}


def is_atom(value: Any) -> bool:
    """Whether a value says all about itself: it can be compared, and refers to nothing else."""
    return type(value) in _PLAIN or isinstance(value, (enum.Enum, np.generic, np.dtype))


def stands_alone(value: Any) -> bool:
    """Whether a thing is compared by what it is, and not followed into."""
    if isinstance(value, _ALONE) or type(value) is object:
        return True
    return type(value).__module__ in _UNCHANGING and not hasattr(value, "__dict__")


def in_library(module: str | None) -> bool:
    """Whether a module belongs to Python, PyTorch, NumPy or this package."""
    if module is None:
        return True
    first = module.split(".", 1)[0]
    return first in _LIBRARIES or (first in sys.stdlib_module_names and _is_pythons(sys.modules.get(first)))


@functools.lru_cache(maxsize=1024)
def _is_pythons(module: types.ModuleType | None) -> bool:
    """Whether a module that is called as one of Python's is that one: a package of the user's may be `code`."""
    file = str(getattr(module, "__file__", None) or "")
    return not file or (file.startswith(_PYTHON) and "site-packages" not in file)


_PYTHON = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))


def own_dict(value: Any) -> dict[str, Any] | None:
    """The fields of an object, without asking a `__getattr__` of its own; `None` where it keeps none."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


def entries(mapping: Any) -> list[tuple[Any, Any]]:
    """What a dict holds, whatever a subclass makes of its methods."""
    if not isinstance(mapping, dict):
        return list(mapping.items())
    return list((OrderedDict if isinstance(mapping, OrderedDict) else dict).items(mapping))


def form_of(tensor: Tensor) -> tuple[Any, ...]:
    """What can be told of a tensor without its numbers."""
    return tensor.shape, tensor.dtype, tensor.stride(), tensor.requires_grad


def same_numbers(now: Tensor, then: Tensor) -> bool:
    """Whether two tensors of one form hold the same numbers; what is not a number is compared by its bits."""
    return torch.equal(now, then) or _bits(now).equal(_bits(then))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def slot_names(kind: type) -> list[str]:
    """Names of the fields that a class keeps in slots."""
    names: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            # Python puts the class before a private name.
            private = name.startswith("__") and not name.endswith("__")
            names.append(f"_{base.__name__.lstrip('_')}{name}" if private else name)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def own_names(cls: type) -> list[str]:
    """What is defined in a class itself, without what Python puts there."""
    return [name for name, value in vars(cls).items() if name[:2] != "__" or type(value) is types.FunctionType]


def content(cell: types.CellType) -> Any:
    """What a cell of a closure holds."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def look_up(scope: Any, name: str) -> Any:
    """An entry of a dict, a class or an object."""
    if isinstance(scope, dict):
        return scope.get(name, MISSING)
    if isinstance(scope, type):
        return vars(scope).get(name, MISSING)
    return getattr(scope, name, MISSING)


def equal(now: Any, then: Any) -> bool:
    """Whether a value is what it was: the same object, or an atom or tuple of atoms that is equal to the last bit.

    Example:
        >>> equal(2.0, 2.0), equal(2.0, 2), equal(0.0, -0.0), equal([], [])
        (True, False, False, False)
    """
    if now is then:
        return True
    if type(now) is not type(then):
        return False
    if isinstance(now, float):
        return now.hex() == then.hex()
    if is_atom(now):
        return bool(now == then)
    if isinstance(now, types.MethodType):
        return now.__self__ is then.__self__ and now.__func__ is then.__func__
    if isinstance(now, tuple):
        return len(now) == len(then) and all(map(equal, now, then))
    return False


def same_items(now: Any, then: Any) -> bool:
    """Whether arrays, and tuples and lists of them, are equal to the last bit."""
    if isinstance(now, np.ndarray):
        same_kind = isinstance(then, np.ndarray) and now.dtype == then.dtype and now.shape == then.shape
        return same_kind and now.tobytes() == then.tobytes()
    if isinstance(now, tuple | list):
        return len(now) == len(then) and all(same_items(a, b) for a, b in zip(now, then, strict=True))
    if isinstance(now, Tensor):
        return torch.equal(now, then)
    return bool(now == then)


def generators() -> list[Any]:
    """State of the random numbers of Python and NumPy."""
    return [random.getstate(), np.random.get_state()]


def restore_generators(state: list[Any]) -> None:
    """Put them back to what `generators` told."""
    random.setstate(state[0])
    np.random.set_state(state[1])


def ambient() -> tuple[Any, ...]:
    """What PyTorch computes by, beyond its arguments."""
    return (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
        torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        *(tuple(getattr(nn.modules.module, f"_global{name}", ())) for name in HOOKS),
    )
