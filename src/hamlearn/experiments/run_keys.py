"""Keys of a configuration: what each takes, in words and as a test."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hamlearn.errors import ConfigError
from hamlearn.streams.values import shown

__all__ = [
    "Key",
    "is_name",
    "is_names",
    "is_number",
    "number",
    "one_of",
    "shown",
    "text",
    "truth",
    "unknown",
    "whole",
]


@dataclass(frozen=True)
class Key:
    """What one key takes.

    Args:
        allowed: In words, for messages.
        test: Whether a value is allowed.
        default: Its value where it is left out.
    """

    allowed: str
    test: Callable[[Any], bool]
    default: Any = None

    def require(self, name: str, value: Any) -> None:
        """Refuse a value that is not allowed."""
        if not self.test(value):
            raise ConfigError(f"{name} = {shown(value)} is not allowed. Allowed is {self.allowed}.")


LARGEST = 1e18
"""The largest number, and one over the smallest above 0: products of two still fit into float32."""


def is_number(value: Any) -> bool:
    """Whether a value is a number that can be computed with."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def number(default: Any = None, least: float = 0.0, above: bool = False, most: float = LARGEST) -> Key:
    """A number, at least (or above) a bound, and at most another."""
    words = "a number" if least == -LARGEST else f"a number {'above' if above else 'of at least'} {least:g}"
    low = least + 1 / LARGEST if above else least
    return Key(f"{words} and at most {most:g}", lambda v: is_number(v) and low <= v <= most, default)


def whole(default: Any = None, least: int = 1, most: int = 10**15) -> Key:
    """A whole number between two bounds."""
    return Key(
        f"a whole number of at least {least}" + (f" and at most {most:,}" if most < 10**15 else ""),
        lambda v: isinstance(v, int) and not isinstance(v, bool) and least <= v <= most,
        default,
    )


def one_of(*names: str, default: str | None = None) -> Key:
    """One of several names."""
    words = "one of " + ", ".join(f'"{name}"' for name in names)
    return Key(words, lambda v: isinstance(v, str) and v in names, default)


def truth(default: bool) -> Key:
    """A truth value."""
    return Key("true or false", lambda v: isinstance(v, bool), default)


def text(default: str | None = None) -> Key:
    """A text."""
    return Key("a text that is not empty", is_name, default)


def is_name(value: Any) -> bool:
    """Whether a value is a text that can name something."""
    return isinstance(value, str) and value != "" and "\0" not in value


def is_names(value: Any) -> bool:
    """Whether a value is a list of names."""
    return isinstance(value, list) and all(is_name(item) for item in value)


def unknown(what: str, name: str, allowed: Sequence[str]) -> str:
    """The message for a name that nobody knows."""
    near = difflib.get_close_matches(name[:100], allowed, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    what = what if len(what) < 200 else what[:200] + "…"
    return f"the {what} is not known.{hint} Allowed are {', '.join(allowed)}."
