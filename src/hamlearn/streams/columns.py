"""Columns of a table as entries of vectors: numbers, categories, hashed categories and classes.

Cells become values without regard to other rows (`parse`), and values become entries in the order of the rows
(`enter`), which counts them in. Both take many rows at once, with the bits of single rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from hamlearn.errors import ConfigError, shown
from hamlearn.streams.cells import is_date, is_missing, name_of, plain_numbers, shared
from hamlearn.streams.moments import Array

Policy = Literal["raise", "skip", "hold", "mean", "indicate"]
POLICIES: tuple[str, ...] = get_args(Policy)
"""What a missing cell may get, besides a number."""

Missing = Policy | float | Mapping[str, Policy | float]
"""One policy for all columns, or one for each that is named; the others raise."""
Categories = Mapping[str, Sequence[Any] | int]
"""Columns of categories: the categories of each in order, or how many may be found in order of appearance."""

OR_SKIP = 'or leave such rows out with bad="skip".'

TEXTS = 1024
"""Texts of a column whose names are remembered."""


class BadCellError(Exception):
    """The error of a cell; the message does not say yet in which row it is."""


class Column(ABC):
    """One column of a table, as entries of a vector.

    Args:
        name: Of the column.
        missing: What a missing cell gets.

    Attributes:
        entries: Names of the entries that it makes.
        measured: Which of them are measured, rather than 0 or 1.
        held: With `missing="hold"`, the last value; `None` before the first.
    """

    entries: list[str]
    measured: list[bool]
    dtype: Any = object

    def __init__(self, name: str, missing: str | float) -> None:
        self.name, self.missing = name, missing
        self.held: Any = None

    @abstractmethod
    def read(self, cell: Any) -> Any:
        """The value in a cell; `None` if it is missing.

        Raises:
            BadCellError: It cannot be in the column.
        """

    def parse(self, cells: Sequence[Any]) -> Any:
        """The values in many cells; raises if one of them cannot be in the column."""
        return np.array([self.read(cell) for cell in cells], dtype=self.dtype)

    @abstractmethod
    def gaps(self, values: Any) -> Any:
        """Which values are missing."""

    def require_room(self, values: Any) -> None:
        """Raise `BadCellError` if one of the values has no place."""

    @abstractmethod
    def enter(self, values: Any) -> Array:
        """Count values in, and return their entries."""

    @abstractmethod
    def state(self) -> list[Any]:
        """The values learned from the rows so far, as JSON."""

    @abstractmethod
    def load(self, state: Sequence[Any]) -> None:
        """Set what `state` returned."""

    def filled(self, values: Any) -> Any:
        """Values with each gap filled by the last value before it, if there is one."""
        gaps = self.gaps(values)
        if not gaps.any():
            return values
        before = np.concatenate([np.array([self.held], dtype=self.dtype), values])
        return before[np.maximum.accumulate(np.where(gaps, 0, np.arange(1, len(before))))]

    def hold(self, values: Any) -> None:
        """Remember the last of the values, which are filled."""
        last = values[-1]
        if not self.gaps(values[-1:])[0]:
            self.held = float(last) if isinstance(last, float) else last

    def gap(self) -> BadCellError:
        """The error of a missing cell."""
        return BadCellError(
            f'column {self.name!r} is missing. Correct the cell, or use missing="skip", "hold", "mean", '
            '"indicate" or a number.'
        )

    def bad(self, what: Any, problem: str) -> BadCellError:
        """The error of a cell."""
        what = shown(what.strip() if isinstance(what, str) else what)
        return BadCellError(f"column {self.name!r} holds {what}, which is {problem}, {OR_SKIP}")


class Number(Column):
    """A number; the mean of all before it may fill a gap, and a further entry may say that it is missing.

    Args:
        name: Of the column.
        missing: What a missing cell gets.
        largest: The largest absolute value that is allowed.
        remedy: What to do if a cell is not a number.
    """

    dtype = np.float64

    def __init__(self, name: str, missing: str | float, largest: float, remedy: str) -> None:
        super().__init__(name, missing)
        # Infinity does not count as a number, whatever the type.
        self._largest, self._remedy = min(largest, math.nextafter(math.inf, 0)), remedy
        self._count, self._sum = 0, 0.0
        self._indicates, self._means = missing == "indicate", missing in ("indicate", "mean")
        self._filler = 0.0 if isinstance(missing, str) else float(missing)
        self.entries = [f"{name}", f"{name} is missing"] if self._indicates else [f"{name}"]
        self.measured = [True, False] if self._indicates else [True]

    def read(self, cell: Any) -> float | None:
        """The number; true and false count as 1 and 0."""
        try:
            value = float(cell)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            return self._word(cell)
        # Python's float reads 1_0 as 10, which no other program writes.
        if -self._largest <= value <= self._largest and (type(cell) is not str or "_" not in cell):
            return value
        if value == value and "_" not in str(cell) and math.isfinite(value):
            raise self.bad(cell, f"larger than {self._largest:g}, the most there is. Correct the cell")
        return self._word(cell)

    def _word(self, cell: Any) -> float | None:
        """A cell that is not a finite number."""
        if is_missing(cell):
            return None
        if isinstance(cell, str) and cell.strip().lower() in ("true", "false"):
            return float(cell.strip().lower() == "true")
        remedy = f"If it is the time of the row, say so: time={self.name!r}; otherwise leave it out of u. "
        raise self.bad(cell, f"not a finite number. {remedy if is_date(cell) else self._remedy}Correct the cell")

    def parse(self, cells: Sequence[Any]) -> Array:
        """The numbers, NaN for a missing one."""
        values = plain_numbers(cells)
        if values is not None and np.fmax.reduce(np.abs(values), initial=0.0) <= self._largest:
            return values
        made: Array = super().parse(cells)
        return made

    def gaps(self, values: Array) -> Any:
        """Which are NaN."""
        return np.isnan(values)

    def enter(self, values: Array) -> Array:
        """The numbers, with gaps filled."""
        gaps = np.isnan(values)
        fillers: Any = self._filler
        if self._means:
            # Running sums one after the other: their bits do not depend on how rows are cut into blocks.
            sums = np.cumsum([self._sum, *np.where(gaps, 0.0, values)])
            counts = np.cumsum([self._count, *~gaps])
            fillers = sums[1:] / np.maximum(counts[1:], 1)
            self._count, self._sum = int(counts[-1]), float(sums[-1])
        entries = np.where(gaps, fillers, values)
        return np.stack([entries, gaps.astype(np.float64)], 1) if self._indicates else entries[:, None]

    def state(self) -> list[Any]:
        """The value held, and the sum of all."""
        return [self.held, self._count, self._sum]

    def load(self, state: Sequence[Any]) -> None:
        """Set what `state` returned."""
        self.held, self._count, self._sum = state


class Category(Column):
    """A category: 1 at its place and 0 elsewhere; zeros if it is missing.

    Args:
        name: Of the column.
        missing: What a missing cell gets.
        room: The categories in order; or how many may be found, which get their places as they appear.

    Attributes:
        count: How many places there are.
        fixed: Whether the categories are listed.
    """

    def __init__(self, name: str, missing: str | float, room: Sequence[str] | int) -> None:
        super().__init__(name, missing)
        self.fixed = not isinstance(room, int)
        names: Sequence[str] = () if isinstance(room, int) else room
        self.count = room if isinstance(room, int) else len(names)
        self.measured = [False] * self.count
        self._places = {category: place for place, category in enumerate(names)}
        # The names in the texts that were read.
        self._texts: dict[str, str | None] = {}

    @property
    def names(self) -> list[str]:
        """The categories found so far, in the order of their places."""
        return list(self._places)

    @property
    def entries(self) -> list[str]:  # type: ignore[override]
        """The categories found so far, and `?` for the free places."""
        known = [f"{self.name}={category}" for category in self._places]
        return known + [f"{self.name}=?{k}" for k in range(len(known), self.count)]

    def read(self, cell: Any) -> str | None:
        """The name; a word such as NA is one if it is listed."""
        name = None if cell is None else name_of(cell)
        if name in self._places and self.fixed:
            return name
        if name is None or is_missing(cell):
            return None
        if self.fixed:
            raise self.no_room(name)
        return name

    def parse(self, cells: Sequence[Any]) -> Any:
        """The names; each distinct text is looked at once."""
        if set(map(type, cells)) != {str}:
            return super().parse(cells)
        if len(self._texts) > TEXTS:
            self._texts.clear()
        for cell in set(cells).difference(self._texts):
            self._texts[cell] = self.read(cell)
        return np.array(list(map(self._texts.__getitem__, cells)), dtype=object)

    def gaps(self, values: Any) -> Any:
        """Which are `None`."""
        return values == np.array(None)

    def require_room(self, values: Any) -> None:
        """Raise `BadCellError` if the names are more than there are places."""
        if self.fixed:
            # Names that are not listed raised an error when they were read.
            return
        new = [name for name in dict.fromkeys(values.tolist()) if name is not None and name not in self._places]
        free = self.count - len(self._places)
        if len(new) > free:
            raise self.no_room(new[free])

    def enter(self, values: Any) -> Array:
        """One entry a category."""
        places = self.places_of(values)
        out = np.zeros((len(places), self.count))
        present = np.flatnonzero(places >= 0)
        out[present, places[present]] = 1.0
        return out

    def places_of(self, values: Any) -> Any:
        """The place of each name, -1 if there is none; new names are given places in order of appearance."""
        names = values.tolist()
        place_of = {name: -1 if name is None else self.find(name) for name in dict.fromkeys(names)}
        return np.array(list(map(place_of.__getitem__, names)), dtype=np.int64)

    def find(self, name: str) -> int:
        """The place of a name, which is given one if it is new."""
        return self._places.setdefault(name, len(self._places))

    def no_room(self, value: str) -> BadCellError:
        """The error of a name that is not listed, or is one too many."""
        declared = f"categories={{{self.name!r}: {self._room()}}}"
        what = f"none of {declared}. Add it"
        if not self.fixed:
            what = f"one more than {declared} can hold. Raise it"
        return self.bad(value, f"{what}, let categories share places by hashed={{{self.name!r}: 16}}")

    def _room(self) -> str:
        return shown(self.names) if self.fixed else str(self.count)

    def state(self) -> list[Any]:
        """The category held, and those that were found."""
        return [self.held, [] if self.fixed else self.names]

    def load(self, state: Sequence[Any]) -> None:
        """Set what `state` returned."""
        self.held, names = state
        if not self.fixed:
            self._places = {category: place for place, category in enumerate(names)}


class Hashed(Category):
    """A category that shares its place with others, chosen by a checksum of its name."""

    @property
    def entries(self) -> list[str]:  # type: ignore[override]
        """Numbered."""
        return [f"{self.name}#{k}" for k in range(self.count)]

    def find(self, name: str) -> int:
        """A place that depends on the name alone."""
        return shared(name, self.count)

    def require_room(self, values: Any) -> None:
        """Every name has its place already."""


class ClassColumn(Category):
    """Classes of a target: each cell becomes the index of its class."""

    def enter(self, values: Any) -> Array:
        """The indices; 0 for a missing cell."""
        return np.maximum(self.places_of(values), 0)[:, None].astype(np.float64)

    def no_room(self, value: str) -> BadCellError:
        """The error of a class that is not listed, or is one too many."""
        if self.fixed:
            return self.bad(value, f"none of the classes {self._room()}. Add it to classes")
        return self.bad(value, f"one more than classes={self._room()} can hold. Raise it")


def declare(
    u: Sequence[str],
    categories: Categories | None = None,
    hashed: Mapping[str, int] | None = None,
    missing: Missing = "raise",
    largest: float = math.inf,
) -> list[Column]:
    """The input columns as a user declared them.

    Args:
        u: Their names.
        categories: Those that hold categories.
        hashed: Those whose categories share so many places.
        missing: What a missing cell gets.
        largest: The largest number that is allowed.

    Raises:
        ConfigError: An argument is not possible; names it.

    Example:
        >>> columns = declare(["price", "shop"], categories={"shop": ["north", "south"]}, missing="indicate")
        >>> [column.entries for column in columns]
        [['price', 'price is missing'], ['shop=north', 'shop=south']]
        >>> columns[0].enter(columns[0].parse(["1.5", "", "2.5"])).tolist()
        [[1.5, 0.0], [1.5, 1.0], [2.5, 0.0]]
    """
    categories, hashed = categories or {}, hashed or {}
    by_column = missing if isinstance(missing, Mapping) else {}
    for argument, named in (("categories", categories), ("hashed", hashed), ("missing", by_column)):
        if not isinstance(named, Mapping):
            raise ConfigError(f"{argument}={shown(named)} must map names of columns to what they hold.")
        for name in named:
            if name not in u:
                raise ConfigError(
                    f"{argument} names {name!r}, which is none of the input columns {shown(list(u))}."
                )
    for name in categories:
        if name in hashed:
            raise ConfigError(f"{name!r} is in categories and in hashed. Leave it in one of them.")
    made: list[Column] = []
    for name in u:
        policy = _policy(by_column.get(name, "raise") if isinstance(missing, Mapping) else missing)
        if name in categories:
            made.append(Category(name, policy, _room(categories[name], f"categories[{name!r}]")))
        elif name in hashed:
            made.append(Hashed(name, policy, _count(hashed[name], name)))
        else:
            remedy = (
                f"If the column names categories, declare it: categories={{{name!r}: [...]}} lists them, "
                f"categories={{{name!r}: 8}} finds up to 8 on the way, hashed={{{name!r}: 16}} lets them "
                "share places. "
            )
            made.append(Number(name, policy, largest, remedy))
    return made


def declare_targets(names: Sequence[str], classes: Sequence[Any] | int | None, largest: float) -> list[Column]:
    """The target columns: numbers, or one column of classes. A missing cell is not an error."""
    if classes is not None:
        if len(names) != 1:
            raise ConfigError(f"classes={shown(classes)} needs one target column, not {shown(list(names))}.")
        return [ClassColumn(names[0], 0.0, _room(classes, "classes"))]
    remedy = "If it names classes, say so: classes=[...] lists them, classes=8 finds up to 8 on the way. "
    return [Number(name, 0.0, largest, remedy if len(names) == 1 else "") for name in names]


def _room(room: Any, argument: str) -> list[str] | int:
    """The names that a user lists, or how many may be found."""
    if isinstance(room, int) and not isinstance(room, bool):
        if room < 1:
            raise ConfigError(f"{argument}={room} is too small. Give 1 or more, or a list of names.")
        return room
    names = [] if isinstance(room, str) or not isinstance(room, Iterable) else [name_of(name) for name in room]
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            f"{argument}={shown(room)} must name one or more, each once; or say by a whole number how many may "
            "be found on the way."
        )
    return names


def _policy(missing: Any) -> str | float:
    """What a missing cell gets, if that is possible."""
    is_number = isinstance(missing, int | float) and not isinstance(missing, bool) and abs(missing) < math.inf
    if not is_number and not (isinstance(missing, str) and missing in POLICIES):
        raise ConfigError(
            f"missing={shown(missing)} is not known. Give {', '.join(map(repr, POLICIES))} or a finite "
            "number, or a mapping from names of columns to these."
        )
    return missing


def _count(count: Any, name: str) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ConfigError(
            f"hashed[{name!r}]={shown(count)} must be how many places there are: a whole number above 0."
        )
    return count
