"""Tables as streams: batches of rows are read ahead, encoded at once, and handed out as samples or blocks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from hamlearn.errors import ConfigError, SampleError, StreamError
from hamlearn.sample import Label, Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.blocks import Block
from hamlearn.streams.cells import column_names, listed, require_columns
from hamlearn.streams.encoder import Encoded, RowEncoder, TableSettings
from hamlearn.streams.frames import source_of
from hamlearn.streams.row_source import RowBatch, TableSource
from hamlearn.streams.units import FIRST
from hamlearn.streams.values import Spec, TensorSpec

AHEAD = 1024
"""Rows of a batch at most, if they can be read again: the more at once, the less each costs."""


class TableStream(Stream):
    """Rows of a table as samples.

    The state says where the batch in hand began, what was known there, and how many of its rows were passed.
    Resuming reads those rows again, so that means, categories and classes are exact after any row.

    Attributes:
        skipped: Rows that were left out so far.
    """

    skipped = 0
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
        self._encoder = RowEncoder(settings, u)
        self._names = source.header(look=False) or self._encoder.used
        require_columns(self._names, self._encoder.used, source.name)
        self._fresh = {**self._encoder.state(), "skipped": 0}
        # Where the batch in hand began, what was known there, and how many of its rows and samples were passed.
        self._mark, self._before, self._again, self._at = source.start, self._fresh, 0, 0
        self._batch: RowBatch | None = None
        self._ready: Encoded | None = None
        self._ahead = 1

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
        self._settle()
        return [entry for column in self._encoder.columns for entry in column.entries]

    @property
    def classes(self) -> list[str] | None:
        """The classes of the target found so far, in order; `None` if it is a number."""
        self._settle()
        return None if self._encoder.classes is None else self._encoder.classes.places.names

    @property
    def unit(self) -> float | None:
        """What counts as one unit of time; `None` as long as it has not been found."""
        return self._encoder.clock.unit

    @property
    def replayable(self) -> bool:
        """Whether a pass can begin at the beginning; not if the rows come from an iterator."""
        return not self._source.once

    def encode(self, row: Any) -> Tensor:
        """The input that the stream would make of a row, or of each row of a frame; `Stream.encode` says more."""
        self._settle()
        if isinstance(row, Mapping):
            cells: dict[Any, Any] = {name: [cell] for name, cell in row.items()}
            count = 1
        else:
            frame = source_of(row)
            names = frame.header() or []
            batch = frame.read(names, sys.maxsize)
            cells, count = dict(zip(names, batch.cells, strict=False)), batch.count
        unknown = [name for name in cells if name not in {*self._names, *self._encoder.used}]
        if unknown:
            raise SampleError(
                f"the row has {listed(unknown)}, which the table does not have. Its columns are "
                f"{listed(self._names)}. Leave out what is not among them."
            )
        u = self._encoder.look([cells.get(name, [None] * count) for name in self._u], count)
        return u[0] if isinstance(row, Mapping) else u

    def block(self, n: int) -> Block | list[Sample | Label] | None:
        """The next samples and labels, at most `n`; `None` at the end."""
        if self._turn == 0 or self._resumed:
            self._begin()
        return self._take(n)

    def _samples(self) -> Iterator[Any]:
        while (events := self._take(1)) is not None:
            yield events.sample(0) if isinstance(events, Block) else events[0]

    def _take(self, n: int) -> Block | list[Sample | Label] | None:
        while self._ready is None or self._at == len(self._ready.rows):
            if self._ready is not None and self._ready.error is not None:
                # It stays: a table does not go on behind a bad row.
                raise self._ready.error
            if not self._fill(n):
                return None
        start, self._at = self._at, min(self._at + n, len(self._ready.rows))
        self._pass_rows(self._ready.rows[self._at - 1] + 1)
        events = self._ready.events
        return events.part(start, self._at) if isinstance(events, Block) else events[start : self._at]

    def _pass_rows(self, rows: int) -> None:
        """Note that so many rows of the batch were handed out or left out."""
        self._again, self.skipped = rows, self._before["skipped"] + rows - self._at

    def _fill(self, n: int) -> bool:
        """Read and encode the next batch; `False` at the end of the table."""
        if self._batch is not None and self._ready is not None:
            # Rows at the end of the batch before may have been left out.
            self._pass_rows(self._batch.count)
        if self._time is not None and self.unit is None:
            self._encoder.find_unit(self._source.first(self._encoder.used, FIRST + 1))
        mark = self._source.mark()
        batch = self._source.read(self._encoder.used, max(n, self._ahead) if self.replayable else n)
        if batch.count == 0:
            return False
        self._mark, self._before = mark, {**self._encoder.state(), "skipped": self.skipped}
        self._batch, self._again, self._at = batch, 0, 0
        self._ready = self._encoder.encode(batch)
        self._ahead = min(AHEAD, 2 * batch.count)
        return True

    def _rewind(self) -> None:
        # A unit of time that was found stays.
        self._go_to(self._source.start, {**self._fresh, "unit": self.unit})

    def _go_to(self, mark: Any, known: dict[str, Any]) -> None:
        self._source.seek(mark)
        self._encoder.load(known)
        self._mark, self._before, self._again, self._at = mark, known, 0, 0
        self._batch = self._ready = None
        self._ahead, self.skipped = 1, int(known["skipped"])

    def _cursor(self) -> dict[str, Any]:
        return {"mark": self._mark, "again": self._again, "before": self._before}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        if not self.replayable and cursor == self._cursor():
            return
        self._go_to(cursor["mark"], dict(cursor["before"]))
        again = int(cursor["again"])
        batch = self._source.read(self._encoder.used, again)
        if batch.count < again:
            raise StreamError(
                f"{self._source.name} has fewer rows than were read of it before. Give it the data that it was "
                "saved with."
            )
        if again:
            self._batch, self._at = batch, len(self._encoder.encode(batch).rows)
            self._pass_rows(again)

    def _settle(self) -> None:
        """Let what is known be that of the rows handed out, rather than of the batch that was read ahead."""
        if self._batch is not None and self._again < self._batch.count and self.replayable:
            self._seek(self._cursor())

    def _config(self) -> dict[str, Any]:
        classes = self._encoder.classes
        return {
            "u": self._u,
            "target": self._encoder.target_names,
            "time": self._time,
            "ties": self._encoder.clock.ties,
            "width": len(self.numbers),
            "classes": None if classes is None else classes.places.count,
        }
