"""Streams over tables: CSV files, columnar files, frames, columns and rows."""

from __future__ import annotations

import csv as _csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from hamlearn.errors import ConfigError
from hamlearn.streams.columns import Categories, Missing
from hamlearn.streams.csv_file import CsvFile
from hamlearn.streams.encoder import TableSettings
from hamlearn.streams.frames import is_columnar, of_columnar_file, source_of
from hamlearn.streams.row_source import Rows
from hamlearn.streams.table import TableStream
from hamlearn.streams.units import Unit


def csv(
    path: str | os.PathLike[str],
    u: str | Sequence[str] | None = None,
    target: str | Sequence[str] | None = None,
    time: str | None = None,
    classes: Sequence[Any] | int | None = None,
    missing: Missing = "raise",
    bad: Literal["raise", "skip"] = "raise",
    time_format: str | None = None,
    unit: Unit = "auto",
    delimiter: str = ",",
    encoding: str | None = None,
    dtype: torch.dtype | None = None,
    categories: Categories | None = None,
    hashed: Mapping[str, int] | None = None,
    id: str | None = None,
    ties: float | None = None,
) -> TableStream:
    r"""A stream over the rows of a CSV file whose first line names the columns, or of a columnar file.

    Args:
        path: The file, also compressed (`.gz`, `.bz2`, `.xz`, `.zst`). A file that is called `.parquet`, `.pq`,
            `.arrow`, `.feather` or `.ipc` is read by polars, `hamlearn[tables]`.
        u: The input columns: numbers (true and false count as 1 and 0), and those of `categories` and
            `hashed`. The input is a vector of them. `None`: all columns but `target`, `time` and `id`.
        target: The target column (a number: a vector of one; with `classes`: the index of the class), or
            several, a vector. A missing cell in it makes the sample one without target.
        time: The column of time stamps: numbers, or datetimes in ISO format or in `time_format`. Each
            sample then carries the true time since the last one that was yielded.
        classes: Names of the classes of the target column, in order; or how many may be found on the way, which
            then are in the order in which they came. A word that says that a cell is missing (NA, null, none, ?)
            is a class where it is named here; it is not found on the way, but counts as missing, which is logged
            once.
        missing: What a missing input cell (empty, NA, NaN, null, none, ?) gets: `"raise"` an error, `"skip"`
            the row, `"hold"` the column's last value (rows before the first value are skipped), the `"mean"`
            of all before (0 at first), `"indicate"` (the mean, and a further entry that is 1 where the cell is
            missing and else 0), or a number. A mapping says it for each column; those that it does not name
            raise. A category that is missing has 0 in all its places, unless it is held.
        bad: What a bad row gets (a cell that is no number, an unknown class or category, too few or too many
            cells, time that does not move forward): `"raise"` an error that names the line, or `"skip"` it.
        time_format: As in `datetime.strptime`.
        unit: What counts as one unit of time: a number (of seconds, for datetimes) or a `timedelta`. `"auto"`: the
            median of the first 32 gaps, which is logged, and kept with the stream's state.
        delimiter: Between cells: `";"` where commas are decimal signs, `"\t"` for tabs.
        encoding: Of the file; `None` is what its byte-order mark says, and UTF-8 where it has none.
        dtype: Of inputs and numeric targets; `None` is torch's default.
        categories: Input columns of categories, which become one entry a category, 1 for the present one. For each
            column its categories in order; or how many may be found on the way. As names of categories and of
            classes, the cells 3 and 3.0 and Python's numbers 3 and 3.0 are one; 03 is another.
        hashed: Input columns of many categories, which share so many entries by a checksum of their names.
        id: The column of names by which labels that come later call their samples. A row without a target is
            then a sample that waits for its label, and a row with an id, a target and no inputs is that label,
            which takes no time.
        ties: The time step, in units of time, of a row whose time stamp is that of the row before it, as in logs
            that count whole seconds; the next gap is still measured from that stamp. `None`: such a row is bad.

    The stream counts what it left out in `skipped`, names the entries of the input in `entries` and the
    classes that it knows in `classes`. What it finds on the way is part of its state.

    Example:
        >>> import tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "flow.csv"
        >>> _ = file.write_text("t,flow,gate,next\n0,1.5,open,2\n1,2.0,shut,\n4,,open,3\n")
        >>> stream = csv(file, u=["flow", "gate"], target="next", time="t", unit=1.0,
        ...              categories={"gate": ["open", "shut"]}, missing="indicate")
        >>> stream.entries
        ['flow', 'flow is missing', 'gate=open', 'gate=shut']
        >>> [(s.u.tolist(), s.target, s.tau) for s in stream][1:]
        [([2.0, 0.0, 0.0, 1.0], None, 1.0), ([1.75, 1.0, 1.0, 0.0], tensor([3.]), 3.0)]
    """
    _require_delimiter(delimiter)
    try:
        found = Path(path).is_file()
    except OSError:
        # A name that no file can have.
        found = False
    if not found:
        raise ConfigError(f"there is no file {os.fspath(path)!r}. Give the path of a table.")
    settings = TableSettings(
        u, target, time, classes, missing, bad, time_format, unit, dtype, categories, hashed, id, ties
    )
    if is_columnar(path):
        if delimiter != "," or encoding is not None:
            raise ConfigError(f"{os.fspath(path)!r} has no delimiter and no encoding. Leave them out.")
        return TableStream(of_columnar_file(path), settings)
    return TableStream(CsvFile(Path(path), delimiter, encoding), settings)


