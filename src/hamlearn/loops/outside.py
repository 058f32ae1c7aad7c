"""What a step must not ask for while it is recorded: the clock, files, the process, the interpreter itself."""

from __future__ import annotations

import dis
import functools
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
_FILES = {"exists", "is_file", "isfile", "is_dir", "isdir", "stat", "getmtime", "getsize", "listdir", "scandir"}
_FILES |= {"getcwd", "cwd", "getpid", "urandom", "open", "iterdir", "walk"}
_ALWAYS = {
    "read_text": "reads a file",
    "read_bytes": "reads a file",
    "__globals__": "reads globals by a name that is not in its code",
    "f_globals": "reads globals by a name that is not in its code",
    "f_locals": "looks into the interpreter",
    "_version": "reads the version of a tensor",
}
"""Attributes that are refused whatever has them."""


def refuse_code(code: types.CodeType, instructions: Sequence[dis.Instruction], attributes: set[str]) -> None:
    """Refuse what a function does, by the names in its code.

    Raises:
        UnsupportedError: It sets the data of a tensor, or reads what is never the same.
    """
    if any(i.opname == "STORE_ATTR" and i.argval == "data" for i in instructions):
        raise UnsupportedError(f"{code.co_name}() sets the data of a tensor, which no recording sees")
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
    if first in ("os", "posixpath", "ntpath", "pathlib") and _FILES & (attributes | own):
        raise UnsupportedError(f"{where} asks for files or the process")


def imported(instructions: Sequence[dis.Instruction], scope: dict[str, Any]) -> list[str]:
    """Full names of the modules that a function imports when it is called."""
    found = []
    for index, instruction in enumerate(instructions):
        if instruction.opname == "IMPORT_NAME":
            # Before it, Python loads how many levels up to look, and which names are wanted.
            level = next(i.argval for i in reversed(instructions[:index]) if isinstance(i.argval, int))
            package = scope.get("__package__") or ""
            found.append(resolve_name("." * level + instruction.argval, package) if level else instruction.argval)
    return found


def refuse_results(label: str, cached: functools._lru_cache_wrapper[Any]) -> None:
    """Refuse a cache that holds results already, of a function that may read more than its arguments."""
    function = cached.__wrapped__
    if not cached.cache_info().currsize or in_library(getattr(function, "__module__", None)):
        return
    read: list[Any] = [function]
    if isinstance(function, types.FunctionType) and not function.__closure__:
        # Names of attributes are among these, which are not looked up: they are of arguments, or of libraries.
        read = [function.__globals__.get(name) for name in function.__code__.co_names]
    if not all(value is None or _of_library(value) for value in read):
        raise UnsupportedError(
            f"{label} keeps results of earlier calls, and what they were made of is not known: clear it with "
            "cache_clear() before the first compiled block"
        )


def _of_library(value: Any) -> bool:
    return in_library(value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", ""))


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
