"""Streams over CSV files: read line by line, resumed at a byte."""

from __future__ import annotations

import csv as _csv
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch

from hamlearn.errors import ConfigError, SampleError
from hamlearn.state import Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.cells import Lines, is_missing, number
from hamlearn.streams.timed import Clock
from hamlearn.streams.units import FIRST, Unit, unit_or_auto
from hamlearn.streams.values import Spec, TensorSpec


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
    encoding: str = "utf-8",
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
        encoding: Of the file.
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
    if missing not in ("raise", "skip", "hold") and not isinstance(missing, int | float):
        raise ConfigError(f'missing={missing!r} is not known. Give "raise", "skip", "hold" or a number.')
    if bad not in ("raise", "skip"):
        raise ConfigError(f'bad={bad!r} is not known. Give "raise" or "skip".')
    if classes is not None and not isinstance(target, str):
        raise ConfigError(f"classes={list(classes)!r} needs one target column, not {target!r}.")
    if not Path(path).is_file():
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
        encoding: str,
        dtype: torch.dtype | None,
    ) -> None:
        self._path = path
        self._u, self._target, self._time = u, target, time
        self._classes = None if classes is None else {name: i for i, name in enumerate(classes)}
        self._missing, self._bad = missing, bad
        self._time_format = time_format
        self._clock = Clock(unit, None)
        self._delimiter, self._encoding = delimiter, encoding
        self._dtype = dtype or torch.get_default_dtype()
        with path.open("rb") as file:
            self._header = next(self._rows(Lines(file, encoding)), [])
            self._start = file.tell()
        for name in (*u, *target, *([] if time is None else [time])):
            if name not in self._header:
                raise ConfigError(
                    f"{path.name} has no column {name!r}. Its columns are {', '.join(self._header)}."
                )
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
        self._offset, self._line, self.skipped = self._start, 1, 0
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
            rows = islice(self._rows(Lines(file, self._encoding)), FIRST + 1)
            try:
                for row in rows:
                    if len(row) == len(self._header):
                        yield self._stamp(row[column].strip(), "")
            except (SampleError, _csv.Error, UnicodeDecodeError):
                # The row is named when its turn comes; the unit is found from those before it.
                return

    def _samples(self) -> Iterator[Sample]:
        if self._time is not None:
            self._clock.find(self._first_stamps())
        with self._path.open("rb") as file:
            file.seek(self._offset)
            lines = Lines(file, self._encoding, self._line)
            rows = self._rows(lines)
            while True:
                where = f"{self._path.name}, line {lines.line + 1}"
                sample, ended = None, False
                try:
                    row = next(rows, None)
                    ended = row is None
                    if row:
                        sample = self._sample(row, where)
                except (SampleError, _csv.Error, UnicodeDecodeError) as error:
                    if self._bad == "raise":
                        if isinstance(error, SampleError):
                            raise
                        raise SampleError(
                            f'{where} cannot be read: {error}. Mend it, or use bad="skip".'
                        ) from error
                    self.skipped += 1
                self._offset, self._line = file.tell(), lines.line
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
            value = number(row[self._index[name]], name, where)
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
                f"{where}: column {self._target[0]!r} holds {text!r}, which is none of the classes "
                f'{", ".join(self._classes)}. Add it to classes, or leave such rows out with bad="skip".'
            )
        values = [number(row[self._index[name]], name, where) for name in self._target]
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
        except ValueError as error:
            raise SampleError(
                f"{where}: column {self._time!r} holds {text!r}, which does not follow {self._time_format!r}."
            ) from error
