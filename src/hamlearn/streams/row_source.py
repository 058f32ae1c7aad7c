"""Where the rows of a table come from: rows one after the other, columns, frames, and columnar files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hamlearn.errors import ConfigError, SampleError, StreamError, install
from hamlearn.streams.units import FIRST
from hamlearn.streams.values import shown

Row = Mapping[str, Any]
Rows = Iterable[Row] | Callable[[], Iterable[Row]] | Mapping[str, Sequence[Any]]
"""Rows, a function that returns fresh ones, columns by name, or a frame."""

CHUNK = 1 << 16
"""Rows of a columnar file that are decoded at one time."""


@dataclass(slots=True)
class Batch:
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
        is_file: Whether it may be another one when it is read again.
        length: How many rows it has; `None` if unknown.
    """

    name = "the table"
    start: Any = 0
    once = is_file = False
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
    def read(self, names: Sequence[Any], n: int) -> Batch:
        """The next `n` rows, or those that are left."""

    def first(self, names: Sequence[Any], n: int) -> Batch:
        """The first `n` rows; the place stays."""
        place = self.mark()
        self.seek(self.start)
        batch = self.read(names, n)
        self.seek(place)
        return batch


class Columns(TableSource):
    """Columns in memory, frames, and columnar files.

    Args:
        names: Of the columns.
        length: How many rows.
        cells: Returns the cells of some columns between two rows.
    """

    def __init__(
        self, names: list[Any], length: int, cells: Callable[[Sequence[Any], int, int], list[Sequence[Any]]]
    ) -> None:
        self._names, self.length, self._cells, self._at = names, length, cells, 0

    def header(self, look: bool = True) -> list[Any]:
        """Names of the columns."""
        return self._names

    def mark(self) -> int:
        """The number of the next row."""
        return self._at

    def seek(self, mark: Any) -> None:
        """Go to a row."""
        self._at = int(mark)

    def read(self, names: Sequence[Any], n: int) -> Batch:
        """The next rows."""
        assert self.length is not None
        start, stop = self._at, min(self._at + n, self.length)
        self._at = max(start, stop)
        if stop <= start:
            return Batch([], 0, str)
        return Batch(self._cells(names, start, stop), stop - start, lambda k: f"row {start + k}")


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
        self._iterator: Iterator[Any] | None = None
        # Rows of an iterator that were looked at and not read yet.
        self._ahead: list[Any] = []
        self._at = 0
        self._names: list[Any] | None = None
        self._error: Exception | None = None

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
        if not self.once:
            self._iterator, self._at, self._error = None, 0, None
        self._take(place - self._at)
        if self._at < place:
            raise StreamError(
                f"the stream ended after {self._at} samples while skipping to sample {place}, where it had been "
                "saved. Give it the same data as when it was saved."
            )

    def read(self, names: Sequence[Any], n: int) -> Batch:
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
        return Batch(cells, len(rows), lambda k: f"{self.word} {start + k}", broken)

    def first(self, names: Sequence[Any], n: int) -> Batch:
        """The first rows; of an iterator, the next ones."""
        rows = [row if isinstance(row, Mapping) else {} for row in self._peek(n)]
        return Batch([[row.get(name) for row in rows] for name in names], len(rows), str)

    def _peek(self, n: int) -> list[Any]:
        """Rows to look at, which are read later."""
        if not self.once:
            return list(islice(self._fresh(), n))
        self._ahead += self._next(n - len(self._ahead))
        return self._ahead[:n]

    def _fresh(self) -> Iterator[Any]:
        return iter(self._rows() if callable(self._rows) else self._rows)

    def _take(self, n: int) -> list[Any]:
        if isinstance(self._rows, list | tuple):
            rows = list(self._rows[self._at : self._at + n])
        else:
            waiting, self._ahead = self._ahead[:n], self._ahead[n:]
            rows = [*waiting, *self._next(n - len(waiting))]
        self._at += len(rows)
        return rows

    def _next(self, n: int) -> list[Any]:
        """The next rows of the iterator; if it fails, those before come first and its error with the next call."""
        if self._error is not None:
            raise self._error
        if self._iterator is None:
            self._iterator = self._rows if self.once else self._fresh()
        rows: list[Any] = []
        try:
            for row in islice(self._iterator, max(0, n)):
                # A source may use the memory of a row again.
                rows.append(dict(row) if isinstance(row, Mapping) else row)
        except Exception as error:
            if not rows:
                raise
            self._error = error
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


