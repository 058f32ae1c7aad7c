"""Columns in memory, frames of pandas and polars, and columnar files, as the source of a table."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hamlearn.errors import ConfigError, install
from hamlearn.streams.row_source import RowBatch, RowSource, TableSource
from hamlearn.streams.values import shown

CHUNK = 1 << 16
"""Rows of a columnar file that are decoded at one time."""
PARQUET = (".parquet", ".pq")


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
        self._names, self.length, self._cells = names, length, cells

    def header(self, look: bool = True) -> list[Any]:
        """Names of the columns."""
        return self._names

    def seek(self, row: int) -> None:
        """Go to a row."""
        assert self.length is not None
        self.at = min(row, self.length)

    def read(self, names: Sequence[Any], n: int) -> RowBatch:
        """The next rows."""
        assert self.length is not None
        start, self.at = self.at, min(self.at + n, self.length)
        cells = self._cells(names, start, self.at) if self.at > start else []
        return RowBatch(cells, self.at - start, lambda k: f"row {start + k}")


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
