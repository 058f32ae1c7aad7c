"""Keys of a configuration, derived from the functions and classes that are built from them."""

from __future__ import annotations

import difflib
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from datetime import timedelta
from functools import cache, cached_property
from typing import Any, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le
from pydantic import StringConstraints, TypeAdapter, ValidationError

from hamlearn.errors import ConfigError
from hamlearn.experiments.run_types import MOST_PLACES, PARTS, Words, sayable, words
from hamlearn.streams.values import shown

MOST_STEPS = 1_000_000
"""Steps that a signal may take before its first sample, or look ahead: more would look as if it hung."""

_POLICY = r"^(drop|block|latest-n|latest-[1-9][0-9]{0,5})$"
LIMITS: dict[str, dict[type, Sequence[Any]]] = {
    "ahead": {int: [Le(10_000)]},
    "categories": {int: [Le(MOST_PLACES)]},
    "chunk": {int: [Le(65_536)]},
    "classes": {int: [Le(MOST_PLACES)]},
    "hashed": {int: [Le(MOST_PLACES)]},
    "k": {int: [Le(1_000_000)]},
    "lags": {int: [Le(10_000)]},
    "late": {int: [Le(1_000_000)]},
    "n": {int: [Le(1_000_000)]},
    "policy": {
        str: [StringConstraints(pattern=_POLICY), Words('"drop", "block", "latest-n" or, say, "latest-16"')]
    },
    "seed": {int: [Ge(0)]},
    "substeps": {int: [Le(10_000)]},
    "t1": {int: [Le(100_000)]},
    "t2": {int: [Le(100_000)]},
    "ticks_per_message": {int: [Le(65_536)]},
    "timeout": {float: [Gt(0), Le(3600)]},
    "washout": {int: [Le(MOST_STEPS)]},
}
"""By the name and the type of an argument: what a file may not ask for although Python may, mostly because it
would take all the time or all the memory. Others have the limits of their type and of their owner only."""


@dataclass(frozen=True, eq=False)
class Key:
    """What one key takes.

    Args:
        hint: The values that a file can give it, as a type.
        default: Its value where it is left out.
        required: Whether it must not be left out.
        meaning: What its owner's docstring says of it.
        path: Whether it names a file.
        units: Whether it is a length of time, which a unit's name says too.
    """

    hint: Any
    default: Any = None
    required: bool = False
    meaning: str = ""
    path: bool = False
    units: bool = False

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.hint)

    @property
    def allowed(self) -> str:
        """What it takes, in words."""
        return words(self.hint)

    def test(self, value: Any) -> bool:
        """Whether a value is allowed."""
        try:
            self._adapter.validate_python(value)
        except ValidationError:
            return False
        return True

    def require(self, name: str, value: Any) -> None:
        """Refuse a value that is not allowed."""
        if not self.test(value):
            raise ConfigError(f"{name} = {shown(value)} is not allowed. Allowed is {self.allowed}.")


Keys = Mapping[str, Key]


@cache
def keys_of(owner: Callable[..., Any]) -> Keys:
    """The arguments of a function or a class that a file can say, with their types, defaults and meanings.

    Example:
        >>> from hamlearn.credit import Echo
        >>> {name: key.default for name, key in keys_of(Echo).items()}
        {'truncate': None, 'every': None, 'dissipate': 'sequence', 'memory': 'stored'}
        >>> keys_of(Echo)["truncate"].allowed
        'a whole number'
    """
    typed = owner.__init__ if inspect.isclass(owner) and not is_dataclass(owner) else owner
    hints, told = get_type_hints(typed, include_extras=True), arguments(owner)
    found = {}
    for name, parameter in inspect.signature(owner).parameters.items():
        hint = sayable(hints.get(name), LIMITS.get(name, {}))
        if hint is not None:
            required = parameter.default is inspect.Parameter.empty
            default = None if required else _plain(parameter.default)
            members = {get_origin(part) or part for part in get_args(hints[name])}
            path, units = os.PathLike in members, timedelta in members
            found[name] = Key(hint, default, required, told.get(name, ""), path, units)
    return found


def _plain(default: Any) -> Any:
    """A default as a file would say it."""
    for kind, classes in PARTS.items():
        if isinstance(default, kind):
            return next(name for name, one in classes.items() if type(default) is one)
    return list(default) if isinstance(default, tuple) else default


def arguments(owner: Callable[..., Any]) -> dict[str, str]:
    """What a docstring says of each argument.

    Example:
        >>> from hamlearn.credit import Echo
        >>> arguments(Echo)["truncate"]
        'How many tokens echo (r), counted from the end; `None` for all. Truncated BPTT.'
    """
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", inspect.getdoc(owner) or "", re.MULTILINE | re.DOTALL)
    entries = re.split(r"\n(?=    \w)", section[1].rstrip()) if section else []
    pairs = (entry.strip().partition(": ") for entry in entries)
    return {name: " ".join(meaning.split()) for name, colon, meaning in pairs if colon}


def without(keys: Keys, *names: str) -> Keys:
    """All keys but some."""
    return {name: key for name, key in keys.items() if name not in names}


def optional(key: Key, default: Any) -> Key:
    """A key that another default fits."""
    return replace(key, default=default, required=False)


def unknown(what: str, name: str, allowed: Sequence[str]) -> str:
    """The message for a name that nobody knows."""
    near = difflib.get_close_matches(name[:100], allowed, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    what = what if len(what) < 200 else what[:200] + "…"
    return f"the {what} is not known.{hint} Allowed are {', '.join(allowed)}."


@contextmanager
def said(section: str, given: Mapping[str, Any], called: Mapping[str, str] | None = None) -> Iterator[None]:
    """Tell a mistake that an owner finds by the key that a file says it with.

    Args:
        section: Of the file.
        given: Its keys and their values.
        called: Keys of arguments that have another name in a file.

    Example:
        >>> from hamlearn.streams import hold
        >>> with said("stream", {"hold": 0}, {"k": "hold"}):
        ...     hold([], k=0)
        Traceback (most recent call last):
        hamlearn.errors.ConfigError: stream.hold = 0 is not allowed: k=0 shows no sample. Give 1 or more steps.
    """
    try:
        yield
    except ConfigError as error:
        argument = re.match(r"(\w+)(?:\[.*?\])?=", str(error))
        name = "" if argument is None else (called or {}).get(argument[1], argument[1])
        if name not in given:
            raise
        raise ConfigError(f"{section}.{name} = {shown(given[name])} is not allowed: {error}") from error
