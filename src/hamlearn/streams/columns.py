"""Input columns of a table as entries of vectors: numbers, categories, hashed categories; many rows at once.

A batch of rows is encoded in two steps. `read` looks at the cells alone. `enter` makes the entries of the rows
that are accepted and counts them in; with `learn=False` it tells what would be made of each row if it came next.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from hamlearn.errors import ConfigError, SampleError
from hamlearn.streams.fields import Mask, is_date, number, numbers, too_large
from hamlearn.streams.moments import Array
from hamlearn.streams.places import NamePlaces, Names, name_in, shared, to_places
from hamlearn.streams.values import shown

Policy = Literal["raise", "skip", "hold", "mean", "indicate"]
POLICIES: tuple[str, ...] = get_args(Policy)
"""What a missing cell may get, besides a number."""

Missing = Policy | float | Mapping[str, Policy | float]
"""One policy for all columns, or one for each that is named; the others raise."""
Categories = Mapping[str, Sequence[Any] | int]
"""Columns of categories: the categories of each in order, or how many may be found in order of appearance."""


@dataclass(slots=True)
class Cells:
    """The cells of one column in a batch.

    Attributes:
        values: Numbers, or the codes of `names`.
        gaps: Which cells are missing.
        bad: Which cells cannot be in the column.
        names: Names of the categories.
    """

    values: Any
    gaps: Mask
    bad: Mask
    names: Names | None = None


class Column(ABC):
    """One input column.

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
    def enter(self, cells: Cells, rows: Any, learn: bool = True) -> Array:
        """Entries of the rows at these indices; with `learn`, they are counted in."""

    @abstractmethod
    def check(self, cell: Any, where: str) -> None:
        """Raise `SampleError` if the cell cannot be in the column, or must not be missing."""

    @abstractmethod
    def state(self) -> list[Any]:
        """What was learned from the rows so far, as JSON."""

    @abstractmethod
    def load(self, state: Sequence[Any]) -> None:
        """Set what `state` returned."""

    def full(self, cells: Cells, rows: Mask) -> Mask:
        """Which cells would get no place if those of `rows` were counted in."""
        return np.zeros(len(rows), dtype=bool)

    def fill(self, cells: Cells, usable: Mask) -> Cells:
        """With `missing="hold"`: each gap filled with the last value of a usable row before it."""
        last = np.maximum.accumulate(np.where(usable & ~cells.gaps, np.arange(len(usable)), -1))
        values = np.where(cells.gaps & (last >= 0), cells.values[last], cells.values)
        before = cells.gaps & (last < 0)
        if self.held is not None:
            values = np.where(before, self._value(cells, self.held), values)
        return replace(cells, values=values, gaps=before if self.held is None else np.zeros_like(before))

    def hold(self, cells: Cells, usable: Mask) -> None:
        """With `missing="hold"`: keep the last value of a usable row."""
        known = np.flatnonzero(usable & ~cells.gaps)
        if known.size:
            value = cells.values[known[-1]]
            self.held = float(value) if cells.names is None else cells.names.names[value]

    def _value(self, cells: Cells, held: Any) -> Any:
        return held if cells.names is None else cells.names.code(held)

    def _require(self, gap: bool, where: str) -> None:
        if gap and self.missing == "raise":
            raise SampleError(
                f'{where}: column {self.name!r} is missing. Correct the cell, or use missing="skip", "hold", '
                '"mean", "indicate" or a number.'
            )


