"""Batches of rows as vectors, targets, time steps and labels: what a table has learned from its rows so far."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import numpy as np
import torch

from hamlearn.errors import ConfigError, SampleError
from hamlearn.sample import Label, Sample
from hamlearn.streams.blocks import Block
from hamlearn.streams.cells import Mask, column_names, is_missing, name_of
from hamlearn.streams.clock import Clock, seconds_of
from hamlearn.streams.columns import OR_SKIP, Categories, Classes, Column, Missing, declare, declare_targets
from hamlearn.streams.moments import Array
from hamlearn.streams.row_source import RowBatch
from hamlearn.streams.units import Unit, logger
from hamlearn.streams.values import TensorSpec, shown


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
class _Rows:
    """Accepted rows: those that are events, and the entries of those that are samples.

    Attributes:
        events: Indices of the rows that are samples or labels.
        labels: Which of the events are labels of earlier samples.
        u: Inputs of the samples.
        taus: Their time steps; NaN for the first of all, and without a time column.
        target: Targets of the events.
        known: Which events have one.
    """

    events: Any
    labels: Mask
    u: Array
    taus: Array
    target: Array
    known: Mask


class _BadRowsError(Exception):
    """Some of the rows cannot be encoded together: they are looked at in smaller parts."""


class RowEncoder:
    """Rows of a table as samples, with what is known of the rows before: means, names, classes, the last time.

    A batch is encoded at once. If a row is refused (or is out of room for its category), the batch is halved until
    that row stands alone, so that an error is explained for one row, and all others stay fast.

    Args:
        settings: What the columns are.
        u: The input columns.
    """

    def __init__(self, settings: TableSettings, u: Sequence[Any]) -> None:
        if settings.bad not in ("raise", "skip"):
            raise ConfigError(f'bad={settings.bad!r} is not known. Give "raise" or "skip".')
        self._skips, self._time, self._id = settings.bad == "skip", settings.time, settings.id
        self._format, self._warned = settings.time_format, False
        self.dtype = settings.dtype or torch.get_default_dtype()
        largest = torch.finfo(self.dtype).max if self.dtype.is_floating_point else math.inf
        self.columns = declare(u, settings.categories, settings.hashed, settings.missing, largest)
        self.target_names = column_names(settings.target)
        self.targets = declare_targets(self.target_names, settings.classes, largest)
        self.clock = Clock(settings.unit, settings.ties)
        if self._id is not None and not self.targets:
            raise ConfigError(
                f"id={self._id!r} says which sample a label belongs to, and there is no target: name it."
            )
        # The cells of a batch are in this order.
        self.used = [*u, *self.target_names, *column_names(self._id), *column_names(self._time)]

    @property
    def leaves_out(self) -> bool:
        """Whether rows may be left out."""
        return self._skips or any(column.missing in ("skip", "hold") for column in self.columns)

    @property
    def classes(self) -> Classes | None:
        """The target column of classes; `None` if targets are numbers."""
        return self.targets[0] if self.targets and isinstance(self.targets[0], Classes) else None

    @property
    def target_spec(self) -> TensorSpec | None:
        """What a target looks like."""
        if self.classes is not None:
            return TensorSpec((), torch.int64)
        return TensorSpec((len(self.targets),), self.dtype) if self.targets else None

    def encode(self, batch: RowBatch) -> Encoded:
        """Samples and labels of the rows, which are counted in, up to the first bad row that is not left out."""
        parts: list[_Rows] = []
        waiting, error = [(0, batch.count)], None
        while waiting and error is None:
            start, stop = waiting.pop()
            try:
                part = self._accept(batch.part(start, stop))
                part.events += start
                parts.append(part)
            except _BadRowsError:
                middle = (start + stop) // 2
                if stop - start > 1:
                    waiting += [(middle, stop), (start, middle)]
                elif not self._skips:
                    error = self._explain(batch, start)
        if not parts:
            return Encoded([], [], error)
        names = ("events", "labels", "u", "taus", "target", "known")
        whole = _Rows(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
        if self.classes is not None and not whole.known.all():
            self._warn(batch, whole.events[~whole.known])
        return Encoded(self._events(batch, whole), whole.events.tolist(), error)

    def _accept(self, batch: RowBatch) -> _Rows:
        """Encode rows and count them in; `_BadRowsError`, and nothing has changed, if that cannot be."""
        count, width = batch.count, len(self.columns)
        read = [
            column.read(cells) for column, cells in zip((*self.columns, *self.targets), batch.cells, strict=False)
        ]
        inputs, targets = read[:width], read[width:]
        ids = [_id_of(cell) for cell in batch.cells[len(read)]] if self._id is not None else [None] * count
        known = ~_any([cells.gaps for cells in targets], count) & bool(targets)
        # A row with an id, a target and no inputs is a label; it needs no time.
        named = np.array([id is not None for id in ids], dtype=bool)
        labels = np.logical_and.reduce([known, named, *(cells.gaps for cells in inputs)])

        def with_gaps(policy: str) -> Mask:
            cells_of = zip(self.columns, inputs, strict=True)
            return _any([cells.gaps for column, cells in cells_of if column.missing == policy], count) & ~labels

        left_out, bad = with_gaps("skip"), with_gaps("raise") | _any([cells.bad for cells in read], count)
        seconds = None if self._time is None else seconds_of(self._stamps(batch.cells[-1]))
        if seconds is not None:
            bad |= np.isnan(seconds) & ~labels
        bad |= np.array([id is _NO_ID for id in ids], dtype=bool)
        # A row that is left out may hold anything, but it has to be a row.
        bad &= ~left_out
        bad[list(batch.broken)] = True
        self._require(not bad.any() or self._skips)

        usable = ~bad & ~labels
        holds = any(column.missing == "hold" for column in self.columns)
        for k, column in enumerate(self.columns):
            if column.missing == "hold":
                inputs[k].gaps |= inputs[k].bad
                inputs[k] = column.fill(inputs[k], usable)
        taken, taus = usable & ~left_out & ~with_gaps("hold"), np.full(count, math.nan)
        if seconds is not None:
            index = np.flatnonzero(taken)
            taus[index], late = self.clock.steps(seconds[index])
            # What is held depends on which rows are late.
            self._require(not late.any() or (self._skips and not holds))
            taken[index[late]] = False
        labels &= ~bad
        events, rows = np.flatnonzero(taken | labels), np.flatnonzero(taken)
        entered = [(column, cells, rows) for column, cells in zip(self.columns, inputs, strict=True)]
        entered += [(column, cells, events) for column, cells in zip(self.targets, targets, strict=True)]
        self._require(all(column.has_room(cells, these) for column, cells, these in entered))

        # From here on rows are counted in.
        for column, cells, _ in entered[:width]:
            if column.missing == "hold":
                column.hold(cells, usable)
        if seconds is not None:
            self.clock.commit(seconds[rows])
        made = [column.enter(cells, these) for column, cells, these in entered]
        u = np.concatenate([np.empty((len(rows), 0)), *made[:width]], 1)
        target = np.concatenate(made[width:] or [np.zeros((len(events), 1))], 1)
        return _Rows(events, labels[events], u, taus[rows], target, known[events])

    def _require(self, accepted: bool) -> None:
        if not accepted:
            raise _BadRowsError

    def _events(self, batch: RowBatch, whole: _Rows) -> Block | list[Sample | Label]:
        """The accepted rows as one block or, where some may be labels, as a list of samples and labels."""
        u, target = torch.from_numpy(whole.u).to(self.dtype), torch.from_numpy(whole.target)
        target = target[:, 0].long() if self.classes is not None else target.to(self.dtype)
        taus = [None if tau != tau else tau for tau in whole.taus.tolist()]
        known = whole.known
        if self._id is None:
            block = Block(len(u), [u], None, [target] if known.any() else [], None)
            block.known = None if known.all() or not known.any() else known.tolist()
            block.tau = taus if any(tau is not None for tau in taus) else None
            return block
        made: list[Sample | Label] = []
        samples = iter(zip(u, taus, strict=True))
        ids = batch.cells[len(self.columns) + len(self.targets)]
        for k, row in enumerate(whole.events):
            if whole.labels[k]:
                made.append(Label(_id_of(ids[row]), target[k]))
                continue
            one, tau = next(samples)
            made.append(Sample(one, target[k], tau) if known[k] else Sample(one, None, tau, id=_id_of(ids[row])))
        return made

    def _warn(self, batch: RowBatch, rows: Any) -> None:
        """Warn once that a word counts as missing, if it may be meant as a class found on the way."""
        assert self.classes is not None
        if self._warned or self.classes.places.fixed:
            return
        cells = batch.cells[len(self.columns)]
        for row in rows:
            if isinstance(cells[row], str | bytes) and cells[row].strip():
                self._warned = True
                logger.warning(
                    "%s: the target %r counts as missing. Name it among the classes, classes=[...], if it is one",
                    batch.where(row),
                    name_of(cells[row]),
                )
                return

    def _explain(self, batch: RowBatch, row: int) -> SampleError:
        """The error of a row that is bad, after those before it were counted in."""
        where, cells = batch.where(row), [column[row] for column in batch.cells]
        ends = len(self.columns) + len(self.targets)
        try:
            if row in batch.broken:
                raise SampleError(f"{where} {batch.broken[row]}, {OR_SKIP}")
            if self._id is not None and _id_of(cells[ends]) is _NO_ID:
                what = shown(cells[ends])
                raise SampleError(f"{where}: column {self._id!r} holds {what}, neither a text nor a whole number.")
            for column, cell in zip((*self.columns, *self.targets), cells, strict=False):
                column.check(cell, where)
            return self.clock.explain(self._stamp(cells[-1], where), where, "bad")
        except SampleError as error:
            return error

    def look(self, cells: Sequence[Sequence[Any]], count: int) -> torch.Tensor:
        """The vectors of rows, each as if it came next; nothing changes.

        Raises:
            SampleError: A cell cannot be in its column, or its row would be left out.
        """
        known, made = self.state(), [np.empty((0, sum(len(column.measured) for column in self.columns)))]
        for row in range(count):
            where = "the row" if count == 1 else f"row {row} of the frame"
            entries = [
                self._look(column, mine[row], where) for column, mine in zip(self.columns, cells, strict=True)
            ]
            made.append(np.concatenate(entries, 1))
            self.load(known)
        return torch.from_numpy(np.concatenate(made)).to(self.dtype)

    def _look(self, column: Column, cell: Any, where: str) -> Array:
        """The entries of one cell."""
        column.check(cell, where)
        read = column.read([cell])
        if column.missing == "hold":
            read = column.fill(read, np.zeros(1, dtype=bool))
        if read.gaps[0] and column.missing in ("skip", "hold"):
            why = "leaves such rows out" if column.missing == "skip" else "has no value to hold yet"
            raise SampleError(
                f"{where}: column {column.name!r} is missing, and missing={column.missing!r} {why}, so that there "
                "is no input. Give it a value."
            )
        return column.enter(read, slice(None))

    def find_unit(self, batch: RowBatch) -> None:
        """Find the unit of time from the first rows of the table."""
        stamps = self._stamps(batch.cells[-1]) if batch.count else []
        self.clock.find([stamp for stamp in stamps if not is_missing(stamp)])

    def _stamps(self, cells: Sequence[Any]) -> Sequence[Any]:
        """Time stamps, read by `time_format`; `None` for one that does not follow it."""
        return cells if self._format is None else [self._stamp(cell) for cell in cells]

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
        found = self.classes.state()[1] if self.classes is not None else []
        return {"columns": columns, "classes": found, **self.clock.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Set what `state` returned."""
        for column, mine in zip(self.columns, state["columns"], strict=True):
            column.load(mine)
        if self.classes is not None:
            self.classes.load([None, state["classes"]])
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


def _any(masks: list[Mask], count: int) -> Mask:
    """Which rows are set in any of the masks."""
    return np.logical_or.reduce(masks) if masks else np.zeros(count, dtype=bool)
