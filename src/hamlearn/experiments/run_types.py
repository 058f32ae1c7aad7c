"""What a TOML file can say of a type: numbers, texts, lists and tables, but no functions and no tensors."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Len
from pydantic import AfterValidator, Strict

from hamlearn.credit import CREDITS, Credit
from hamlearn.integrators import INTEGRATORS, Integrator

LARGEST = 1e18
"""The largest number, and one over the smallest above 0: products of two still fit into float32."""
MOST_PLACES = 100_000
"""Entries of a list or a table: more categories or classes than a network of this command is for."""
UNITS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86_400, "weeks": 604_800}
"""How a file says a `timedelta`."""
PARTS: dict[type, Mapping[str, type]] = {Credit: CREDITS, Integrator: INTEGRATORS}
"""Classes that a file calls by name; the arguments of the one it names stand beside the name."""


class Words(str):
    """What is allowed, in words of its own, where those made of the type would not say enough."""


class OneOf:
    """Names that are looked up when a value is read, so that what is registered later is known too."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = names

    def __call__(self, value: str) -> str:
        """Refuse a name that is not registered."""
        if value not in self.names:
            raise ValueError("an unknown name")
        return value


def named(names: Mapping[str, Any]) -> Any:
    """The type of the names in a table."""
    one = OneOf(names)
    return Annotated[str, Strict(), AfterValidator(one), one]


def _in_range(value: float) -> float:
    if value and abs(value) < 1 / LARGEST:
        raise ValueError("too small")
    return value


def _printable(value: str) -> str:
    if "\0" in value:
        raise ValueError("a text with the letter NUL")
    return value


def different(values: list[Any]) -> list[Any]:
    """Refuse a list that has something twice."""
    if len(set(values)) < len(values):
        raise ValueError("twice the same")
    return values


Number = Annotated[float, Strict(), Ge(-LARGEST), Le(LARGEST), AfterValidator(_in_range)]
Whole = Annotated[int, Strict(), Ge(-(2**63)), Le(2**63 - 1)]
Text = Annotated[str, Strict(), Len(1), AfterValidator(_printable)]
Truth = Annotated[bool, Strict()]
_PLAIN: dict[Any, Any] = {float: Number, int: Whole, str: Text, bool: Truth, Any: Text | Number | Truth}
_WORDS = {float: ("number", "numbers"), int: ("whole number", "whole numbers"), str: ("text", "texts")}
_GENERAL = {bound for hint in (Number, Whole, Text) for bound in get_args(hint)[1:]}

Bounds = Mapping[type, Sequence[Any]]
"""What numbers and texts of a key must keep to, beyond their type."""


def sayable(hint: Any, bounds: Bounds = types.MappingProxyType({})) -> Any:
    """The part of a type that a file can say, as a type for pydantic; `None` where nothing is left.

    Example:
        >>> from collections.abc import Callable
        >>> sayable(int | Callable[[float], float] | None) == Whole
        True
        >>> sayable(Callable[[float], float]) is None
        True
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return Annotated[_PLAIN[hint], *bounds[hint]] if hint in bounds else _PLAIN[hint]
    if hint is timedelta:
        return Literal[tuple(UNITS)]
    if hint in PARTS:
        return named(PARTS[hint])
    if origin is Literal:
        return hint
    if origin is Annotated:
        inner = sayable(arguments[0], bounds)
        return None if inner is None else Annotated[inner, *arguments[1:]]
    if origin in (Union, types.UnionType):
        parts = [part for part in (sayable(argument, bounds) for argument in arguments) if part is not None]
        return Union[tuple(parts)] if parts else None  # noqa: UP007 (the members are known at run time only)
    if origin not in (tuple, list, Sequence, Mapping):
        return None
    inner = [sayable(argument, bounds) for argument in arguments]
    if None in inner:
        return None
    if origin is tuple:
        return tuple[tuple(inner)]  # type: ignore[misc]
    if origin is not Mapping:
        most = 1000 if arguments[0] is float else MOST_PLACES
        return Annotated[list[inner[0]], Len(0 if origin is list else 1, most)]  # type: ignore[valid-type]
    return Annotated[dict[inner[0], inner[1]], Len(1, MOST_PLACES)]  # type: ignore[valid-type]


def words(hint: Any, many: bool = False) -> str:
    """What a type allows, in words.

    Example:
        >>> words(sayable(int | Sequence[float] | Literal["auto"]))
        'a whole number, a list of 1 to 1,000 numbers or "auto"'
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        own = [item for item in hint.__metadata__ if isinstance(item, Words)]
        if own:
            return own[-1]
        if isinstance(hint.__metadata__[-1], OneOf):
            return _one_of(hint.__metadata__[-1].names)
        bounds = [item for item in hint.__metadata__ if item not in _GENERAL]
        if get_origin(arguments[0]) is list:
            return f"{'lists' if many else 'a list'} of {_length(bounds)}{words(get_args(arguments[0])[0], True)}"
        if get_origin(arguments[0]) is dict:
            value = words(get_args(arguments[0])[1], True)
            return f"{'tables' if many else 'a table'} from names to {value}"
        if arguments[0] is bool:
            return "true or false"
        one, several = _WORDS[arguments[0]]
        return (several if many else f"a {one}") + _range(bounds)
    if origin is tuple:
        return f"{'lists' if many else 'a list'} of {len(arguments)} {words(arguments[0], True)}"
    if origin is Literal:
        return _one_of(arguments)
    parts = [words(argument, many) for argument in arguments]
    return f"{', '.join(parts[:-1])} or {parts[-1]}"


def _one_of(names: Iterable[str]) -> str:
    quoted = [f'"{name}"' for name in names]
    return quoted[0] if len(quoted) == 1 else f"one of {', '.join(quoted)}"


def _length(bounds: Sequence[Any]) -> str:
    found = [bound for bound in bounds if isinstance(bound, Len)]
    return f"{max(found[-1].min_length, 1)} to {found[-1].max_length:,} " if found else ""


def _range(bounds: Sequence[Any]) -> str:
    low = [
        f" above {b.gt:,}" if isinstance(b, Gt) else f" of at least {b.ge:,}"
        for b in bounds
        if isinstance(b, Ge | Gt)
    ]
    high = [f"at most {b.le:,}" for b in bounds if isinstance(b, Le)]
    return f"{low[-1]} and {high[-1]}" if low and high else low[-1] if low else f" of {high[-1]}" if high else ""
