"""Where the rows of a table come from: batches of cells, and rows one after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from hamlearn.errors import ConfigError, SampleError, StreamError
from hamlearn.streams.blocks import raising, read_some
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


class TableSource(ABC):
    """Rows that are read in batches, from any place.

    Attributes:
        name: What to call it in messages.
        start: The mark of its beginning.
        once: Whether it is an iterator, whose rows come only once.
        length: How many rows it has; `None` if unknown.
    """

    name = "the table"
    start: Any = 0
    once = False
    length: int | None = None

    @abstractmethod
    def header(self, look: bool = True) -> list[Any] | None:
        """Names of the columns; `None` if they are not known without reading rows, and `look` is not set."""

    @abstractmethod
    def mark(self) -> Any:
        """The place between two rows, as JSON."""

    @abstractmethod
    def seek(self, mark: Any) -> None:
        """Go to a place that `mark` returned."""

    @abstractmethod
    def read(self, names: Sequence[Any], n: int) -> RowBatch:
        """The next `n` rows, or those that are left."""

    def first(self, names: Sequence[Any], n: int) -> RowBatch:
        """The first `n` rows; the place stays."""
        place = self.mark()
        self.seek(self.start)
        batch = self.read(names, n)
        self.seek(place)
        return batch


class RowSource(TableSource):
    """Mappings, one for each row.

    Args:
        rows: A collection, an iterator, or a function that returns a fresh iterator.

    Attributes:
        word: What to call a row in messages.
    """

    word = "row"

    def __init__(self, rows: Any) -> None:
        if not callable(rows) and not isinstance(rows, Iterable):
            raise ConfigError(
                f"{shown(rows)} holds no rows. Give an iterable of mappings, or a mapping of columns."
            )
        self._rows = rows
        self.once = isinstance(rows, Iterator)
        self.length = len(rows) if isinstance(rows, Sized) else None
        self._iterator: Iterator[Any] = rows if self.once else iter(())
        self._at = 0
        self._names: list[Any] | None = None
        if not self.once:
            self.seek(0)

    def header(self, look: bool = True) -> list[Any] | None:
        """Names of the columns in the first rows; of an iterator, in its first row."""
        if self._names is None and (look or not self.once):
            names: dict[Any, None] = {}
            for k, row in enumerate(self._peek(1 if self.once else FIRST + 1)):
                try:
                    names.update(dict.fromkeys(self._mapping(row)))
                except ValueError as error:
                    if not names:
                        raise SampleError(f"{self.word} {k} {error}.") from error
            self._names = list(names)
        return self._names

    def mark(self) -> int:
        """The number of the next row."""
        return self._at

    def seek(self, mark: Any) -> None:
        """Go to a row; of an iterator, one that was not read yet."""
        place = int(mark)
        if self.once and place < self._at:
            raise StreamError(
                f"an iterator gives nothing twice: it was read up to item {self._at}, and cannot go back to item "
                f"{place}, where the stream had been saved. Give a fresh iterator, or a function that returns one."
            )
        if isinstance(self._rows, list | tuple):
            self._at = min(place, len(self._rows))
            self._iterator = map(self._rows.__getitem__, range(self._at, len(self._rows)))
        elif not self.once:
            self._iterator, self._at = self._fresh(), 0
        self._take(place - self._at)
        if self._at < place:
            raise StreamError(
                f"the stream ended after {self._at} samples while skipping to sample {place}, where it had been "
                "saved. Give it the same data as when it was saved."
            )

    def read(self, names: Sequence[Any], n: int) -> RowBatch:
        """The next rows."""
        start = self._at
        rows = self._take(n)
        broken, mappings = {}, []
        for k, row in enumerate(rows):
            try:
                mappings.append(self._mapping(row))
            except ValueError as error:
                broken[k] = str(error)
                mappings.append({})
        cells = [[row.get(name) for row in mappings] for name in names]
        return RowBatch(cells, len(rows), lambda k: f"{self.word} {start + k}", broken)

    def first(self, names: Sequence[Any], n: int) -> RowBatch:
        """The first rows; of an iterator, the next ones."""
        rows = [row if isinstance(row, Mapping) else {} for row in self._peek(n)]
        return RowBatch([[row.get(name) for row in rows] for name in names], len(rows), str)

    def _peek(self, n: int) -> list[Any]:
        """The first rows, or of an iterator the next ones, which are read later."""
        if not self.once:
            return list(islice(self._fresh(), n))
        place, rows = self._at, self._take(n)
        self._iterator, self._at = chain(rows, self._iterator), place
        return rows

    def _fresh(self) -> Iterator[Any]:
        return iter(self._rows() if callable(self._rows) else self._rows)

    def _take(self, n: int) -> list[Any]:
        """The next rows; if the source fails, those before come first and its error with the next call."""
        # Copied, since a source may use the memory of a row again.
        copies = (dict(row) if isinstance(row, Mapping) else row for row in self._iterator)
        rows, error = read_some(copies, n)
        if error is not None:
            self._iterator = raising(error)
        self._at += len(rows)
        return rows

    def _mapping(self, row: Any) -> Row:
        """The cells of a row by name; `ValueError` if it has none."""
        if isinstance(row, Mapping):
            return row
        if isinstance(row, tuple) and hasattr(row, "_asdict"):
            return dict(row._asdict())
        raise ValueError(
            f"is a {type(row).__name__}, not a mapping from names of columns to cells. Give dictionaries, "
            "or use streams.from_iterable for pairs (u, target)"
        )
