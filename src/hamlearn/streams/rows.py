"""Where the rows of a table come from: rows one after the other, columns in memory, frames and columnar files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hamlearn.errors import ConfigError, SampleError, StreamError, install, shown
from hamlearn.streams.items import Items

Row = Mapping[str, Any]
Rows = Iterable[Row] | Callable[[], Iterable[Row]] | Mapping[str, Sequence[Any]]
"""Rows, a function that returns fresh ones, columns by name, or a frame."""

HEADER = 33
"""Rows whose columns are looked at for their names."""
SLICE = 1024
"""Rows of columns that become Python's objects at one time."""
CHUNK = 1 << 16
"""Rows of a columnar file that are decoded at one time."""
PARQUET = (".parquet", ".pq")


class TableSource(ABC):
    """Rows that are read one after the other, from any row on.

    Attributes:
        name: What to call it in messages.
        word: What to call a row in messages, before its number.
        once: Whether it is an iterator, whose rows come only once.
        length: How many rows it has; `None` if unknown.
    """

    name, word = "the table", "row"
    once = False
    length: int | None = None

    @abstractmethod
    def header(self, look: bool = True) -> list[Any] | None:
        """Names of the columns; `None` if they are not known without reading rows, and `look` is not set."""

    @abstractmethod
    def rows(self, names: Sequence[Any], start: int) -> Iterator[tuple[int, Sequence[Any] | str]]:
        """The number of each row from `start` on, in messages, and its cells, or a text: what is wrong with it."""

    def shorter(self) -> StreamError:
        """The error if there are fewer rows than `start`."""
        return StreamError(
            f"{self.name} has fewer rows than were read of it before. Give it the data that it was saved with."
        )


class RowSource(TableSource):
    """Mappings, one for each row.

    Args:
        rows: A collection, an iterator, or a function that returns a fresh iterator.
        to_row: Makes a mapping of an item; raises `ValueError` if that cannot be.
        word: What to call a row in messages.
        names: Of the columns; `None` looks at the first rows.
    """

    def __init__(
        self,
        rows: Any,
        to_row: Callable[[Any], Row] | None = None,
        word: str = "row",
        names: list[Any] | None = None,
    ) -> None:
        if not callable(rows) and not isinstance(rows, Iterable):
            raise ConfigError(
                f"{shown(rows)} holds no rows. Give an iterable of mappings, or a mapping of columns."
            )
        self._items, self._to_row, self.word, self._names = Items(rows), to_row or _mapping_of, word, names
        self.once = self._items.once
        self.length = len(rows) if isinstance(rows, Sized) else None

    def header(self, look: bool = True) -> list[Any] | None:
        """Names of the columns in the first rows; of an iterator, in its first row."""
        if self._names is None and (look or not self.once):
            names: dict[Any, None] = {}
            first = self._items.peek(1) if self.once else islice(self._items.fresh(), HEADER)
            for k, row in enumerate(first):
                try:
                    names.update(dict.fromkeys(self._to_row(row)))
                except ValueError as error:
                    if not names:
                        raise SampleError(f"{self.word} {k} {error}.") from error
            self._names = list(names)
        return self._names

    def rows(self, names: Sequence[Any], start: int) -> Iterator[tuple[int, Sequence[Any] | str]]:
        """Numbered from 0."""
        self._items.seek(start)
        for number, item in enumerate(self._items, start):
            try:
                row = self._to_row(item)
            except ValueError as error:
                yield number, str(error)
            else:
                yield number, [row.get(name) for name in names]


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


class ColumnSource(TableSource):
    """Columns in memory, frames, and columnar files.

    Args:
        names: Of the columns.
        length: How many rows.
        cells: Returns the cells of some columns between two rows.
    """

    length: int

    def __init__(
        self, names: list[Any], length: int, cells: Callable[[Sequence[Any], int, int], list[Sequence[Any]]]
    ) -> None:
        if len(set(names)) < len(names):
            raise ConfigError(f"the frame has two columns of one name: {shown(names)}. Rename one of them.")
        self._names, self.length, self._cells = names, length, cells

    def header(self, look: bool = True) -> list[Any]:
        """Names of the columns."""
        return self._names

    def rows(self, names: Sequence[Any], start: int) -> Iterator[tuple[int, Sequence[Any] | str]]:
        """Numbered from 0."""
        if start > self.length:
            raise self.shorter()
        for first in range(start, self.length, SLICE):
            stop = min(first + SLICE, self.length)
            yield from enumerate(zip(*self._cells(names, first, stop), strict=True), first)


