"""What a step must not ask for while it is recorded: the clock, files, the process, the interpreter itself."""

from __future__ import annotations

import contextlib
import datetime
import dis
import io
import types
from collections.abc import Mapping, Sequence
from importlib.util import resolve_name
from typing import Any

from hamlearn.loops.compared import in_library
from hamlearn.loops.values import UnsupportedError

_CALLERS = (
    "hamlearn.",
    "torch.nn.",
    "torch.autograd.",
    "torch.utils.checkpoint",
    "torch.func",
    "torch._functorch",
)
"""Where the step calls the user's functions from."""
_ASIDE = ("importlib.", "logging", "warnings")
"""What these call, finders and handlers of other libraries among it, computes nothing."""
_OUTSIDE = {"time", "secrets", "uuid", "socket", "select", "queue", "_queue", "_socket", "subprocess"}
_OUTSIDE |= {"tempfile", "shutil", "glob", "genericpath", "posix", "nt", "_io", "io"}
"""Modules whose functions return something else at every call, or ask for files."""
_ASKS = {"open", "input", "globals", "eval", "exec", "__import__"}
"""Built-in functions that do, or that may read anything."""
_WITHIN = {
    "datetime": ({"now", "today", "utcnow"}, "asks for the date"),
    "os": ({"environ", "getenv"}, "reads the environment of the process"),
    "sys": ({"modules", "argv", "_getframe", "_current_frames"}, "looks into the interpreter"),
    "importlib": ({"import_module", "reload"}, "imports a module by its name"),
    "inspect": ({"currentframe", "stack"}, "looks into the interpreter"),
}
"""Of some modules only these names, and what is said where a function reads them."""
_OWN = ("hamlearn.", "torch.")
"""What these call, to load a module or to write to a log, is no part of the step."""
_HARMLESS = {"sleep", "fspath", "fsencode", "fsdecode"}
"""Functions of `time` and of the operating system that ask for nothing."""
_ALWAYS = {
    "read_text": "reads a file",
    "read_bytes": "reads a file",
    "__globals__": "reads globals by a name that is not in its code",
    "f_globals": "reads globals by a name that is not in its code",
    "f_locals": "looks into the interpreter",
}
"""Attributes that are refused whatever has them."""


def refuse_code(code: types.CodeType, attributes: set[str]) -> None:
    """Refuse what a function does, by the names in its code.

    Raises:
        UnsupportedError: It reads what is never the same.
    """
    for name in sorted(attributes & _ALWAYS.keys()):
        raise UnsupportedError(f"{code.co_name}() {_ALWAYS[name]} (.{name})")


def refuse_builtin(name: str, where: str) -> None:
    """Refuse a name that is no global, where it stands for a function that asks for anything."""
    if name in _ASKS:
        raise UnsupportedError(f"{where} calls {name}()")


def refuse_value(value: Any, attributes: set[str], where: str) -> None:
    """Refuse a global: a module, a class or a function that asks the world outside.

    Raises:
        UnsupportedError: It is one of these, and the function reads such an attribute of it.
    """
    if isinstance(value, types.ModuleType):
        module = value.__name__
        if module.split(".")[0] in _OUTSIDE:
            raise UnsupportedError(f"{where} reads the module {module!r}")
    else:
        module = str(getattr(value, "__module__", None))
        if isinstance(value, types.BuiltinFunctionType | types.FunctionType) and module in _OUTSIDE:
            raise UnsupportedError(f"{where} calls {module}.{value.__name__}()")
    first = module.split(".")[0]
    names, what = _WITHIN.get(first, (set(), ""))
    own = {getattr(value, "__name__", "")} if isinstance(value, types.FunctionType) else set()
    if names & (attributes | own):
        raise UnsupportedError(f"{where} {what}")


def refuse_call(frame: types.FrameType, event: str, called: Any) -> None:
    """Refuse what the user's code really calls, itself or by a function of Python's or NumPy's.

    Args:
        frame: Who calls, or what is called where that is written in Python.
        event: As `sys.setprofile` says it.
        called: The function, where it is not written in Python.

    Raises:
        UnsupportedError: It asks the world outside.
    """
    what = None
    if event == "c_call":
        what = _asks(called)
    elif event == "call" and frame.f_globals.get("__name__") == "os":
        what = "reads the environment of the process" if "_Environ." in frame.f_code.co_qualname else None
    if what is None:
        return
    caller: types.FrameType | None = frame
    asks = None
    while caller is not None:
        name = str(caller.f_globals.get("__name__"))
        if name.startswith(_ASIDE):
            return
        if name.startswith(_OWN):
            break
        if asks is None and not in_library(name):
            asks = caller.f_code.co_name
        caller = caller.f_back
    if asks is not None:
        raise UnsupportedError(f"{asks}() {what}")


def _asks(called: Any) -> str | None:
    """What a built-in function asks for; `None` where it computes with what it is given."""
    name, owner = called.__name__, getattr(called, "__self__", None)
    module = getattr(called, "__module__", None)
    if module == "time" and name not in _HARMLESS:
        return f"calls time.{name}()"
    if module in ("posix", "nt") and name not in _HARMLESS and not name.startswith("_"):
        return "asks for files or the process"
    if module == "_io" and name.startswith("open"):
        return f"calls {name}()"
    if (
        isinstance(owner, io.IOBase)
        and name.startswith("read")
        and not isinstance(owner, io.BytesIO | io.StringIO)
    ):
        return "reads a file"
    if isinstance(owner, type) and issubclass(owner, datetime.date) and name in ("now", "today", "utcnow"):
        return "asks for the date"
    return None


def imported(instructions: Sequence[dis.Instruction], scope: dict[str, Any]) -> list[str]:
    """Full names of the modules that a function imports when it is called."""
    found = []
    for index, instruction in enumerate(instructions):
        if instruction.opname == "IMPORT_NAME":
            # Before it, Python loads how many levels up to look, and which names are wanted.
            level = next(i.argval for i in reversed(instructions[:index]) if isinstance(i.argval, int))
            package = scope.get("__package__") or ""
            # A name that cannot be resolved is behind a branch that was not taken: the step would have failed.
            with contextlib.suppress(ImportError):
                found.append(
                    resolve_name("." * level + instruction.argval, package) if level else instruction.argval
                )
    return found


def of_step(frame: types.FrameType, counted: Mapping[int, types.CodeType]) -> bool:
    """Whether the step calls this, through modules and functions, and not a library for reasons of its own.

    While it records, PyTorch imports, logs and simplifies, which runs the code of other libraries and is no part
    of the step.
    """
    caller = frame.f_back
    while caller is not None:
        name = str(caller.f_globals.get("__name__"))
        if id(caller.f_code) in counted or name.startswith(_CALLERS):
            return True
        if name.startswith(_ASIDE) or not in_library(name):
            return False
        # A decorator of PyTorch's, or a function of Python's that calls what it was given.
        caller = caller.f_back
    return True
