"""Batches of rows as vectors, targets, time steps and labels: what a table has learned from its rows so far."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import numpy as np
import torch

from hamlearn.errors import ConfigError, SampleError
from hamlearn.sample import Label, Sample
from hamlearn.streams.blocks import Block
from hamlearn.streams.clock import Clock, seconds_of
from hamlearn.streams.columns import Categories, Cells, Missing, declare
from hamlearn.streams.fields import Mask, is_missing
from hamlearn.streams.moments import Array
from hamlearn.streams.row_source import RowBatch
from hamlearn.streams.targets import Targets
from hamlearn.streams.units import Unit, unit_or_auto
from hamlearn.streams.values import shown


@dataclass(frozen=True)
class TableSettings:
    """What the columns of a table are; `hamlearn.streams.csv` describes each."""

    u: str | Sequence[str] | None = None
    target: str | Sequence[str] | None = None
    time: str | None = None
    classes: Sequence[Any] | int | None = None
    missing: Missing = "raise"
    bad: Literal["raise", "skip"] = "raise"
    time_format: str | None = None
    unit: Unit = "auto"
    dtype: torch.dtype | None = None
    categories: Categories | None = None
    hashed: Mapping[str, int] | None = None
    id: str | None = None
    ties: float | None = None


@dataclass(slots=True)
class Encoded:
    """What was made of a batch.

    Attributes:
        events: Samples and labels.
        rows: The row that each came from.
        error: What is wrong with the row after them, which is not left out.
    """

    events: Block | list[Sample | Label]
    rows: list[int]
    error: SampleError | None = None


@dataclass(slots=True)
class _Reading:
    """A batch as it is looked at: the cells of each kind of column, and what is known of the rows.

    Attributes:
        inputs: Of the input columns.
        targets: Of the target columns.
        stamps: Seconds; `None` without a time column.
        ids: `None` without a column of ids.
        labels: Rows that are labels of earlier samples.
        bad: Rows that are bad, or turn out to be.
        taken: Rows that become samples.
        taus: Their time steps.
    """

    inputs: list[Cells]
    targets: Cells
    stamps: Array | None
    ids: list[Any] | None
    labels: Mask
    bad: Mask
    taken: Mask
    taus: Array | None = None


class RowEncoder:
    """Rows of a table as samples, with what is known of the rows before: means, names, classes, the last time.

    Args:
        settings: What the columns are.
        u: The input columns.
    """

    def __init__(self, settings: TableSettings, u: Sequence[Any]) -> None:
        if settings.bad not in ("raise", "skip"):
            raise ConfigError(f'bad={settings.bad!r} is not known. Give "raise" or "skip".')
        self._bad, self._time, self._id, self._format = (
            settings.bad,
            settings.time,
            settings.id,
            settings.time_format,
        )
        self.dtype = settings.dtype or torch.get_default_dtype()
        largest = torch.finfo(self.dtype).max if self.dtype.is_floating_point else math.inf
        self.columns = declare(u, settings.categories, settings.hashed, settings.missing, largest)
        self.targets = Targets(column_names(settings.target), settings.classes, self.dtype, largest)
        self.clock = Clock(unit_or_auto(settings.unit), None, settings.ties)
        if self._id is not None and not self.targets.names:
            raise ConfigError(
                f"id={self._id!r} says which sample a label belongs to, and there is no target: name it."
            )
        # The cells of a batch are in this order.
        self.used = [*u, *self.targets.names, *column_names(self._id), *column_names(self._time)]

    @property
    def leaves_out(self) -> bool:
        """Whether rows may be left out."""
        return self._bad == "skip" or any(column.missing in ("skip", "hold") for column in self.columns)

    def encode(self, batch: RowBatch) -> Encoded:
        """Samples and labels of the rows, which are counted in, up to the first bad row that is not left out."""
        reading = self._read(batch)
        self._decide(reading)
        refused = np.flatnonzero(reading.bad)
        stop = int(refused[0]) if refused.size and self._bad == "raise" else batch.count
        reading.taken[stop:] = reading.labels[stop:] = False
        made = self._enter(reading, batch)
        usable = ~reading.bad & ~reading.labels & (np.arange(batch.count) < stop)
        for column, cells in zip(self.columns, reading.inputs, strict=True):
            if column.missing == "hold":
                column.hold(cells, usable)
        if reading.stamps is not None:
            self.clock.commit(reading.stamps[reading.taken])
        if stop < batch.count:
            made.error = self._explain(batch, stop)
        return made

    def _read(self, batch: RowBatch) -> _Reading:
        """The cells, and rows that are bad whatever came before them; rows that are left out are not."""
        width, ends = len(self.columns), len(self.columns) + len(self.targets.names)
        inputs = [column.read(cells) for column, cells in zip(self.columns, batch.cells, strict=False)]
        targets = self.targets.read(batch.cells[width:ends], batch.count)
        ids = None if self._id is None else [_id_of(cell) for cell in batch.cells[ends]]
        stamps = None if self._time is None else seconds_of(self.stamps(batch.cells[-1]))
        labels, bad, left_out = (np.zeros(batch.count, dtype=bool) for _ in range(3))
        if ids is not None:
            # A row with an id, a target and no inputs is a label; it needs no time.
            labels = np.array([id is not None for id in ids]) & ~targets.gaps
            labels &= np.logical_and.reduce([cells.gaps for cells in inputs])
            bad |= np.array([id is _NO_ID for id in ids])
        bad |= targets.bad
        for column, cells in zip(self.columns, inputs, strict=True):
            bad |= cells.bad
            if column.missing in ("raise", "skip"):
                (bad if column.missing == "raise" else left_out)[cells.gaps & ~labels] = True
        if stamps is not None:
            bad |= np.isnan(stamps) & ~labels
        bad &= ~left_out
        bad[list(batch.broken)] = True
        return _Reading(inputs, targets, stamps, ids, labels, bad, ~bad)

    def _decide(self, reading: _Reading) -> None:
        """Find the rows that become samples; hold values, and complete what is bad.

        Whether there is room for a category, whether time moves forward and which value is held depend on the rows
        before, and on each other. What is found is right up to the first row that has to be refused; the rest is
        then looked at again without it.
        """
        alone, late = reading.bad, np.zeros_like(reading.bad)
        raw, labels = reading.inputs, reading.labels
        while True:
            reading.bad, taken = alone | late, ~alone & ~labels
            usable = ~reading.bad & ~labels
            reading.inputs = [
                column.fill(cells, usable) if column.missing == "hold" else cells
                for column, cells in zip(self.columns, raw, strict=True)
            ]
            for column, cells in zip(self.columns, reading.inputs, strict=True):
                if column.missing in ("skip", "hold"):
                    taken &= ~cells.gaps
            if reading.stamps is not None:
                reading.taus, now = self.clock.steps(reading.stamps, taken)
                if (now != late).any():
                    late = now
                    continue
                taken &= ~late
            events = taken | (labels & ~reading.bad)
            full = [column.full(cells, taken) for column, cells in zip(self.columns, reading.inputs, strict=True)]
            full.append(self.targets.full(reading.targets, events))
            reading.taken, reading.labels = taken, labels & ~reading.bad
            first, rows = min(((_first(rows & events), rows) for rows in full), key=lambda found: found[0])
            if first == len(events):
                return
            # From here on this column is full, and stays so.
            alone = alone | (rows & (np.arange(len(rows)) >= first))

    def _enter(self, reading: _Reading, batch: RowBatch) -> Encoded:
        """Samples and labels, which are counted in."""
        rows, events = np.flatnonzero(reading.taken), np.flatnonzero(reading.taken | reading.labels)
        parts = [column.enter(cells, rows) for column, cells in zip(self.columns, reading.inputs, strict=True)]
        u = torch.from_numpy(np.concatenate([np.empty((len(rows), 0)), *parts], 1)).to(self.dtype)
        target, known = self.targets.enter(reading.targets, events)
        self.targets.warn(batch, len(self.columns), events[~known])
        taus = None
        if reading.taus is not None and np.isfinite(reading.taus[rows]).any():
            taus = [None if tau != tau else tau for tau in reading.taus[rows].tolist()]
        if reading.ids is None:
            has = None if known.all() or not known.any() else known.tolist()
            return Encoded(
                Block(len(rows), [u], None, [target] if known.any() else [], None, has, taus), rows.tolist()
            )
        made: list[Sample | Label] = []
        for k, row in enumerate(events.tolist()):
            id, at = reading.ids[row], int(np.searchsorted(rows, row))
            if reading.labels[row]:
                made.append(Label(id, target[k]))
            elif known[k]:
                made.append(Sample(u[at], target[k], None if taus is None else taus[at]))
            else:
                made.append(Sample(u[at], None, None if taus is None else taus[at], id=id))
        return Encoded(made, events.tolist())

    def _explain(self, batch: RowBatch, row: int) -> SampleError:
        """The error of a row that is bad, after those before it were counted in."""
        where, cells = batch.where(row), [column[row] for column in batch.cells]
        width, ends = len(self.columns), len(self.columns) + len(self.targets.names)
        try:
            if row in batch.broken:
                raise SampleError(f'{where} {batch.broken[row]}, or leave such rows out with bad="skip".')
            if self._id is not None and _id_of(cells[ends]) is _NO_ID:
                what = shown(cells[ends])
                raise SampleError(f"{where}: column {self._id!r} holds {what}, neither a text nor a whole number.")
            for column, cell in zip(self.columns, cells, strict=False):
                column.check(cell, where)
            self.targets.check(cells[width:ends], where)
            if self._time is not None:
                self.clock.advance(self._stamp(cells[-1], where), where, skip=False, option="bad")
        except SampleError as error:
            return error
        raise AssertionError(f"{where} was refused without a reason")

    def look(self, cells: Sequence[Sequence[Any]], count: int) -> torch.Tensor:
        """The vectors of rows, each as if it came next; nothing changes.

        Raises:
            SampleError: A cell cannot be in its column, or its row would be left out.
        """
        parts = [np.empty((count, 0))]
        for column, mine in zip(self.columns, cells, strict=True):
            read = column.read(mine)
            if column.missing == "hold":
                read = column.fill(read, np.zeros(count, dtype=bool))
            for row in range(count):
                where = "the row" if count == 1 else f"row {row} of the frame"
                column.check(mine[row], where)
                if read.gaps[row] and column.missing in ("skip", "hold"):
                    why = "leaves such rows out" if column.missing == "skip" else "has no value to hold yet"
                    raise SampleError(
                        f"{where}: column {column.name!r} is missing, and missing={column.missing!r} {why}, so "
                        "that there is no input. Give it a value."
                    )
            parts.append(column.enter(read, slice(None), learn=False))
        return torch.from_numpy(np.concatenate(parts, 1)).to(self.dtype)

    def stamps(self, cells: Sequence[Any]) -> list[Any]:
        """Time stamps, read by `time_format`; `None` for one that does not follow it."""
        return list(cells) if self._format is None else [self._stamp(cell) for cell in cells]

    def _stamp(self, cell: Any, where: str | None = None) -> Any:
        text = cell.strip() if isinstance(cell, str) else cell
        if self._format is None or not isinstance(text, str):
            return text
        try:
            return datetime.strptime(text, self._format)
        except (ValueError, OverflowError, re.error) as error:
            if where is None:
                return None
            raise SampleError(
                f"{where}: column {self._time!r} holds {shown(text)}, which does not follow {self._format!r}: "
                f"{error}."
            ) from error

    def state(self) -> dict[str, Any]:
        """What was learned from the rows so far, as JSON."""
        columns = [column.state() for column in self.columns]
        return {"columns": columns, "classes": self.targets.state(), **self.clock.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Set what `state` returned."""
        for column, mine in zip(self.columns, state["columns"], strict=True):
            column.load(mine)
        self.targets.load(state["classes"])
        self.clock.load_state(state)


_NO_ID: Any = object()
"""Instead of an id, if a cell cannot be one."""


def _id_of(cell: Any) -> Any:
    """What a sample is called; `None` if it has no name."""
    if is_missing(cell):
        return None
    if isinstance(cell, np.integer):
        return int(cell)
    if isinstance(cell, bool) or not isinstance(cell, str | int):
        return _NO_ID
    return cell.strip() if isinstance(cell, str) else cell


def _first(rows: Mask) -> int:
    """The first of the rows that is set; their number if none is."""
    return int(rows.argmax()) if rows.any() else len(rows)


def column_names(names: Any) -> list[Any]:
    """None, one or several columns, as a list; pandas may call columns by whole numbers.

    Example:
        >>> column_names("x"), column_names(["x", "y"]), column_names(3)
        (['x'], ['x', 'y'], [3])
    """
    if names is None:
        return []
    return list(names) if isinstance(names, Iterable) and not isinstance(names, str) else [names]
