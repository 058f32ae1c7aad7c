"""Streams over CSV files: read line by line, resumed at a byte."""

from __future__ import annotations

import csv as _csv
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch

from hamlearn.errors import ConfigError, SampleError, StreamError
from hamlearn.state import Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.cells import is_missing, number, require_columns
from hamlearn.streams.lines import LineError, Lines, detect
from hamlearn.streams.timed import Clock
from hamlearn.streams.units import FIRST, Unit, unit_or_auto
from hamlearn.streams.values import Spec, TensorSpec, shown


def csv(
    path: str | os.PathLike[str],
    u: Sequence[str],
    target: str | Sequence[str] | None = None,
    time: str | None = None,
    classes: Sequence[str] | None = None,
    missing: Literal["raise", "skip", "hold"] | float = "raise",
    bad: Literal["raise", "skip"] = "raise",
    time_format: str | None = None,
    unit: Unit = "auto",
    delimiter: str = ",",
    encoding: str | None = None,
    dtype: torch.dtype | None = None,
) -> Stream:
    r"""A stream over the rows of a CSV file whose first line names the columns.

    Args:
        path: The file.
        u: The input columns, numbers; the input is a vector of them.
        target: The target column (a number: a vector of one; with `classes`: the index of the class), or
            several, a vector. A missing cell in it makes the sample one without target.
        time: The column of time stamps: numbers, or datetimes in ISO format or in `time_format`. Each
            sample then carries the true time since the last one that was yielded.
        classes: Names of the classes of the target column, in order.
        missing: What a missing input cell (empty, NA, NaN, null, none, ?) gets: `"raise"` an error, `"skip"`
            the row, `"hold"` the column's last value (rows before the first value are skipped), or a number.
        bad: What a bad row gets (a cell that is no number, an unknown class, too few or too many cells, time
            that does not move forward): `"raise"` an error that names the line, or `"skip"` it.
        time_format: As in `datetime.strptime`.
        unit: What counts as one unit of time: a number (of seconds, for datetimes) or a `timedelta`. `"auto"`: the
            median of the first 32 gaps, which is logged, and kept with the stream's state.
        delimiter: Between cells.
        encoding: Of the file; `None` is what its byte-order mark says, and UTF-8 where it has none.
        dtype: Of inputs and numeric targets; `None` is torch's default.

    The stream counts what it left out in `skipped`, and holds one row at a time.

    Example:
        >>> import tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "flow.csv"
        >>> _ = file.write_text("t,flow,next\n0,1.5,2\n1,2.0,\n4,2.5,3\n")
        >>> [(s.u.item(), s.target, s.tau) for s in csv(file, u=["flow"], target="next", time="t", unit=1.0)]
        [(1.5, tensor([2.]), None), (2.0, None, 1.0), (2.5, tensor([3.]), 3.0)]
    """
    if isinstance(u, str):
        u = [u]
    if not u:
        raise ConfigError("u=[] names no input column. Name one or more.")
    _require_settings(missing, bad, classes, target, delimiter, time_format)
    try:
        found = Path(path).is_file()
    except OSError:
        # A name that no file can have.
        found = False
    if not found:
        raise ConfigError(f"there is no file {os.fspath(path)!r}. Give the path of a CSV file.")
    targets = [] if target is None else [target] if isinstance(target, str) else list(target)
    return CsvStream(
        Path(path),
        list(u),
        targets,
        time,
        classes,
        missing,
        bad,
        time_format,
        unit_or_auto(unit),
        delimiter,
        encoding,
        dtype,
    )


def _require_settings(
    missing: Any, bad: Any, classes: Any, target: Any, delimiter: Any, time_format: str | None
) -> None:
    number = isinstance(missing, int | float) and not isinstance(missing, bool) and abs(missing) < math.inf
    if not number and missing not in ("raise", "skip", "hold"):
        raise ConfigError(f'missing={missing!r} is not known. Give "raise", "skip", "hold" or a finite number.')
    if bad not in ("raise", "skip"):
        raise ConfigError(f'bad={bad!r} is not known. Give "raise" or "skip".')
    if classes is not None and not isinstance(target, str):
        raise ConfigError(f"classes={list(classes)!r} needs one target column, not {target!r}.")
    if classes is not None and (not classes or len(set(classes)) < len(classes)):
        raise ConfigError(f"classes={list(classes)!r} must name one class or more, each once.")
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