class Number(Column):
    """A number; the mean of all before it may fill a gap, and a further entry may say that it is missing."""

    def __init__(self, name: str, missing: str | float, largest: float) -> None:
        super().__init__(name, missing)
        self._largest = largest
        self._n, self._sum = 0, 0.0
        self._indicates = missing == "indicate"
        self._means = missing in ("indicate", "mean")
        self.entries = [f"{name}", f"{name} is missing"] if self._indicates else [f"{name}"]
        self.measured = [True, False] if self._indicates else [True]

    def read(self, cells: Sequence[Any]) -> Cells:
        """Numbers; true and false count as 1 and 0."""
        values = numbers(cells)
        return Cells(values, np.isnan(values), too_large(values, self._largest))

    def enter(self, cells: Cells, rows: Any, learn: bool = True) -> Array:
        """The numbers, with gaps filled."""
        values, gaps = cells.values[rows], cells.gaps[rows]
        if self._means:
            known = np.where(gaps | (not learn), 0.0, values)
            # Running sums one after the other: their bits do not depend on how rows are cut into batches.
            sums = np.cumsum([self._sum, *known])[1:]
            counts = self._n + np.cumsum(~gaps & learn)
            if learn and len(values):
                self._n, self._sum = int(counts[-1]), float(sums[-1])
            values = np.where(gaps, sums / np.maximum(counts, 1), values)
        elif not isinstance(self.missing, str):
            values = np.where(gaps, float(self.missing), values)
        return np.stack([values, gaps.astype(np.float64)], 1) if self._indicates else values[:, None]

    def check(self, cell: Any, where: str) -> None:
        """Raise if it is not a number, or too large."""
        remedy = (
            f"If the column names categories, declare it: categories={{{self.name!r}: [...]}} lists them, "
            f"categories={{{self.name!r}: 8}} finds up to 8 on the way, hashed={{{self.name!r}: 16}} lets them "
            "share places. "
        )
        if is_date(cell):
            remedy = f"If it is the time of the row, say so: time={self.name!r}; otherwise leave it out of u. "
        self._require(number(cell, self.name, where, self._largest, remedy) is None, where)

    def state(self) -> list[Any]:
        """The value held, and the sum of all."""
        return [self.held, self._n, self._sum]

    def load(self, state: Sequence[Any]) -> None:
        """Set what `state` returned."""
        self.held, self._n, self._sum = state


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
        names = Names(cells, self.places.index if self.places.fixed else ())
        gaps = names.codes < 0
        return Cells(names.codes, gaps, np.zeros_like(gaps), names)

    def enter(self, cells: Cells, rows: Any, learn: bool = True) -> Array:
        """One entry a category."""
        assert cells.names is not None
        # A value that is held without having been counted in may find no room: zeros, as if it were missing.
        places = cells.names.places(cells.values[rows], self._find if learn else self._look)
        out = np.zeros((len(places), self.places.count))
        present = np.flatnonzero(places >= 0)
        out[present, places[present]] = 1.0
        return out

    def _find(self, name: str) -> int | None:
        return self.places.find(name)

    def _look(self, name: str) -> int | None:
        return self.places.look(name)

    def full(self, cells: Cells, rows: Mask) -> Mask:
        """Those that are not listed, or one too many."""
        assert cells.names is not None
        return cells.names.without_room(self.places, cells.values[rows])

    def check(self, cell: Any, where: str) -> None:
        """Raise if there is no place for the category."""
        name = name_in(cell, self.places.index if self.places.fixed else ())
        self._require(name is None, where)
        if name is None or self.places.look(name) is not None:
            return
        count = shown(self.places.names) if self.places.fixed else self.places.count
        declared = f"categories={{{self.name!r}: {count}}}"
        fixed = self.places.fixed
        what = f"none of {declared}. Add it" if fixed else f"one more than {declared} has room for. Raise it"
        raise SampleError(
            f"{where}: column {self.name!r} holds {shown(name)}, which is {what}, let categories share places by "
            f'hashed={{{self.name!r}: 16}}, or leave such rows out with bad="skip".'
        )

    def state(self) -> list[Any]:
        """The category held, and those that were found."""
        return [self.held, [] if self.places.fixed else self.places.names]

    def load(self, state: Sequence[Any]) -> None:
        """Set what `state` returned."""
        self.held, names = state
        self.places.load(names)


class Hashed(Category):
    """A category that shares its place with others, chosen by a checksum of its name."""

    def __init__(self, name: str, missing: str | float, count: int) -> None:
        super().__init__(name, missing, NamePlaces(count))

    @property
    def entries(self) -> list[str]:  # type: ignore[override]
        """Numbered."""
        return [f"{self.name}#{k}" for k in range(self.places.count)]

    def _find(self, name: str) -> int:
        return shared(name, self.places.count)

    _look = _find

    def full(self, cells: Cells, rows: Mask) -> Mask:
        """None: every name has its place already."""
        return np.zeros(len(rows), dtype=bool)

    def check(self, cell: Any, where: str) -> None:
        """Raise if it must not be missing."""
        self._require(name_in(cell) is None, where)


def declare(
    u: Sequence[str],
    categories: Categories | None = None,
    hashed: Mapping[str, int] | None = None,
    missing: Missing = "raise",
    largest: float = math.inf,
) -> list[Column]:
    """The columns as a user declared them.

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
            made.append(Hashed(name, policy, _count(hashed[name], name)))
        else:
            made.append(Number(name, policy, largest))
    return made


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
