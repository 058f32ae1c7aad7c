"""Names to whole numbers: categories and classes that were given, are found on the way, or share places."""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterable
from typing import Any

from hamlearn.errors import ConfigError
from hamlearn.streams.values import shown


def name_of(value: Any) -> str:
    """A category as a text, the same whether it comes from a file or from Python.

    Example:
        >>> [name_of(value) for value in (" north ", True, "FALSE", 3, 3.0, 2.5)]
        ['north', 'true', 'false', '3', '3', '2.5']
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    return text.lower() if text.lower() in ("true", "false") else text


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