def library_of(value: Any) -> str | None:
    """`"pandas"` or `"polars"` if a value is of theirs; neither is imported."""
    roots = (base.__module__.partition(".")[0] for base in type(value).__mro__)
    return next((root for root in roots if root in ("pandas", "polars")), None)


def source_of(rows: Any) -> TableSource:
    """The source for rows, columns or a frame.

    Raises:
        ConfigError: It is none of these, or its columns do not fit together.
    """
    library = library_of(rows)
    if library is not None:
        return _of_frame(rows, library)
    if isinstance(rows, Mapping):
        sizes = {name: len(column) for name, column in rows.items()}
        if len(set(sizes.values())) != 1:
            raise ConfigError(f"the columns differ in length: {shown(sizes)}. Give one cell for each row.")
        columns = dict(rows)
        return Columns(
            list(columns),
            next(iter(sizes.values())),
            lambda names, start, stop: [_as_list(columns[name][start:stop]) for name in names],
        )
    return RowSource(rows)


def _as_list(column: Any) -> Sequence[Any]:
    """Cells as Python has them; dates of NumPy stay, since Python's do not reach as far, and so do arrays."""
    if isinstance(column, Tensor | np.ndarray) and column.ndim == 1 and getattr(column.dtype, "kind", "") != "M":
        return list(column.tolist())
    return column if isinstance(column, list | tuple) else list(column)


def _of_frame(frame: Any, library: str) -> Columns:
    kind = next(
        (base.__name__ for base in type(frame).__mro__ if base.__name__ in ("DataFrame", "LazyFrame")), None
    )
    if kind is None:
        raise ConfigError(
            f"{library}'s {type(frame).__name__} cannot be made a stream. Give the frame that it belongs to."
        )
    if kind == "LazyFrame":
        return _of_lazy_frame(frame)
    names = list(frame.columns)
    if len(set(names)) < len(names):
        raise ConfigError(f"the frame has two columns of one name: {shown(names)}. Rename one of them.")
    cells = _polars_cells if library == "polars" else _pandas_cells
    return Columns(names, len(frame), lambda names, start, stop: cells(frame, names, start, stop))


def _polars_cells(frame: Any, names: Sequence[Any], start: int, stop: int) -> list[Sequence[Any]]:
    return [frame[name][start:stop].to_list() for name in names]


def _pandas_cells(frame: Any, names: Sequence[Any], start: int, stop: int) -> list[Sequence[Any]]:
    cells = []
    for name in names:
        column = frame[name].iloc[start:stop]
        plain = isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf"
        # Other types have gaps of their own, pd.NA and pd.NaT, which become None.
        cells.append((column if plain else column.astype(object).where(column.notna(), None)).tolist())
    return cells


def _of_lazy_frame(frame: Any) -> Columns:
    held: dict[str, Any] = {"start": 0, "rows": None}

    def cells(names: Sequence[Any], start: int, stop: int) -> list[Sequence[Any]]:
        rows, first = held["rows"], held["start"]
        if rows is None or list(names) != rows.columns or not first <= start <= stop <= first + len(rows):
            rows, first = frame.select(list(names)).slice(start, max(CHUNK, stop - start)).collect(), start
            held.update(rows=rows, start=first)
        return _polars_cells(rows, names, start - first, stop - first)

    import polars

    length = int(frame.select(polars.len()).collect().item())
    return Columns(frame.collect_schema().names(), length, cells)


def of_columnar_file(path: str | os.PathLike[str]) -> Columns:
    """The source for a Parquet, Arrow or Feather file, read by polars, lazily.

    Raises:
        ConfigError: polars is not installed, or cannot read the file.
    """
    try:
        import polars
    except ImportError as error:
        raise ConfigError(f"the file {os.fspath(path)!r} is read by polars: {install('tables')}") from error
    scan = polars.scan_parquet if is_parquet(path) else polars.scan_ipc
    try:
        source = _of_lazy_frame(scan(os.fspath(path)))
    except (polars.exceptions.PolarsError, OSError) as error:
        raise ConfigError(
            f"{os.fspath(path)!r} cannot be read ({error}). Give a Parquet or Arrow file."
        ) from error
    source.name, source.is_file = Path(path).name, True
    return source


def is_parquet(path: str | os.PathLike[str]) -> bool:
    """Whether a file is called a Parquet file."""
    return os.fspath(path).lower().endswith((".parquet", ".pq"))


def is_columnar(path: str | os.PathLike[str]) -> bool:
    """Whether a file is called a Parquet, Arrow or Feather file."""
    return is_parquet(path) or os.fspath(path).lower().endswith((".arrow", ".feather", ".ipc"))
