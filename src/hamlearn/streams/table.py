"""Tables as streams: batches of rows are read ahead, encoded at once, and handed out as samples or blocks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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

    The state says at which row the batch in hand begins, what was known there, and how many of its rows were
    passed. Resuming encodes those rows again, so that means, categories and classes are exact after any row.

    Attributes:
        skipped: Rows that were left out so far.
    """

    skipped = 0
    _needs_inputs = True
    # The batch in hand, what was made of it, where it begins, what was known there, and how many of its rows and
    # of its samples were handed out.
    _batch: RowBatch | None = None
    _ready: Encoded | None = None
    _before: dict[str, Any]
    _row = _passed = _at = 0
    _ahead = 1

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
        self._unread = {**self._encoder.state(), "skipped": 0}
        self._take_up(0, self._unread)

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
        with self._handed_out() as encoder:
            return [entry for column in encoder.columns for entry in column.entries]

    @property
    def classes(self) -> list[str] | None:
        """The classes of the target found so far, in order; `None` if it is a number."""
        with self._handed_out() as encoder:
            return None if encoder.classes is None else encoder.classes.places.names

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
        with self._handed_out() as encoder:
            u = encoder.look([cells.get(name, [None] * count) for name in self._u], count)
        return u[0] if isinstance(row, Mapping) else u

    def _block(self, n: int) -> Block | list[Sample | Label] | None:
        while (ready := self._encoded(n)) is not None and self._at == len(ready.rows):
            if ready.error is not None:
                # It stays: a table does not go on behind a bad row.
                raise ready.error
            self._finish(ready)
        if ready is None:
            return None
        start, self._at = self._at, min(self._at + n, len(ready.rows))
        events = ready.events
        part = events.part(start, self._at) if isinstance(events, Block) else events[start : self._at]
        self._passed = ready.rows[self._at - 1] + 1
        self.skipped = self._before["skipped"] + self._passed - self._at
        if self._at == len(ready.rows) and ready.error is None:
            self._finish(ready)
        return part

    def _encoded(self, n: int) -> Encoded | None:
        """The batch in hand as samples, or the next one; `None` at the end of the table."""
        if self._batch is None:
            if self._time is not None and self.unit is None:
                self._encoder.find_unit(self._source.first(self._encoder.used, FIRST + 1))
                self._before = {**self._before, **self._encoder.clock.state()}
            batch = self._source.read(self._encoder.used, max(n, self._ahead) if self.replayable else n)
            if batch.count == 0:
                return None
            self._batch, self._ahead = batch, min(AHEAD, 2 * batch.count)
            self._ready = self._encoder.encode(batch)
        return self._ready

    def _finish(self, ready: Encoded) -> None:
        """Pass the batch in hand, and the rows at its end that were left out."""
        assert self._batch is not None
        skipped = self._before["skipped"] + self._batch.count - len(ready.rows)
        self._take_up(self._row + self._batch.count, {**self._encoder.state(), "skipped": skipped})

    def _take_up(self, row: int, known: dict[str, Any]) -> None:
        """Go on at this row, where so much is known."""
        self._row, self._before, self.skipped = row, known, int(known["skipped"])
        self._batch, self._ready = None, None
        self._passed = self._at = 0

    @contextmanager
    def _handed_out(self) -> Iterator[RowEncoder]:
        """The encoder as it was after the rows that were handed out, without those that were encoded ahead."""
        encoder, ahead = self._encoder, None
        if self._batch is not None and self._ready is not None:
            ahead = encoder.state()
            encoder.load(self._before)
            encoder.encode(self._batch.part(0, self._passed))
        try:
            yield encoder
        finally:
            if ahead is not None:
                encoder.load(ahead)

    def _rewind(self) -> None:
        # A unit of time that was found stays.
        self._go_to(0, {**self._unread, "unit": self.unit})

    def _go_to(self, row: int, known: dict[str, Any]) -> None:
        self._source.seek(row)
        if self._source.at < row:
            raise self._shorter()
        self._encoder.load(known)
        self._ahead = 1
        self._take_up(row, known)

    def _shorter(self) -> StreamError:
        return StreamError(
            f"{self._source.name} has fewer rows than were read of it before. Give it the data that it was saved "
            "with."
        )

    def _cursor(self) -> dict[str, Any]:
        return {"row": self._row, "passed": self._passed, "before": self._before}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        self._go_to(int(cursor["row"]), dict(cursor["before"]))
        passed = int(cursor["passed"])
        if passed:
            self._batch = self._source.read(self._encoder.used, passed)
            if self._batch.count < passed:
                raise self._shorter()
            self._finish(self._encoder.encode(self._batch))

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
