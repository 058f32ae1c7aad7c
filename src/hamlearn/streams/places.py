"""Names to whole numbers: categories and classes that are listed, found in order of appearance, or hashed."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from hamlearn.errors import ConfigError
from hamlearn.streams.fields import Mask, is_missing
from hamlearn.streams.values import shown

Codes = np.ndarray[Any, np.dtype[np.int64]]

_WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]*))\.0+")


def name_of(value: Any) -> str:
    """A category as a text, the same whether it comes from a file or from Python.

    A whole number is written without a point, also if the file has 3.0: pandas writes whole numbers of a column
    with gaps that way. All other texts stay as they are, so that 01234 and 1234 are two categories.

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


def shared(value: Hashable, count: int) -> int:
    """One of `count` places for a value, by a checksum, the same in every process.

    Example:
        >>> shared("north", 8) == shared("north", 8)
        True
    """
    return zlib.crc32(repr(value).encode()) % count


class NamePlaces:
    """NamePlaces of values: those listed, or as many as there is room for, in order of appearance.

    Args:
        room: The values in order; or how many may be found.

    Example:
        >>> places = NamePlaces(2)
        >>> places.find("north"), places.find("south"), places.find("north"), places.find("west")
        (0, 1, 0, None)
    """

    def __init__(self, room: Iterable[Hashable] | int) -> None:
        self.fixed = not isinstance(room, int)
        names = () if isinstance(room, int) else tuple(room)
        self.count = room if isinstance(room, int) else len(names)
        self.index: dict[Hashable, int] = {name: place for place, name in enumerate(names)}

    def find(self, value: Hashable) -> int | None:
        """The place of a value; a new value is given a free one. `None` if there is no room."""
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

    def without_room(self, names: Iterable[Hashable]) -> set[Hashable]:
        """Those of the names, in order of appearance, that would get no place."""
        new = [name for name in dict.fromkeys(names) if name not in self.index]
        return set(new if self.fixed else new[max(0, self.count - len(self.index)) :])

    def __len__(self) -> int:
        return len(self.index)

    @property
    def names(self) -> list[Any]:
        """The values found so far, in the order of their places."""
        return list(self.index)

    def load(self, names: Iterable[Hashable]) -> None:
        """Set the names that were found before."""
        if not self.fixed:
            self.index = {name: place for place, name in enumerate(names)}


class Names:
    """Cells of one column as names.

    Args:
        cells: The cells.
        listed: Names that are listed by the user, which count as names even if they look missing.

    Attributes:
        names: The names, each once, in order of appearance.
        codes: For each cell the index of its name, -1 if it is missing.
    """

    def __init__(self, cells: Sequence[Any], listed: Container[Any] = ()) -> None:
        if set(map(type, cells)) == {str}:
            # Each distinct text is looked at once.
            known = {cell: name_in(cell, listed) for cell in set(cells)}
            named = list(map(known.__getitem__, cells))
        else:
            named = [name_in(cell, listed) for cell in cells]
        index: dict[str | None, int] = {name: k for k, name in enumerate(dict.fromkeys(named) if named else ())}
        self.names: list[Any] = list(index)
        self.codes: Codes = np.array(list(map(index.__getitem__, named)), dtype=np.int64)
        if None in index:
            self.codes[self.codes == index[None]] = -1

    def code(self, name: str) -> int:
        """The index of a name, which is added if it is new."""
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)

    def in_order(self, codes: Codes) -> list[int]:
        """The codes among these, each once, in order of appearance; without the missing ones."""
        found, first = np.unique(codes[codes >= 0], return_index=True)
        return [int(code) for code in found[np.argsort(first)]]

    def places(self, codes: Codes, find: Callable[[str], int | None]) -> Codes:
        """The place of each code, as `find` tells it, new names in order of appearance; -1 if there is none."""
        place_of = np.full(len(self.names) + 1, -1)
        for code in self.in_order(codes):
            place = find(self.names[code])
            place_of[code] = -1 if place is None else place
        return place_of[codes]

    def without_room(self, places: NamePlaces, codes: Codes) -> Mask:
        """Which cells have a name that would get no place if these codes were counted in."""
        full = places.without_room(self.names[code] for code in self.in_order(codes))
        return np.isin(self.codes, [code for code, name in enumerate(self.names) if name in full])


def name_in(cell: Any, listed: Container[Any] = ()) -> str | None:
    """The name in a cell; `None` if the cell is missing and not listed as a name."""
    if cell is None:
        return None
    name = name_of(cell)
    return None if name not in listed and is_missing(cell) else name


def to_places(room: Any, argument: str) -> NamePlaces:
    """The places that a user asked for: a list of names, or a whole number.

    Raises:
        ConfigError: It is neither, or a name comes twice.
    """
    if isinstance(room, int) and not isinstance(room, bool):
        if room < 1:
            raise ConfigError(f"{argument}={room} leaves room for none. Give 1 or more, or a list of names.")
        return NamePlaces(room)
    names = None if isinstance(room, str) or not isinstance(room, Iterable) else [name_of(name) for name in room]
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            f"{argument}={shown(room)} must name one or more, each once; or say by a whole number how many may "
            "be found on the way."
        )
    return NamePlaces(names)
