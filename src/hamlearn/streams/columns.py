"""Columns of a table as entries of a vector: numbers, categories, categories that share places."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from hamlearn.errors import SampleError
from hamlearn.streams.fields import is_missing, number, plain_numbers
from hamlearn.streams.moments import Array
from hamlearn.streams.places import Places, name_of, names_again, shared
from hamlearn.streams.values import shown

SKIP: Any = object()
"""Instead of a value, where the row is to be left out."""


class Column(ABC):
    """One column.

    Args:
        name: Of the column.
        missing: What a missing cell gets.

    Attributes:
        entries: Names of the entries that it makes.
        numbers: Which of them are measured, rather than 0 or 1.
    """

    entries: list[str]
    numbers: list[bool]

    def __init__(self, name: str, missing: str | float) -> None:
        self.name, self.missing = name, missing
        self.held: Any = None

    def read(self, cell: Any, where: str) -> Any:
        """The value of a cell, `None` where it is missing, or `SKIP`; nothing changes.

        Raises:
            SampleError: The cell cannot be in this column, or may not be missing.
        """
        value = self._value(cell, where)
        if value is not None:
            return value
        if self.missing == "raise":
            raise SampleError(
                f'{where}: column {self.name!r} is missing. Mend the cell, or use missing="skip", "hold", '
                '"mean", "indicate" or a number.'
            )
        return SKIP if self.missing == "skip" or (self.missing == "hold" and self.held is None) else None

    def write(self, value: Any) -> list[float]:
        """The entries of a value that was read, which is counted in now."""
        if value is not None:
            self.held = value
            self._count(value)
        return self.look(value)

    def look(self, value: Any) -> list[float]:
        """The entries that `write` would return; nothing changes."""
        return self._entries(self.held if value is None and self.missing == "hold" else value)

    def many(self, cells: Sequence[Any]) -> Array | None:
        """Read and write many cells at once; `None` where a row has to be left out or refused."""
        try:
            rows = []
            for cell in cells:
                value = self.read(cell, "")
                if value is SKIP:
                    return None
                rows.append(self.write(value))
        except SampleError:
            # The row is named when it is read by itself.
            return None
        return np.array(rows, dtype=np.float64)

    @abstractmethod
    def _value(self, cell: Any, where: str) -> Any: ...

    @abstractmethod
    def _count(self, value: Any) -> None: ...

    @abstractmethod
    def _entries(self, value: Any) -> list[float]: ...

    def state(self) -> list[Any]:
        """What it knows of the cells before."""
        return [self.held]

    def load(self, state: Sequence[Any]) -> None:
        """Take up what `state` told."""
        (self.held,) = state


class Number(Column):
    """A number, with the mean of all before it for a missing one, and whether it is missing as a further entry."""

    def __init__(self, name: str, missing: str | float, largest: float) -> None:
        super().__init__(name, missing)
        self._largest = largest
        self._n, self._sum = 0, 0.0
        self._indicates = missing == "indicate"
        self._means = missing in ("indicate", "mean")
        self.entries = [f"{name}", f"{name} is missing"] if self._indicates else [f"{name}"]
        self.numbers = [True, False] if self._indicates else [True]
        self._remedy = (
            f"If the column names categories, declare it: categories={{{name!r}: [...]}} lists them, "
            f"categories={{{name!r}: 8}} finds up to 8 on the way, hashed={{{name!r}: 16}} lets them share "
            "places. "
        )

    def _value(self, cell: Any, where: str) -> float | None:
        return number(cell, self.name, where, self._largest, self._remedy)

    def _count(self, value: float) -> None:
        if self._means:
            self._n, self._sum = self._n + 1, self._sum + value

    def _entries(self, value: float | None) -> list[float]:
        if value is not None:
            filled = value
        elif self._means:
            filled = self._sum / self._n if self._n else 0.0
        else:
            filled = float(self.missing)
        return [filled, float(value is None)] if self._indicates else [filled]

    def many(self, cells: Sequence[Any]) -> Array | None:
        """As any column does, with all cells as one array where each is plainly a number or empty."""
        gaps, filled = np.zeros(len(cells), dtype=bool), cells
        if "" in cells or None in cells:
            if self.missing in ("raise", "skip", "hold"):
                return super().many(cells)
            gaps = np.array([cell == "" or cell is None for cell in cells])
            blank = "0" if str in set(map(type, cells)) else 0.0
            filled = [blank if gap else cell for gap, cell in zip(gaps, cells, strict=True)]
        values = plain_numbers(filled, self._largest)
        if values is None:
            return super().many(cells)
        if not gaps.all():
            self.held = float(values[~gaps][-1])
        if self._means:
            # One after the other, as single rows are: sums have the same bits, and a gap adds nothing to them.
            sums, counts = np.cumsum([self._sum, *values])[1:], self._n + np.cumsum(~gaps)
            self._n, self._sum = int(counts[-1]), float(sums[-1])
            values[gaps] = (sums / np.maximum(counts, 1))[gaps]
        elif gaps.any():
            values[gaps] = float(self.missing)
        return np.stack([values, gaps.astype(np.float64)], 1) if self._indicates else values[:, None]

    def state(self) -> list[Any]:
        """The last value, and the sum of all."""
        return [self.held, self._n, self._sum]

    def load(self, state: Sequence[Any]) -> None:
        """Take up what `state` told."""
        self.held, self._n, self._sum = state


class Category(Column):
    """A category: 1 at its place and 0 elsewhere; nothing but 0 where it is missing."""

    def __init__(self, name: str, missing: str | float, places: Places) -> None:
        super().__init__(name, missing)
        self.places = places
        self.numbers = [False] * places.count

    @property
    def entries(self) -> list[str]:  # type: ignore[override]
        """Named by the categories, as far as they are known."""
        known = [f"{self.name}={category}" for category in self.places.names]
        return known + [f"{self.name}=?{k}" for k in range(len(known), self.places.count)]

    def _value(self, cell: Any, where: str) -> str | None:
        value = None if cell is None else name_of(cell)
        if value in self.places.index:
            return value
        if is_missing(cell) or value is None:
            return None
        if self.places.has_room(value):
            return value
        declared = (
            f"categories={{{self.name!r}: {shown(self.places.names) if self.places.fixed else self.places.count}}}"
        )
        what = (
            f"none of {declared}. Add it"
            if self.places.fixed
            else f"one more than {declared} has room for. Raise it"
        )
        raise SampleError(
            f"{where}: column {self.name!r} holds {shown(value)}, which is {what}, let categories share places by "
            f'hashed={{{self.name!r}: 16}}, or leave such rows out with bad="skip".'
        )

    def _count(self, value: str) -> None:
        self.places.find(value)

    def _place(self, value: str) -> int | None:
        """The place of a category that was read; a new one would be given it when it is counted in."""
        return self.places.look(value)

    def _entries(self, value: str | None) -> list[float]:
        row = [0.0] * self.places.count
        place = None if value is None else self._place(value)
        if place is not None:
            row[place] = 1.0
        return row

    def many(self, cells: Sequence[Any]) -> Array | None:
        """As any column does, with each category looked at once."""
        if not all(type(cell) is str for cell in cells):
            return super().many(cells)
        values: dict[str, Any] = {}
        places: dict[str, int | None] = {}
        for cell in dict.fromkeys(cells):
            try:
                value = values[cell] = self.read(cell, "")
            except SampleError:
                return None
            if value is None and self.missing == "hold":
                return super().many(cells)
            if value is SKIP:
                return None
            if value is not None:
                self._count(value)
            places[cell] = None if value is None else self._place(value)
        self.held = next((values[cell] for cell in reversed(cells) if values[cell] is not None), self.held)
        known = [(row, places[cell]) for row, cell in enumerate(cells) if places[cell] is not None]
        out = np.zeros((len(cells), self.places.count))
        if known:
            out[tuple(zip(*known, strict=True))] = 1.0
        return out

    def state(self) -> list[Any]:
        """The last category, and those that were found."""
        return [self.held, [] if self.places.fixed else self.places.names]

    def load(self, state: Sequence[Any]) -> None:
        """Take up what `state` told."""
        held, names = state
        self.held = None if held is None else name_of(held)
        self.places.load(names_again(names))


class Hashed(Category):
    """A category that shares its place with others, chosen by a checksum of its name."""

    def __init__(self, name: str, missing: str | float, count: int) -> None:
        super().__init__(name, missing, Places(count))

    @property
    def entries(self) -> list[str]:  # type: ignore[override]
        """Numbered."""
        return [f"{self.name}#{k}" for k in range(self.places.count)]

    def _value(self, cell: Any, where: str) -> str | None:
        return None if is_missing(cell) else name_of(cell)

    def _count(self, value: str) -> None:
        """Nothing to count: every name has its place already."""

    def _place(self, value: str) -> int:
        return shared(value, self.places.count)
