"""Where the rows of a table come from: batches of cells, and rows one after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from hamlearn.errors import ConfigError, SampleError
from hamlearn.streams.items import Items
from hamlearn.streams.units import FIRST
from hamlearn.streams.values import shown

Row = Mapping[str, Any]
Rows = Iterable[Row] | Callable[[], Iterable[Row]] | Mapping[str, Sequence[Any]]
"""Rows, a function that returns fresh ones, columns by name, or a frame."""


@dataclass(slots=True)
class RowBatch:
    """Some rows, column by column.

    Attributes:
        cells: The cells of each column that was asked for, as Python has them.
        count: How many rows.
        where: What to call a row in messages.
        broken: What is wrong with rows that cannot be read at all; their cells are `None`.
    """

    cells: Sequence[Sequence[Any]]
    count: int
    where: Callable[[int], str]
    broken: dict[int, str] = field(default_factory=dict)

    def part(self, start: int, stop: int) -> RowBatch:
        """Some of the rows."""
        broken = {row - start: problem for row, problem in self.broken.items() if start <= row < stop}
        cells = [column[start:stop] for column in self.cells]
        return RowBatch(cells, stop - start, lambda row: self.where(start + row), broken)


class TableSource(ABC):
    """Rows that are read in batches, from any place.

    Attributes:
        name: What to call it in messages.
        at: How many rows were read.
        once: Whether it is an iterator, whose rows come only once.
        length: How many rows it has; `None` if unknown.
    """

    name = "the table"
    at = 0
    once = False
    length: int | None = None

    @abstractmethod
    def header(self, look: bool = True) -> list[Any] | None:
        """Names of the columns; `None` if they are not known without reading rows, and `look` is not set."""

    @abstractmethod
    def seek(self, row: int) -> None:
        """Go to a row, or as far as there are rows before it."""

    @abstractmethod
    def read(self, names: Sequence[Any], n: int) -> RowBatch:
        """The next `n` rows, or those that are left."""

    def first(self, names: Sequence[Any], n: int) -> RowBatch:
        """The first `n` rows; the place stays."""
        place = self.at
        self.seek(0)
        batch = self.read(names, n)
        self.seek(place)
        return batch


class RowSource(TableSource):
    """Mappings, one for each row.

    Args:
        rows: A collection, an iterator, or a function that returns a fresh iterator.
        to_row: Makes a mapping of an item; raises `ValueError` if that cannot be.
        word: What to call a row in messages.
    """

    def __init__(self, rows: Any, to_row: Callable[[Any], Row] | None = None, word: str = "row") -> None:
        if not callable(rows) and not isinstance(rows, Iterable):
            raise ConfigError(
                f"{shown(rows)} holds no rows. Give an iterable of mappings, or a mapping of columns."
            )
        self._items, self._to_row, self._word = Items(rows, _copied), to_row or _mapping_of, word
        self.once = self._items.once
        self.length = len(rows) if isinstance(rows, Sized) else None
        self._names: list[Any] | None = None

    def header(self, look: bool = True) -> list[Any] | None:
        """Names of the columns in the first rows; of an iterator, in its first row."""
        if self._names is None and (look or not self.once):
            names: dict[Any, None] = {}
            for k, row in enumerate(self._peek(1 if self.once else FIRST + 1)):
                try:
                    names.update(dict.fromkeys(self._to_row(row)))
                except ValueError as error:
                    if not names:
                        raise SampleError(f"{self._word} {k} {error}.") from error
            self._names = list(names)
        return self._names

    def seek(self, row: int) -> None:
        """Go to a row; of an iterator, one that was not read yet."""
        self._items.seek(row)
        self.at = row

    def read(self, names: Sequence[Any], n: int) -> RowBatch:
        """The next rows; if the source fails, those before come first and its error with the next call."""
        start, mappings, broken = self.at, [], {}
        for k, row in enumerate(self._items.take(n)):
            try:
                mappings.append(self._to_row(row))
            except ValueError as error:
                broken[k] = str(error)
                mappings.append({})
        self.at += len(mappings)
        cells = [[row.get(name) for row in mappings] for name in names]
        return RowBatch(cells, len(mappings), lambda k: f"{self._word} {start + k}", broken)

    def first(self, names: Sequence[Any], n: int) -> RowBatch:
        """The first rows; of an iterator, the next ones."""
        rows = [row if isinstance(row, Mapping) else {} for row in self._peek(n)]
        return RowBatch([[row.get(name) for row in rows] for name in names], len(rows), str)

    def _peek(self, n: int) -> list[Any]:
        """The first rows, or of an iterator the next ones, which are read later."""
        return self._items.peek(n) if self.once else list(islice(self._items.fresh(), n))


def _copied(row: Any) -> Any:
    """A row with memory of its own: a source may use that of its rows again."""
    return dict(row) if isinstance(row, Mapping) else row


def _mapping_of(row: Any) -> Row:
    """The cells of a row by name; `ValueError` if it has none."""
    if isinstance(row, Mapping):
        return row
    if isinstance(row, tuple) and hasattr(row, "_asdict"):
        return dict(row._asdict())
    raise ValueError(
        f"is a {type(row).__name__}, not a mapping from names of columns to cells. Give dictionaries, "
        "or use streams.from_iterable for pairs (u, target)"
    )