def library_of(value: Any) -> str | None:
    """`"pandas"` or `"polars"` if a value is of theirs; neither is imported."""
    roots = (base.__module__.partition(".")[0] for base in type(value).__mro__)
    return next((root for root in roots if root in ("pandas", "polars")), None)


def source_of(rows: Any) -> TableSource:
    """The source for rows, columns or a frame.

    Raises:
        ConfigError: It is none of these, or its columns do not fit together.
    """
    library, kinds = library_of(rows), {base.__name__ for base in type(rows).__mro__}
    if library is None:
        return _of_columns(rows) if isinstance(rows, Mapping) else RowSource(rows)
    if "LazyFrame" in kinds:
        return _of_lazy_frame(rows)
    if "DataFrame" not in kinds:
        raise ConfigError(
            f"{library}'s {type(rows).__name__} cannot be made a stream. Give the frame that it belongs to."
        )
    cells = _polars_cells if library == "polars" else _pandas_cells
    return ColumnSource(list(rows.columns), len(rows), lambda names, start, stop: cells(rows, names, start, stop))


def _of_columns(columns: Mapping[Any, Any]) -> ColumnSource:
    """The source for columns by name."""
    for name, column in columns.items():
        if isinstance(column, str | Mapping) or not hasattr(column, "__len__"):
            raise ConfigError(f"the column {name!r} is a {type(column).__name__}. Give a list or an array.")
        if len(column) and isinstance(column[0], Mapping):
            raise ConfigError(
                f"the mapping holds tables, not columns: {name!r} is a {type(column).__name__}. Choose one, "
                f"source[{name!r}]."
            )
    sizes = {name: len(column) for name, column in columns.items()}
    if len(set(sizes.values())) != 1:
        raise ConfigError(f"the columns differ in length: {shown(sizes)}. Give one cell for each row.")
    length = next(iter(sizes.values()))
    return ColumnSource(
        list(columns), length, lambda names, start, stop: [_as_list(columns[name][start:stop]) for name in names]
    )


def _as_list(column: Any) -> Sequence[Any]:
    """Cells as Python has them; dates of NumPy stay, since Python's do not reach as far."""
    if isinstance(column, Tensor | np.ndarray) and getattr(column.dtype, "kind", "") != "M":
        return list(column.tolist())
    return column if isinstance(column, list | tuple) else list(column)


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


def _of_lazy_frame(frame: Any) -> ColumnSource:
    """The source for a lazy frame of polars, of which `CHUNK` rows are decoded at one time."""
    import polars

    rows, first = None, 0

    def cells(names: Sequence[Any], start: int, stop: int) -> list[Sequence[Any]]:
        nonlocal rows, first
        if rows is None or list(names) != rows.columns or not first <= start <= stop <= first + len(rows):
            rows, first = frame.select(list(names)).slice(start, max(CHUNK, stop - start)).collect(), start
        return _polars_cells(rows, names, start - first, stop - first)

    length = int(frame.select(polars.len()).collect().item())
    return ColumnSource(frame.collect_schema().names(), length, cells)


def of_columnar_file(path: str | os.PathLike[str]) -> ColumnSource:
    """The source for a Parquet, Arrow or Feather file, read by polars, lazily.

    Raises:
        ConfigError: polars is not installed, or cannot read the file.
    """
    try:
        import polars
    except ImportError as error:
        raise ConfigError(f"the file {os.fspath(path)!r} is read by polars: {install('tables')}") from error
    scan = polars.scan_parquet if os.fspath(path).lower().endswith(PARQUET) else polars.scan_ipc
    try:
        source = _of_lazy_frame(scan(os.fspath(path)))
    except (polars.exceptions.PolarsError, OSError) as error:
        raise ConfigError(
            f"{os.fspath(path)!r} cannot be read ({error}). Give a Parquet or Arrow file."
        ) from error
    source.name = Path(path).name
    return source


def is_columnar(path: str | os.PathLike[str]) -> bool:
    """Whether a file is called a Parquet, Arrow or Feather file."""
    return os.fspath(path).lower().endswith((*PARQUET, ".arrow", ".feather", ".ipc"))
