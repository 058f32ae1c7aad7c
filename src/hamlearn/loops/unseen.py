"""PyTorch's own work while a step is recorded, kept from whoever watches the calls of the step.

Each operation that is recorded runs thousands of lines of PyTorch. A function set by `sys.settrace`, as `Reads`
and debuggers set it, would be called for every one of their frames, which takes as long as all the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.overrides import TorchFunctionMode

from hamlearn._base.torch_private import DispatchMode
from hamlearn.loops.values import UnsupportedError

_REFUSED = {
    ("data", "__set__"): "it sets the data of a tensor, which no recording sees",
    ("_version", "__get__"): "it reads the version of a tensor, which no recording sees",
}
"""Attributes of tensors, and what is done with them."""


@contextmanager
def unseen() -> Iterator[None]:
    """Within, nobody is told of calls."""
    watch = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(watch)


def aside(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose operations are carried out unseen; its own code, and what it calls, is seen."""

    def called(*given: Any) -> Any:
        with _Operations(), _Refused():
            return function(*given)

    return called


class _Refused(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        attribute = getattr(getattr(func, "__self__", None), "__name__", None)
        if attribute is not None and (attribute, func.__name__) in _REFUSED:
            raise UnsupportedError(_REFUSED[attribute, func.__name__])
        return func(*args, **(kwargs or {}))


class _Operations(DispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "aten":
            # It may be the user's own, in Python.
            return func(*args, **(kwargs or {}))
        watch = sys.gettrace()
        sys.settrace(None)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            sys.settrace(watch)
