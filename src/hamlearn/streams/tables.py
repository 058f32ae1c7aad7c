"""Tables as streams: CSV files, columnar files, frames, columns and rows."""

from __future__ import annotations

import csv as _csv
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from hamlearn.errors import ConfigError, SampleError
from hamlearn.sample import Label, Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.blocks import Block
from hamlearn.streams.cells import column_names, listed, require_columns
from hamlearn.streams.clock import FIRST, Unit
from hamlearn.streams.columns import Categories, Missing
from hamlearn.streams.csv_file import CsvFile
from hamlearn.streams.encoder import Entries, RawRow, RowEncoder, TableSettings
from hamlearn.streams.items import read_some
from hamlearn.streams.rows import Rows, TableSource, is_columnar, of_columnar_file, source_of
from hamlearn.streams.values import Spec, TensorSpec

AHEAD = 64
"""Samples that are made at one time, where they are asked for one by one."""


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
            then are in the order in which they came. List two classes, the positive one last, for a metric that
            has a positive class, such as F1 or Recall: it counts class 1. A word that says that a cell is missing
            (NA, null, none, ?) is a class where it is named here; it is not found on the way, but counts as
            missing, which is logged once.
        missing: What a missing input cell (empty, NA, NaN, null, none, ?) gets: `"raise"` an error, `"skip"`
            the row, `"hold"` the column's last value (rows before the first value are skipped), the `"mean"`
            of all before (0 at first), `"indicate"` (the mean, and a further entry that is 1 where the cell is
            missing and else 0), or a number. A mapping says it for each column; those that it does not name
            raise. A category that is missing has 0 in all its places, unless it is held.
        bad: What a bad row gets (a cell that is not a number, an unknown class or category, too few or too many
            cells, time that does not move forward): `"raise"` an error that names the line, or `"skip"` it.
        time_format: As in `datetime.strptime`.
        unit: What counts as one unit of time: a number (of seconds, for datetimes) or a `timedelta`. `"auto"`: the
            median of the first 32 gaps, which is logged, and kept with the stream's state.
        delimiter: Between cells: for example `";"`, or `"\t"` for tabs. Decimal signs must be points.
        encoding: Of the file; `None` is what its byte-order mark says, and UTF-8 where it has none.
        dtype: Of inputs and numeric targets; `None` is torch's default.
        categories: Input columns of categories, which become one entry a category, 1 for the present one. For each
            column its categories in order; or how many may be found on the way. As names of categories and of
            classes, the cells 3 and 3.0 and Python's numbers 3 and 3.0 are one; 03 is another.
        hashed: Input columns of many categories, which share so many entries by a checksum of their names.
        id: The column of names by which labels that come later call their samples. A row without a target is
            then a sample that waits for its label, and a row with an id, a target and no inputs is that label,
            which takes no time. A row with a target of its own keeps its name, for records.
        ties: The time step, in units of time, of a row whose time stamp is that of the row before it, as in logs
            that count whole seconds; the next gap is still measured from that stamp. `None`: such a row is bad.

    The stream counts what it left out in `skipped`, names the entries of the input in `entries` and the
    classes found so far in `classes`. What it finds on the way is part of its state.

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
    **settings: Any,
) -> TableStream:
    """A stream over rows that are mappings from names of columns to cells, over columns, or over a frame.

    Args:
        rows: A collection or an iterator of mappings, a function that returns a fresh iterator for each pass, a
            mapping from names to columns of one length, or a frame of pandas or polars. A cell that is `None`,
            NaN, or not there, is missing.
        u: The input columns; `None`: all that are neither `target`, `time` nor `id`, as the first rows have them.
        target: As in `csv`.
        time: As in `csv`. Time stamps may also be datetimes.
        **settings: `classes`, `missing`, `bad`, `time_format`, `unit`, `dtype`, `categories`, `hashed`, `id` and
            `ties`, as in `csv`.

    An iterator, which can be iterated over only once, simply continues in a second pass.

    Example:
        >>> rows = [{"price": 2.0, "shop": "north", "sold": "yes"}, {"price": None, "shop": "west", "sold": "no"}]
        >>> stream = from_rows(rows, target="sold", classes=2, categories={"shop": 3}, missing="indicate")
        >>> [(sample.u.tolist(), sample.target.item()) for sample in stream]
        [([2.0, 0.0, 1.0, 0.0, 0.0], 0), ([2.0, 1.0, 0.0, 1.0, 0.0], 1)]
        >>> stream.classes
        ['yes', 'no']
    """
    return TableStream(source_of(rows), TableSettings(u, target, time, **settings))


