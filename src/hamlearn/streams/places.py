"""Names to whole numbers: categories and classes that were given, are found on the way, or share places."""

from __future__ import annotations

import re
import zlib
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
import torch

from hamlearn.errors import ConfigError
from hamlearn.streams.values import shown

_WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]*))\.0+")


def name_of(value: Any) -> str:
    """A category as a text, the same whether it comes from a file or from Python.

    A whole number is written without a point, also where a file has it as 3.0: that is how pandas writes whole
    numbers of a column with gaps. All other texts stay as they are, so that 01234 and 1234 are two categories.

    Example:
        >>> [name_of(value) for value in (" north ", True, "FALSE", b"west", 2.5, "1.50", "01234")]
        ['north', 'true', 'false', 'west', '2.5', '1.50', '01234']
        >>> [name_of(value) for value in (3, 3.0, "3", "3.0", torch.tensor(3))]
        ['3', '3', '3', '3', '3']
    """
    if isinstance(value, torch.Tensor) and value.dim() == 0:
        value = value.item()
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    if isinstance(value, float | np.floating) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    whole = _WHOLE.fullmatch(text)
    if whole is not None:
        return "0" if whole[1] == "-0" else whole[1]
    return text.lower() if text.lower() in ("true", "false") else text


def names_again(names: Iterable[str]) -> list[str]:
    """Names out of a checkpoint, as `name_of` writes them; one that would be written as another stays as it is.

    Example:
        >>> names_again(["north", "1.0", "2.0", "2"])
        ['north', '1', '2.0', '2']
    """
    found = list(names)
    taken, again = set(found), []
    for name in found:
        written = name_of(name)
        again.append(name if written in taken else written)
        taken.add(written)
    return again


def shared(value: Hashable, count: int) -> int:
    """One of `count` places for a value, the same in every process, by a checksum of how Python writes it.

    Example:
        >>> shared("north", 8) == shared("north", 8)
        True
    """
    return zlib.crc32(repr(value).encode()) % count


class Places:
    """Places of values: those given, or as many as there is room for, in the order in which they come.

    Args:
        room: The values in order; or how many may be found.

    Example:
        >>> places = Places(2)
        >>> places.find("north"), places.find("south"), places.find("north"), places.find("west")
        (0, 1, 0, None)
    """

    def __init__(self, room: Iterable[Hashable] | int) -> None:
        self.fixed = not isinstance(room, int)
        names = () if isinstance(room, int) else tuple(room)
        self.count = room if isinstance(room, int) else len(names)
        self.index: dict[Hashable, int] = {name: place for place, name in enumerate(names)}

    def find(self, value: Hashable) -> int | None:
        """The place of a value, which it is given now if there is one free; `None` where there is none."""
        place = self.look(value)
        if place is not None:
            self.index[value] = place
        return place

    def look(self, value: Hashable) -> int | None:
        """The place that `find` would return; nothing changes."""
        place = self.index.get(value)
        if place is None and not self.fixed and len(self.index) < self.count:
            place = len(self.index)
        return place

    def has_room(self, value: Hashable) -> bool:
        """Whether there is a place for a value; nothing changes."""
        return self.look(value) is not None

    def __len__(self) -> int:
        return len(self.index)

    @property
    def names(self) -> list[Any]:
        """The values in the order of their places, as far as they are known."""
        return list(self.index)

    def load(self, names: Iterable[Hashable]) -> None:
        """Take up the names that were found before."""
        if not self.fixed:
            self.index = {name: place for place, name in enumerate(names)}


def to_places(room: Any, argument: str) -> Places:
    """The places that a user asked for: a list of names, or a whole number.

    Raises:
        ConfigError: It is neither, or a name comes twice.
    """
    if isinstance(room, int) and not isinstance(room, bool):
        if room < 1:
            raise ConfigError(f"{argument}={room} leaves room for none. Give 1 or more, or a list of names.")
        return Places(room)
    names = None if isinstance(room, str) or not isinstance(room, Iterable) else [name_of(name) for name in room]
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            f"{argument}={shown(room)} must name one or more, each once; or say by a whole number how many may "
            "be found on the way."
        )
    return Places(names)
