"""Streams over CSV files: read line by line, resumed at a byte."""

from __future__ import annotations

import csv as _csv
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

import torch

from hamlearn.errors import ConfigError, SampleError, StreamError
from hamlearn.streams.blocks import Block
from hamlearn.streams.encode import Categories, Missing
from hamlearn.streams.fields import is_missing, require_columns, require_delimiter
from hamlearn.streams.lines import LineError, Lines, detect
from hamlearn.streams.table import TableStream, column_names, others_than
from hamlearn.streams.units import FIRST, Unit


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
) -> CsvStream:
    r"""A stream over the rows of a CSV file whose first line names the columns.

    Args:
        path: The file.
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
    _require_settings(delimiter, time_format)
    try:
        found = Path(path).is_file()
    except OSError:
        # A name that no file can have.
        found = False
    if not found:
        raise ConfigError(f"there is no file {os.fspath(path)!r}. Give the path of a CSV file.")
    columns = (u, target, time, classes, categories, hashed, missing, bad, time_format, unit, dtype, id, ties)
    return CsvStream(Path(path), delimiter, encoding, columns)


def _require_settings(delimiter: Any, time_format: str | None) -> None:
    try:
        _csv.reader([], delimiter=delimiter)
    except (TypeError, ValueError, _csv.Error) as error:
        raise ConfigError(f"delimiter={delimiter!r} cannot separate cells ({error}). Give one letter.") from error
    if delimiter in '"\r\n\0':
        raise ConfigError(f"delimiter={delimiter!r} cannot separate cells: it has a meaning already.")
    try:
        datetime.strptime("", time_format or "")
    except re.error as error:
        raise ConfigError(f"time_format={time_format!r} is no format ({error}): see datetime.strptime.") from error
    except ValueError as error:
        # The empty text follows no format; a format that nothing follows is another matter.
        if "bad directive" in str(error) or "stray %" in str(error):
            raise ConfigError(f"time_format={time_format!r} is no format: {error}.") from error


class CsvStream(TableStream):
    """What `csv` returns. `skipped` counts the rows that were left out."""

    _loaded = False

    def __init__(self, path: Path, delimiter: str, encoding: str | None, columns: tuple[Any, ...]) -> None:
        self._path, self._delimiter = path, delimiter
        self._header, self._encoding, self._start, self._first = self._read_header(encoding)
        u, target, time, *others = columns
        *_, id, _ties = others
        named = [*column_names(u), *column_names(target), *column_names(time)]
        require_delimiter(self._header, named, path.name, delimiter)
        if u is None:
            u = others_than(self._header, target, time, id)
        super().__init__(u, target, time, *others)
        require_columns(self._header, self._used, path.name)
        self._at = [self._header.index(name) for name in self._used]
        # The file, and its lines, between two blocks.
        self._opened: Iterator[Lines] | None = None
        self._lines_open: Any = None
        self._rewind()

    def _config(self) -> dict[str, Any]:
        return {**super()._config(), "columns": self._header}

    def _rewind(self) -> None:
        super()._rewind()
        self._offset, self._line = self._start, self._first

    def _cursor(self) -> dict[str, Any]:
        return {"offset": self._offset, "line": self._line, **super()._cursor()}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        super()._seek(cursor)
        self._loaded = True
        self._offset, self._line = int(cursor["offset"]), int(cursor["line"])

    def _read_header(self, encoding: str | None) -> tuple[list[str], str, int, int]:
        """The names of the columns, the encoding, and the byte and number of the line that follows."""
        try:
            with self._path.open("rb") as file:
                encoding, start = detect(file, encoding)
                file.seek(start)
                lines = Lines(file, encoding, start)
                header = next(self._rows(lines), [])
        except OSError as error:
            raise ConfigError(
                f"{self._path} cannot be read: {error.strerror}. Give the path of a file."
            ) from error
        except (LineError, _csv.Error) as error:
            raise ConfigError(
                f"{self._path.name}, line {lines.line} cannot be read: {error}. Mend it, or say by delimiter=... "
                f"what separates the cells, if it is not {self._delimiter!r}."
            ) from error
        if not header:
            raise ConfigError(f"{self._path.name}, line 1 is empty. Name the columns in the first line.")
        return header, encoding, lines.offset, lines.line

    def _rows(self, lines: Any) -> Iterator[list[str]]:
        return _csv.reader(lines, delimiter=self._delimiter, strict=True)

    def _first_stamps(self) -> Iterator[Any]:
        """Time stamps of the first rows, as far as they can be read."""
        column = self._at[-1]
        with self._path.open("rb") as file:
            file.seek(self._start)
            rows = islice(self._rows(Lines(file, self._encoding, self._start)), FIRST + 1)
            try:
                for row in rows:
                    labels = self._id is not None and is_missing(row[column] if column < len(row) else "")
                    if len(row) == len(self._header) and not labels:
                        yield self._stamp(row[column], "")
            except (SampleError, _csv.Error, LineError):
                # The row is named when its turn comes; the unit is found from those before it.
                return

    def _lines(self, file: IO[bytes]) -> Lines:
        """The lines from the cursor on."""
        if file.seek(0, os.SEEK_END) < self._offset:
            raise StreamError(
                f"{self._path.name} has fewer than the {self._offset} bytes that were read of it before: rows "
                "are missing. Give it the file that it was saved with."
            )
        file.seek(self._offset)
        lines = Lines(file, self._encoding, self._offset, self._line)
        if self._loaded and not lines.between(self._start):
            raise StreamError(
                f"no row of {self._path.name} begins at byte {self._offset}, where the stream stood: the file was "
                "changed before that place since, or its last row was not whole yet. Give it the file that it was "
                "saved with, or read this one from its beginning."
            )
        self._loaded = False
        return lines

    def _begin(self) -> None:
        super()._begin()
        self._opened = None

    def _block(self, n: int) -> Block | None:
        if self._time is not None:
            self._clock.find(self._first_stamps())
        if self._opened is None:
            self._opened = self._opening()
            self._lines_open = next(self._opened)
        block = self._regular(self._lines_open, n)
        if block is None:
            self._opened = None
            return None
        self._offset, self._line = self._lines_open.offset, self._lines_open.line
        return block

    def _opening(self) -> Iterator[Lines]:
        """The lines from the cursor on; the file is open as long as this is kept."""
        with self._path.open("rb") as file:
            yield self._lines(file)

    def _regular(self, lines: Lines, count: int) -> Block | None:
        """The next rows as a block; `None` where one of them is not as it should be, or there is none."""
        try:
            taken = lines.take(count)
            rows = list(self._rows(taken))
        except (LineError, _csv.Error):
            return None
        if not rows or len(rows) != len(taken) or set(map(len, rows)) != {len(self._header)}:
            return None
        columns = list(zip(*rows, strict=True))
        return self._block_of([columns[at] for at in self._at], len(rows))

    def _samples(self) -> Iterator[Any]:
        if self._time is not None:
            self._clock.find(self._first_stamps())
        with self._path.open("rb") as file:
            lines = self._lines(file)
            rows = self._rows(lines)
            while True:
                where = f"{self._path.name}, line {lines.line + 1}"
                sample, ended = None, False
                try:
                    row = next(rows, None)
                    ended = row is None
                    if row:
                        sample = self._sample(self._cells(row, where), where)
                except (SampleError, _csv.Error, LineError) as error:
                    if self._bad == "raise":
                        if isinstance(error, SampleError):
                            raise
                        raise SampleError(
                            f'{where} cannot be read: {error}. Mend it, or leave it out with bad="skip".'
                        ) from error
                    self.skipped += 1
                self._offset, self._line = lines.offset, lines.line
                if ended:
                    return
                if sample is not None:
                    yield sample

    def _cells(self, row: list[str], where: str) -> list[str]:
        if len(row) != len(self._header):
            raise SampleError(
                f"{where} has {len(row)} cells, but the header names {len(self._header)} columns. "
                'Mend the row, or leave such rows out with bad="skip".'
            )
        return [row[at] for at in self._at]