class TableStream(Stream):
    """Rows of a table as samples.

    The state says how many rows were read, and what was learned from them: means, categories, classes, the last
    time stamp. Samples that are asked for one by one are made many at a time. What the stream says of itself is as
    of the last that was handed out: those before it are then made again.
    """

    _needs_inputs = True

    def __init__(self, source: TableSource, settings: TableSettings) -> None:
        self._source = source
        u = column_names(settings.u)
        if settings.u is None:
            header = source.header()
            if not header:
                raise ConfigError("there are no rows, so that the input columns are not known. Name them by u.")
            others = [*column_names(settings.target), settings.time, settings.id]
            u = [name for name in header if name not in others]
        if not u and self._needs_inputs:
            raise ConfigError("u=[] names no input column. Name one or more.")
        self._u, self._time = u, settings.time
        self._encoder = RowEncoder(settings, u, source.word)
        self._names = source.header(look=False) or self._encoder.used
        require_columns(self._names, self._encoder.used, source.name)
        self._unread = self._encoder.state()
        self._go_to(0, 0, self._unread)

    def _go_to(self, row: int, skipped: int, known: Mapping[str, Any]) -> None:
        self._row, self._skipped = row, skipped
        self._encoder.load(known)
        # The rows to come, `None` before they are opened; and what went wrong after those that were read.
        self._rows: Iterator[RawRow] | None = None
        self._failed: BaseException | None = None
        # Rows that were read ahead, and how many of them have become samples.
        self._waiting: list[RawRow] = []
        self._at = 0
        # Samples that were made ahead, how many before them were handed out, and the place before all of them.
        self._ready: deque[Any] = deque()
        self._given = 0
        self._before: tuple[int, int, Any] = (0, 0, None)

    @property
    def spec(self) -> Spec:
        """Vectors of the columns; the length if it is known and no row is left out."""
        length = None if self._encoder.leaves_out else self._source.length
        inputs = TensorSpec((len(self.numbers),), self._encoder.dtype)
        return Spec(inputs, self._encoder.target_spec, length)

    @property
    def numbers(self) -> list[bool]:
        """Which entries of the input are measured, rather than 0 or 1 for a category or a missing cell."""
        return [measured for column in self._encoder.columns for measured in column.measured]

    @property
    def entries(self) -> list[str]:
        """Names of the entries of the input; a category that has not been found yet is `?` and its place."""
        return [entry for column in self._settled().columns for entry in column.entries]

    @property
    def classes(self) -> list[str] | None:
        """The classes of the target found so far, in order; `None` if it is a number."""
        classes = self._settled().classes
        return None if classes is None else classes.names

    @property
    def unit(self) -> float | None:
        """What counts as one unit of time; `None` as long as it has not been found."""
        return self._encoder.clock.unit

    @property
    def skipped(self) -> int:
        """Rows that were left out so far."""
        self._settled()
        return self._skipped

    @property
    def replayable(self) -> bool:
        """Whether a pass can begin at the beginning; not if the rows come from an iterator."""
        return not self._source.once

    def encode(self, row: Any) -> Tensor:
        """The input that the stream would make of a row, or of each row of a frame; `Stream.encode` says more."""
        if isinstance(row, Mapping):
            return self._settled().look([self._inputs_of(row)])[0]
        frame = source_of(row)
        names = frame.header() or []
        rows = [dict(zip(names, cells, strict=False)) for _, cells in frame.rows(names, 0)]
        return self._settled().look([self._inputs_of(cells) for cells in rows])

    def _inputs_of(self, row: Mapping[Any, Any]) -> list[Any]:
        unknown = [name for name in row if name not in self._names and name not in self._encoder.used]
        if unknown:
            raise SampleError(
                f"the row has {listed(unknown)}, which the table does not have. Its columns are "
                f"{listed(self._names)}. Leave out what is not among them."
            )
        return [row.get(name) for name in self._u]

    def _samples(self) -> Iterator[Any]:
        while self._ready or self._make_ready():
            self._given += 1
            yield self._ready.popleft()

    def _make_ready(self) -> bool:
        """Make the next samples; whether there is one. Of an iterator, nothing is read ahead."""
        self._forget_rows()
        many = AHEAD if self.replayable else 1
        # Opening the rows may find the unit of time, which is part of the place.
        if not self._look_ahead(many):
            return False
        self._given, self._before = 0, (self._row, self._skipped, self._encoder.state() if many > 1 else None)
        made = self._make(many)
        self._ready.extend(() if made is None else made.each() if isinstance(made, Block) else made)
        return bool(self._ready)

    def _block(self, n: int) -> Block | list[Sample | Label] | None:
        self._settled()
        self._forget_rows()
        return self._make(n)

    def _settled(self) -> RowEncoder:
        """The encoder as of the last sample that was handed out."""
        if self._ready:
            self._row, self._skipped, known = self._before
            self._encoder.load(known)
            self._at = 0
            self._ready.clear()
            while self._given:
                made = self._make(self._given)
                self._given -= made.count if isinstance(made, Block) else len(made or ())
        return self._encoder

    def _forget_rows(self) -> None:
        """Let go of the rows that have become samples."""
        del self._waiting[: self._at]
        self._at = 0

    def _make(self, n: int) -> Block | list[Sample | Label] | None:
        """The next samples, at most `n`, counted in; `None` at the end. An error comes after those before it."""
        pieces: list[Entries] = []
        missing = n
        while missing:
            try:
                if not self._look_ahead(missing):
                    break
                taken, piece = self._encoder.take(self._waiting[self._at : self._at + missing])
            except BaseException as error:
                if not pieces:
                    raise
                # A bad row stays, and raises again: a table does not continue behind it.
                if not isinstance(error, SampleError):
                    self._failed = error
                break
            self._at, self._row = self._at + taken, self._row + taken
            made = 0 if piece is None else len(piece.known)
            self._skipped, missing = self._skipped + taken - made, missing - made
            pieces += [] if piece is None else [piece]
        return self._encoder.together(pieces) if pieces else None

    def _look_ahead(self, n: int) -> bool:
        """Have the next `n` rows wait, or all that are left; whether there is one."""
        if self._rows is None:
            self._open()
        wanted = n - len(self._waiting) + self._at
        if wanted > 0 and self._failed is None:
            rows, self._failed = read_some(self._rows, wanted)  # type: ignore[arg-type]
            self._waiting += rows
        if self._at == len(self._waiting) and self._failed is not None:
            error, self._failed = self._failed, None
            raise error
        return self._at < len(self._waiting)

    def _open(self) -> None:
        """Open the rows from the place of the stream on; the first of all give the unit of time."""
        self._rows = self._source.rows(self._encoder.used, self._row)
        if self._row == 0 and self._time is not None and self.unit is None:
            self._look_ahead(FIRST + 1)
            self._encoder.find_unit(self._waiting)

    def _rewind(self) -> None:
        # A unit of time that was found stays.
        self._go_to(0, 0, {**self._unread, "unit": self.unit})

    def _cursor(self) -> dict[str, Any]:
        known = self._settled().state()
        return {"row": self._row, "skipped": self._skipped, "known": known}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        self._go_to(int(cursor["row"]), int(cursor["skipped"]), cursor["known"])
        if self._row:
            self._open()

    def _config(self) -> dict[str, Any]:
        classes = self._encoder.classes
        return {
            "u": self._u,
            "target": self._encoder.target_names,
            "time": self._time,
            "ties": self._encoder.clock.ties,
            "width": len(self.numbers),
            "classes": None if classes is None else classes.count,
        }