class CsvStream(Stream):
    """What `csv` returns. `skipped` counts the rows that were left out."""

    def __init__(
        self,
        path: Path,
        u: list[str],
        target: list[str],
        time: str | None,
        classes: Sequence[str] | None,
        missing: str | float,
        bad: str,
        time_format: str | None,
        unit: float | None,
        delimiter: str,
        encoding: str | None,
        dtype: torch.dtype | None,
    ) -> None:
        self._path = path
        self._u, self._target, self._time = u, target, time
        self._classes = None if classes is None else {name: i for i, name in enumerate(classes)}
        self._missing, self._bad = missing, bad
        self._time_format = time_format
        self._clock = Clock(unit, None)
        self._delimiter = delimiter
        self._dtype = dtype or torch.get_default_dtype()
        self._largest = torch.finfo(self._dtype).max if self._dtype.is_floating_point else math.inf
        self._header, self._encoding, self._start, self._first = self._read_header(encoding)
        require_columns(self._header, (*u, *target, *([] if time is None else [time])), path.name)
        self._index = {name: i for i, name in enumerate(self._header)}
        self._rewind()

    @property
    def spec(self) -> Spec:
        """Vectors of the columns; the length would cost a pass over the file, so it is not known."""
        target = None
        if self._classes is not None:
            target = TensorSpec((), torch.int64)
        elif self._target:
            target = TensorSpec((len(self._target),), self._dtype)
        return Spec(TensorSpec((len(self._u),), self._dtype), target, None)

    def _config(self) -> dict[str, Any]:
        return {"u": self._u, "target": self._target, "time": self._time, "columns": self._header}

    def _rewind(self) -> None:
        self._offset, self._line, self.skipped = self._start, self._first, 0
        self._clock.last = None
        self._held: list[float | None] = [None] * len(self._u)

    def _cursor(self) -> dict[str, Any]:
        return {
            "offset": self._offset,
            "line": self._line,
            "skipped": self.skipped,
            **self._clock.state(),
            "held": list(self._held),
        }

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        self._offset, self._line = int(cursor["offset"]), int(cursor["line"])
        self.skipped = int(cursor["skipped"])
        self._clock.load_state(cursor)
        self._held = list(cursor["held"])

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
            raise ConfigError(f"{self._path.name}, line {lines.line} cannot be read: {error}.") from error
        if not header:
            raise ConfigError(f"{self._path.name}, line 1 is empty. Name the columns in the first line.")
        return header, encoding, lines.offset, lines.line

    def _rows(self, lines: Iterator[str]) -> Iterator[list[str]]:
        return _csv.reader(lines, delimiter=self._delimiter, strict=True)

    @property
    def unit(self) -> float | None:
        """What counts as one unit of time; `None` as long as it has not been found."""
        return self._clock.unit

    def _first_stamps(self) -> Iterator[Any]:
        """Time stamps of the first rows, as far as they can be read."""
        assert self._time is not None
        column = self._index[self._time]
        with self._path.open("rb") as file:
            file.seek(self._start)
            rows = islice(self._rows(Lines(file, self._encoding, self._start)), FIRST + 1)
            try:
                for row in rows:
                    if len(row) == len(self._header):
                        yield self._stamp(row[column].strip(), "")
            except (SampleError, _csv.Error, LineError):
                # The row is named when its turn comes; the unit is found from those before it.
                return

    def _samples(self) -> Iterator[Sample]:
        if self._time is not None:
            self._clock.find(self._first_stamps())
        with self._path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self._offset:
                raise StreamError(
                    f"{self._path.name} has fewer than the {self._offset} bytes that were read of it before: rows "
                    "are missing. Give it the file that it was saved with."
                )
            file.seek(self._offset)
            lines = Lines(file, self._encoding, self._offset, self._line)
            rows = self._rows(lines)
            while True:
                where = f"{self._path.name}, line {lines.line + 1}"
                sample, ended = None, False
                try:
                    row = next(rows, None)
                    ended = row is None
                    if row:
                        sample = self._sample(row, where)
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

    def _sample(self, row: list[str], where: str) -> Sample | None:
        if len(row) != len(self._header):
            raise SampleError(
                f"{where} has {len(row)} cells, but the header names {len(self._header)} columns. "
                'Mend the row, or leave such rows out with bad="skip".'
            )
        u, held = [], list(self._held)
        for i, name in enumerate(self._u):
            value = number(row[self._index[name]], name, where, self._largest)
            if value is None:
                value = self._fill(i, name, where)
            if value is None:
                self.skipped += 1
                self._held = held
                return None
            held[i] = value
            u.append(value)
        target = self._read_target(row, where)
        tau = None
        if self._time is not None:
            tau = self._tau(row[self._index[self._time]].strip(), where)
        self._held = held
        return Sample(torch.tensor(u, dtype=self._dtype), target, tau)

    def _fill(self, i: int, name: str, where: str) -> float | None:
        if self._missing == "raise":
            raise SampleError(
                f'{where}: column {name!r} is missing. Mend the cell, or use missing="skip", "hold" or a number.'
            )
        if self._missing == "hold":
            return self._held[i]
        return None if self._missing == "skip" else float(self._missing)

    def _read_target(self, row: list[str], where: str) -> torch.Tensor | None:
        if not self._target:
            return None
        if self._classes is not None:
            text = row[self._index[self._target[0]]].strip()
            if text in self._classes:
                return torch.tensor(self._classes[text])
            if is_missing(text):
                return None
            raise SampleError(
                f"{where}: column {self._target[0]!r} holds {shown(text)}, which is none of the classes "
                f'{shown(list(self._classes))}. Add it to classes, or leave such rows out with bad="skip".'
            )
        values = [number(row[self._index[name]], name, where, self._largest) for name in self._target]
        if None in values:
            return None
        return torch.tensor(values, dtype=self._dtype)

    def _tau(self, text: str, where: str) -> float | None:
        return self._clock.advance(self._stamp(text, where), where, skip=False, option="bad")[0]

    def _stamp(self, text: str, where: str) -> Any:
        if self._time_format is None:
            return text
        try:
            return datetime.strptime(text, self._time_format)
        except (ValueError, OverflowError) as error:
            raise SampleError(
                f"{where}: column {self._time!r} holds {shown(text)}, which does not follow {self._time_format!r}."
            ) from error
