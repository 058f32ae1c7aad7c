"""Columns of a table as entries of vectors: numbers, categories, hashed categories and classes, many rows at once.

`read` looks at the cells alone. `enter` makes the entries of the rows that are accepted and counts them in.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from hamlearn.errors import ConfigError, SampleError
from hamlearn.streams.cells import Mask, NamePlaces, is_date, names_in, numbers, shared, to_places
from hamlearn.streams.moments import Array
from hamlearn.streams.values import shown

Policy = Literal["raise", "skip", "hold", "mean", "indicate"]
POLICIES: tuple[str, ...] = get_args(Policy)
"""What a missing cell may get, besides a number."""

Missing = Policy | float | Mapping[str, Policy | float]
"""One policy for all columns, or one for each that is named; the others raise."""
Categories = Mapping[str, Sequence[Any] | int]
"""Columns of categories: the categories of each in order, or how many may be found in order of appearance."""

OR_SKIP = 'or leave such rows out with bad="skip".'


@dataclass(slots=True)
class Cells:
    """The cells of one column in a batch.

    Attributes:
        values: Numbers, or indices of `names`; -1 if a name is missing.
        gaps: Which cells are missing.
        bad: Which cells cannot be in the column, whatever came before.
        names: The names in the cells, each once, in order of appearance.
    """

    values: Any
    gaps: Mask
    bad: Mask
    names: list[str] | None = None


class Column(ABC):
    """One column of a table, as entries of a vector.

    Args:
        name: Of the column.
        missing: What a missing cell gets.

    Attributes:
        entries: Names of the entries that it makes.
        measured: Which of them are measured, rather than 0 or 1.
        held: With `missing="hold"`, the last value.
    """

    entries: list[str]
    measured: list[bool]

    def __init__(self, name: str, missing: str | float) -> None:
        self.name, self.missing = name, missing
        self.held: Any = None

    @abstractmethod
    def read(self, cells: Sequence[Any]) -> Cells:
        """Read the cells; nothing changes."""

    @abstractmethod
    def enter(self, cells: Cells, rows: Any) -> Array:
        """Entries of the rows at these indices, which are counted in."""

    @abstractmethod
    def state(self) -> list[Any]:
        """What was learned from the rows so far, as JSON."""

    @abstractmethod
    def load(self, state: Sequence[Any]) -> None:
        """Set what `state` returned."""

    @abstractmethod
    def problem(self, cells: Cells, cell: Any) -> str | None:
        """What is wrong with the one cell that `cells` was read from, if it is not missing."""

    def check(self, cell: Any, where: str) -> None:
        """Raise `SampleError` if the cell cannot be in the column, or must not be missing."""
        cells = self.read([cell])
        if cells.gaps[0]:
            if self.missing == "raise":
                raise SampleError(
                    f'{where}: column {self.name!r} is missing. Correct the cell, or use missing="skip", "hold", '
                    '"mean", "indicate" or a number.'
                )
        elif (problem := self.problem(cells, cell)) is not None:
            what = cells.names[0] if cells.names else cell
            what = shown(what.strip() if isinstance(what, str) else what)
            raise SampleError(f"{where}: column {self.name!r} holds {what}, which is {problem}, {OR_SKIP}")

    def has_room(self, cells: Cells, rows: Any) -> bool:
        """Whether all values of these rows get a place."""
        return True

    def fill(self, cells: Cells, usable: Mask) -> Cells:
        """With `missing="hold"`: each gap filled with the last value of a usable row before it."""
        last = np.maximum.accumulate(np.where(usable & ~cells.gaps, np.arange(len(usable)), -1))
        values = np.where(cells.gaps & (last >= 0), cells.values[last], cells.values)
        before, names = cells.gaps & (last < 0), cells.names
        if self.held is not None:
            held = self.held
            if names is not None:
                names = names if held in names else [*names, held]
                held = names.index(held)
            values, before = np.where(before, held, values), np.zeros_like(before)
        return replace(cells, values=values, gaps=before, names=names)

    def hold(self, cells: Cells, usable: Mask) -> None:
        """With `missing="hold"`: keep the last value of a usable row."""
        known = np.flatnonzero(usable & ~cells.gaps)
        if known.size:
            value = cells.values[known[-1]]
            self.held = float(value) if cells.names is None else cells.names[value]


class Number(Column):
    """A number; the mean of all before it may fill a gap, and a further entry may say that it is missing.

    Args:
        name: Of the column.
        missing: What a missing cell gets.
        largest: The largest absolute value that is allowed.
        remedy: What to do if a cell is not a number.
    """

    def __init__(self, name: str, missing: str | float, largest: float, remedy: str) -> None:
        super().__init__(name, missing)
        self._largest, self._remedy = largest, remedy
        self._count, self._sum = 0, 0.0
        self._indicates = missing == "indicate"
        self.entries = [f"{name}", f"{name} is missing"] if self._indicates else [f"{name}"]
        self.measured = [True, False] if self._indicates else [True]

    def read(self, cells: Sequence[Any]) -> Cells:
        """Numbers; true and false count as 1 and 0."""
        values = numbers(cells)
        gaps = np.isnan(values)
        return Cells(values, gaps, ~(np.abs(values) <= self._largest) & ~gaps)

    def enter(self, cells: Cells, rows: Any) -> Array:
        """The numbers, with gaps filled."""
        values, gaps = cells.values[rows], cells.gaps[rows]
        if self.missing in ("indicate", "mean"):
            # Running sums one after the other: their bits do not depend on how rows are cut into batches.
            sums = np.cumsum([self._sum, *np.where(gaps, 0.0, values)])[1:]
            counts = self._count + np.cumsum(~gaps)
            if len(values):
                self._count, self._sum = int(counts[-1]), float(sums[-1])
            values = np.where(gaps, sums / np.maximum(counts, 1), values)
        elif not isinstance(self.missing, str):
            values = np.where(gaps, float(self.missing), values)
        return np.stack([values, gaps.astype(np.float64)], 1) if self._indicates else values[:, None]

    def problem(self, cells: Cells, cell: Any) -> str | None:
        """It is not a number, or too large."""
        if not cells.bad[0]:
            return None
        if math.isfinite(cells.values[0]):
            return f"larger than {self._largest:g}, the most there is. Correct the cell"
        remedy = f"If it is the time of the row, say so: time={self.name!r}; otherwise leave it out of u. "
        return f"not a finite number. {remedy if is_date(cell) else self._remedy}Correct the cell"

    def state(self) -> list[Any]:
        """The value held, and the sum of all."""
        return [self.held, self._count, self._sum]

    def load(self, state: Sequence[Any]) -> None:
        """Set what `state` returned."""
        self.held, self._count, self._sum = state


class Category(Column):
    """A category: 1 at its place and 0 elsewhere; zeros if it is missing."""

    def __init__(self, name: str, missing: str | float, places: NamePlaces) -> None:
        super().__init__(name, missing)
        self.places = places
        self.measured = [False] * places.count

    @property
    def entries(self) -> list[str]:  # type: ignore[override]
        """The categories found so far, and `?` for the free places."""
        known = [f"{self.name}={category}" for category in self.places.names]
        return known + [f"{self.name}=?{k}" for k in range(len(known), self.places.count)]

    def read(self, cells: Sequence[Any]) -> Cells:
        """Names."""
        names, codes = names_in(cells, self.places.listed)
        return Cells(codes, codes < 0, np.zeros(len(codes), dtype=bool), names)

    def enter(self, cells: Cells, rows: Any) -> Array:
        """One entry a category."""
        places = self._places_of(cells, rows)
        out = np.zeros((len(places), self.places.count))
        present = np.flatnonzero(places >= 0)
        out[present, places[present]] = 1.0
        return out

    def _places_of(self, cells: Cells, rows: Any) -> Any:
        """The place of the name in each row, -1 if there is none."""
        assert cells.names is not None
        codes = cells.values[rows]
        # The last entry is for the code -1, a missing cell.
        place_of = np.full(len(cells.names) + 1, -1)
        for code in _in_order(codes):
            # A name that is held without having been counted in may find no room.
            place = self.find(cells.names[code])
            place_of[code] = -1 if place is None else place
        return place_of[codes]

    def find(self, name: str) -> int | None:
        """The place of a name, which is given one if it is new."""
        return self.places.find(name)

    def has_room(self, cells: Cells, rows: Any) -> bool:
        """Whether the names of these rows are listed, or not too many."""
        assert cells.names is not None
        return not self.places.without_room(cells.names[code] for code in _in_order(cells.values[rows]))

    def problem(self, cells: Cells, cell: Any) -> str | None:
        """There is no place for the category."""
        if self.has_room(cells, slice(None)):
            return None
        declared = f"categories={{{self.name!r}: {self._room()}}}"
        what = f"none of {declared}. Add it"
        if not self.places.fixed:
            what = f"one more than {declared} has room for. Raise it"
        return f"{what}, let categories share places by hashed={{{self.name!r}: 16}}"

    def _room(self) -> str:
        return shown(self.places.names) if self.places.fixed else str(self.places.count)

    def state(self) -> list[Any]:
        """The category held, and those that were found."""
        return [self.held, [] if self.places.fixed else self.places.names]

    def load(self, state: Sequence[Any]) -> None:
        """Set what `state` returned."""
        self.held, names = state
        self.places.load(names)


class Hashed(Category):
    """A category that shares its place with others, chosen by a checksum of its name."""

    @property
    def entries(self) -> list[str]:  # type: ignore[override]
        """Numbered."""
        return [f"{self.name}#{k}" for k in range(self.places.count)]

    def find(self, name: str) -> int:
        """A place that depends on the name alone."""
        return shared(name, self.places.count)

    def has_room(self, cells: Cells, rows: Any) -> bool:
        """Every name has its place already."""
        return True


class Classes(Category):
    """Classes of a target: each cell becomes the index of its class."""

    def enter(self, cells: Cells, rows: Any) -> Array:
        """Indices; 0 for a missing cell."""
        return np.maximum(self._places_of(cells, rows), 0)[:, None]

    def problem(self, cells: Cells, cell: Any) -> str | None:
        """There is no such class, or no room for one more."""
        if self.has_room(cells, slice(None)):
            return None
        if self.places.fixed:
            return f"none of the classes {self._room()}. Add it to classes"
        return f"one more than classes={self._room()} has room for. Raise it"


def _in_order(codes: Any) -> list[int]:
    """The codes among these, each once, in order of appearance; without the missing ones."""
    found, first = np.unique(codes[codes >= 0], return_index=True)
    return [int(code) for code in found[np.argsort(first)]]


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
        >>> price = columns[0].read(["1.5", "", "2.5"])
        >>> columns[0].enter(price, range(3)).tolist()
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
    made: list[Column] = []
    for name in u:
        policy = by_column.get(name, "raise") if isinstance(missing, Mapping) else missing
        if not _is_policy(policy):
            raise ConfigError(
                f"missing={shown(policy)} is not known. Give {', '.join(map(repr, POLICIES))} or a finite "
                "number, or a mapping from names of columns to these."
            )
        if name in categories and name in hashed:
            raise ConfigError(f"{name!r} is in categories and in hashed. Leave it in one of them.")
        if name in categories:
            made.append(Category(name, policy, to_places(categories[name], f"categories[{name!r}]")))
        elif name in hashed:
            made.append(Hashed(name, policy, NamePlaces(_count(hashed[name], name))))
        else:
            remedy = (
                f"If the column names categories, declare it: categories={{{name!r}: [...]}} lists them, "
                f"categories={{{name!r}: 8}} finds up to 8 on the way, hashed={{{name!r}: 16}} lets them "
                "share places. "
            )
            made.append(Number(name, policy, largest, remedy))
    return made


def declare_targets(names: Sequence[str], classes: Sequence[Any] | int | None, largest: float) -> list[Column]:
    """The target columns: numbers, or one column of classes. A missing cell is no error."""
    if classes is not None:
        if len(names) != 1:
            raise ConfigError(f"classes={shown(classes)} needs one target column, not {shown(list(names))}.")
        return [Classes(names[0], 0.0, to_places(classes, "classes"))]
    remedy = "If it names classes, say so: classes=[...] lists them, classes=8 finds up to 8 on the way. "
    return [Number(name, 0.0, largest, remedy if len(names) == 1 else "") for name in names]


def _is_policy(missing: Any) -> bool:
    if isinstance(missing, str):
        return missing in POLICIES
    return isinstance(missing, int | float) and not isinstance(missing, bool) and abs(missing) < math.inf


def _count(count: Any, name: str) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ConfigError(
            f"hashed[{name!r}]={shown(count)} must be how many places there are: a whole number above 0."
        )
    return count