def _require_delimiter(delimiter: Any) -> None:
    try:
        _csv.reader([], delimiter=delimiter)
    except (TypeError, ValueError, _csv.Error) as error:
        raise ConfigError(f"delimiter={delimiter!r} cannot separate cells ({error}). Give one letter.") from error
    if delimiter in '"\r\n\0':
        raise ConfigError(f"delimiter={delimiter!r} cannot separate cells: it has a meaning already.")


def from_rows(
    rows: Rows,
    u: str | Sequence[str] | None = None,
    target: str | Sequence[str] | None = None,
    time: str | None = None,
    classes: Sequence[Any] | int | None = None,
    missing: Missing = "raise",
    bad: Literal["raise", "skip"] = "raise",
    time_format: str | None = None,
    unit: Unit = "auto",
    dtype: torch.dtype | None = None,
    categories: Categories | None = None,
    hashed: Mapping[str, int] | None = None,
    id: str | None = None,
    ties: float | None = None,
) -> TableStream:
    """A stream over rows that are mappings from names of columns to cells, over columns, or over a frame.

    Args:
        rows: A collection or an iterator of mappings, a function that returns a fresh iterator for each pass, a
            mapping from names to columns of one length, or a frame of pandas or polars. A cell that is `None`,
            NaN, or not there, is missing.
        u: The input columns; `None`: all that are neither `target`, `time` nor `id`, as the first rows have them.
        target: This and all other arguments are as in `csv`.
        time: As in `csv`; also datetimes.
        classes: As in `csv`.
        missing: As in `csv`.
        bad: As in `csv`.
        time_format: As in `csv`, for texts.
        unit: As in `csv`.
        dtype: As in `csv`.
        categories: As in `csv`.
        hashed: As in `csv`.
        id: As in `csv`.
        ties: As in `csv`.

    An iterator, which can be iterated over only once, simply continues in a second pass.

    Example:
        >>> rows = [{"price": 2.0, "shop": "north", "sold": "yes"}, {"price": None, "shop": "west", "sold": "no"}]
        >>> stream = from_rows(rows, target="sold", classes=2, categories={"shop": 3}, missing="indicate")
        >>> [(sample.u.tolist(), sample.target.item()) for sample in stream]
        [([2.0, 0.0, 1.0, 0.0, 0.0], 0), ([2.0, 1.0, 0.0, 1.0, 0.0], 1)]
        >>> stream.classes
        ['yes', 'no']
    """
    settings = TableSettings(
        u, target, time, classes, missing, bad, time_format, unit, dtype, categories, hashed, id, ties
    )
    return TableStream(source_of(rows), settings)
