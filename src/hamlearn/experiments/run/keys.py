"""Keys of a configuration: the arguments of the functions and classes that are built from it."""

from __future__ import annotations

import difflib
import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Len
from pydantic import ConfigDict, TypeAdapter, ValidationError, create_model

from hamlearn.credit import CREDITS, Credit
from hamlearn.errors import ConfigError
from hamlearn.integrators import INTEGRATORS, Integrator

PARTS: dict[type, Mapping[str, type]] = {Credit: CREDITS, Integrator: INTEGRATORS}
"""Classes that a file gives by name; their own arguments are keys beside the name."""
UNITS = ("seconds", "minutes", "hours", "days", "weeks")
"""How a file says a `timedelta`."""
_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class Key:
    """One key of a section.

    Attributes:
        hint: The values that a file can give it, as a type.
        default: Its value if it is left out.
        required: Whether it must not be left out.
        meaning: What its owner's docstring says of it.
    """

    hint: Any
    default: Any = None
    required: bool = False
    meaning: str = ""

    @property
    def allowed(self) -> str:
        """The values that it takes, in words."""
        return _words(TypeAdapter(self.hint).json_schema())


Keys = Mapping[str, Key]


def keys_of(owner: Callable[..., Any]) -> dict[str, Key]:
    """The arguments of a function or a class that a file can give, with types, defaults and meanings.

    Example:
        >>> from hamlearn.credit import Echo
        >>> {name: key.default for name, key in keys_of(Echo).items()}
        {'truncate': None, 'every': None, 'dissipate': 'sequence', 'memory': 'stored'}
        >>> keys_of(Echo)["dissipate"].allowed
        'one of "sequence", "token"'
    """
    typed = owner.__init__ if inspect.isclass(owner) and not is_dataclass(owner) else owner
    hints, meanings = get_type_hints(typed, include_extras=True), arguments(owner)
    found = {}
    for name, parameter in inspect.signature(owner).parameters.items():
        hint = _sayable(hints.get(name))
        if hint is not None:
            required = parameter.default is inspect.Parameter.empty
            found[name] = Key(
                hint, None if required else _plain(parameter.default), required, meanings.get(name, "")
            )
    return found


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


def validate(section: str, given: Mapping[str, Any], keys: Keys) -> None:
    """Check the names and types of what a section says, with a pydantic model of its keys.

    Raises:
        ConfigError: Naming the key, its value, and what is allowed.
    """
    fields: dict[str, Any] = {name: (key.hint, ... if key.required else None) for name, key in keys.items()}
    try:
        create_model(section, __config__=_STRICT, **fields).model_validate(dict(given))
    except ValidationError as errors:
        error = errors.errors(include_url=False)[0]
        name = str(error["loc"][0])
        if error["type"] == "extra_forbidden":
            raise ConfigError(unknown(f"{section}.{name}", name, list(keys))) from None
        if error["type"] == "missing":
            raise ConfigError(f"{section}.{name} is missing. Allowed is {keys[name].allowed}.") from None
        raise not_allowed(f"{section}.{name}", given[name], f"Allowed is {keys[name].allowed}.") from None


def unknown(what: str, name: str, allowed: Sequence[str]) -> str:
    """The message for an unknown name, with the nearest one that is known.

    Example:
        >>> unknown("hyper.eat", "eat", ["eta", "tau"])
        "hyper.eat is not known. Did you mean 'eta'? Allowed are eta, tau."
    """
    near = difflib.get_close_matches(name, allowed, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{what} is not known.{hint} Allowed are {', '.join(allowed)}."


def not_allowed(key: str, value: Any, why: str) -> ConfigError:
    """The error for a value that is not allowed."""
    shown = repr(value)
    return ConfigError(f"{key} = {shown if len(shown) < 200 else shown[:200] + '…'} is not allowed. {why}")


@contextmanager
def named_as(section: str, given: Mapping[str, Any], argument: str = "", key: str = "") -> Iterator[None]:
    """Name the key of a file in a `ConfigError` that begins with the argument it is given as.

    Args:
        section: Of the file.
        given: Its keys and their values.
        argument: Name of an argument that a file calls otherwise.
        key: What a file calls that argument.

    Example:
        >>> from hamlearn.streams import hold
        >>> with named_as("stream", {"hold": 0}, "k", "hold"):
        ...     hold([], k=0)
        Traceback (most recent call last):
        hamlearn.errors.ConfigError: stream.hold = 0 is not allowed. k=0 shows no sample. Give 1 or more steps.
    """
    try:
        yield
    except ConfigError as error:
        found = re.match(r"(\w+)(?:\[.*?\])?=", str(error))
        name = "" if found is None else key if found[1] == argument else found[1]
        if name not in given:
            raise
        raise not_allowed(f"{section}.{name}", given[name], str(error)) from error


def _plain(default: Any) -> Any:
    """A default as a file would give it."""
    for kind, classes in PARTS.items():
        if isinstance(default, kind):
            return next(name for name, one in classes.items() if type(default) is one)
    return list(default) if isinstance(default, tuple) else default


def _sayable(hint: Any) -> Any:
    """The part of a type that a TOML file can give: no functions and no tensors; `None` if nothing is left."""
    origin, members = get_origin(hint), get_args(hint)
    if isinstance(hint, list):
        return None  # the arguments of a Callable
    if hint in (float, int, str, bool) or origin is Literal:
        return hint
    if hint is Any:
        return str | float | bool
    if hint is timedelta:
        return Literal[UNITS]
    if hint in PARTS:
        return Literal[tuple(PARTS[hint])]
    if origin is Annotated:
        inner = _sayable(members[0])
        return None if inner is None else Annotated[inner, *hint.__metadata__]
    parts = [_sayable(member) for member in members]
    if origin in (Union, types.UnionType):
        known = [part for part in parts if part is not None]
        return Union[tuple(known)] if known else None  # noqa: UP007 (the members are known at run time only)
    if not parts or None in parts:
        return None
    if origin is tuple:
        # A TOML file has lists, which a strict tuple does not take.
        return Annotated[list[parts[0]], Len(len(parts), len(parts))]  # type: ignore[valid-type]
    if origin is not None and issubclass(origin, Mapping):
        return dict[parts[0], parts[1]]  # type: ignore[valid-type]
    # Not `Iterable`: that is a stream. And not `os.PathLike`, of which a file says the text.
    return list[parts[0]] if origin in (list, Sequence) else None  # type: ignore[valid-type]


_ONE = {"number": "a number", "integer": "a whole number", "string": "a text", "boolean": "true or false"}
_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


def _words(schema: Mapping[str, Any]) -> str:
    """A JSON schema in words.

    Example:
        >>> _words(TypeAdapter(int | list[float] | Literal["auto"]).json_schema())
        'a whole number, a list (each: a number) or "auto"'
    """
    if "anyOf" in schema:
        *parts, last = [_words(part) for part in schema["anyOf"]]
        return f"{', '.join(parts)} or {last}"
    if "const" in schema or "enum" in schema:
        names = [f'"{name}"' for name in schema.get("enum", [schema.get("const")])]
        return names[0] if len(names) == 1 else f"one of {', '.join(names)}"
    if schema["type"] == "array":
        count = schema.get("maxItems")
        return f"a list{f' of {count}' if count else ''} (each: {_words(schema['items'])})"
    if schema["type"] == "object":
        return f"a table (each: {_words(schema['additionalProperties'])})"
    bounds = [f"{word} {schema[bound]:,}" for bound, word in _BOUNDS.items() if bound in schema]
    return f"{_ONE[schema['type']]} {' and '.join(bounds)}".strip()
