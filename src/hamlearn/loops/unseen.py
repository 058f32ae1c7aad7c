"""PyTorch's own work while a step is recorded, kept from whoever watches the calls of the step.

Each operation that is recorded runs thousands of lines of PyTorch. A function set by `sys.settrace`, as `Reads`
and debuggers set it, would be called for every one of their frames, which takes as long as all the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hamlearn._torch_private import DispatchMode


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
        with _Operations():
            return function(*given)

    return called


class _Operations(DispatchMode):  # type: ignore[misc,valid-type]
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
