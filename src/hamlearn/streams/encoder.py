"""Rows of a table as vectors, targets, time steps and labels: what a table has learned from its rows so far."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch

from hamlearn.errors import ConfigError, SampleError, shown
from hamlearn.sample import Label, Sample
from hamlearn.streams.blocks import Block
from hamlearn.streams.cells import column_names, is_missing, name_of
from hamlearn.streams.clock import Clock, Unit, logger, seconds_of, to_seconds
from hamlearn.streams.columns import (
    OR_SKIP,
    BadCellError,
    Categories,
    ClassColumn,
    Column,
    Missing,
    declare,
    declare_targets,
)
from hamlearn.streams.moments import Array
from hamlearn.streams.values import TensorSpec

MANY = 256
"""Rows that are tried at once, as long as no bad one has been among them."""

RawRow = tuple[int, Sequence[Any] | str]
"""The number of a row, in messages, and its cells; or a text, what is wrong with it."""


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


class Entries(NamedTuple):
    """The encoded entries of some rows.

    Attributes:
        u: The entries of the inputs.
        target: Those of the targets; 0 where there is none.
        known: Which rows have a target.
        taus: The time steps, NaN for the first row of all; `None` without time stamps.
        ids: The names of the rows, if the table has a column for them.
        labels: Which rows are labels of earlier samples, of which there are no inputs and no time steps.
    """

    u: Array
    target: Array
    known: Any
    taus: Array | None
    ids: list[Any]
    labels: Any


class LeftOutError(Exception):
    """A row is left out; raised for many rows, one of them is to be looked at alone."""


class RowEncoder:
    """Rows of a table as samples, with what is known of the rows before: means, names, classes, the last time.

    Many rows are taken at once if nothing is wrong with any of them, with the bits of single rows. A row is first
    read as a whole, and only then counted in: one that is bad, or left out, leaves no trace but what it holds.

    Args:
        settings: What the columns are.
        u: The input columns.
        word: What to call a row in messages, before its number.
    """

    def __init__(self, settings: TableSettings, u: Sequence[Any], word: str) -> None:
        if settings.bad not in ("raise", "skip"):
            raise ConfigError(f'bad={settings.bad!r} is not known. Give "raise" or "skip".')
        self._skips, self._time, self._id = settings.bad == "skip", settings.time, settings.id
        self._format, self._word, self._warned = settings.time_format, word, False
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
        # How many rows are tried at once.
        self._size = MANY
        # The cells of a row are in this order.
        self.used = [*u, *self.target_names, *column_names(self._id), *column_names(self._time)]
        self._all, self._width = [*self.columns, *self.targets], len(self.columns)
        # The places of the columns with each of the policies that look at the row.
        self._with: dict[str, list[int]] = {"raise": [], "skip": [], "hold": []}
        for place, column in enumerate(self.columns):
            if column.missing in self._with:
                self._with[str(column.missing)].append(place)

    @property
    def leaves_out(self) -> bool:
        """Whether rows may be left out."""
        return self._skips or any(column.missing in ("skip", "hold") for column in self.columns)

    @property
    def classes(self) -> ClassColumn | None:
        """The target column of classes; `None` if targets are numbers."""
        return self.targets[0] if self.targets and isinstance(self.targets[0], ClassColumn) else None

    @property
    def target_spec(self) -> TensorSpec | None:
        """What a target looks like."""
        if self.classes is not None:
            return TensorSpec((), torch.int64)
        return TensorSpec((len(self.targets),), self.dtype) if self.targets else None

    def take(self, rows: Sequence[RawRow]) -> tuple[int, Entries | None]:
        """Count in as many of the rows as can be taken at once: how many these are, and what they become.

        Where one of them needs to be looked at alone, half of them are tried, and so on, down to one row; that may
        be left out, and becomes `None`.

        Raises:
            SampleError: The first row is bad, and such rows are not left out.
        """
        while True:
            count = min(len(rows), self._size)
            try:
                made = self._take(rows[:count])
            except (LeftOutError, BadCellError, SampleError) as problem:
                if count == 1:
                    self._raise(problem, *rows[0])
                    return 1, None
                self._size = count // 2
            else:
                # Among many bad rows, few are tried at once.
                self._size = max(self._size, 2 * count)
                return count, made

    def _raise(self, problem: Exception, number: int, cells: Sequence[Any] | str) -> None:
        """Raise what is wrong with a row, unless it is left out."""
        missing = isinstance(problem, BadCellError) and any(is_missing(cells[k]) for k in self._with["skip"])
        # A row that is left out since it misses a cell may hold anything.
        if missing or self._skips or isinstance(problem, LeftOutError):
            return
        if isinstance(problem, BadCellError):
            raise SampleError(f"{self._word} {number}: {problem}") from None
        raise problem

    def _take(self, rows: Sequence[RawRow]) -> Entries | None:
        """Count all rows in, without those that miss a cell of a column with `missing="skip"`."""
        for number, row in rows:
            if type(row) is str:
                raise SampleError(f"{self._word} {number} {row}, {OR_SKIP}")
        cells = list(zip(*[row for _, row in rows], strict=True))
        values = [column.parse(mine) for column, mine in zip(self._all, cells, strict=False)]
        ids = [] if self._id is None else [self._id_of(cell) for cell in cells[len(values)]]
        gaps = [column.gaps(mine) for column, mine in zip(self._all, values, strict=True)]
        known = ~np.logical_or.reduce(gaps[self._width :]) if self.targets else np.zeros(len(rows), dtype=bool)
        labels = None
        if ids:
            labels = known & np.logical_and.reduce(gaps[: self._width]) & [id is not None for id in ids]
        stay = self._stay(gaps, labels)
        if stay is not None:
            kept = [row for row, stays in zip(rows, stay.tolist(), strict=True) if stays]
            return self._take(kept) if kept else None
        places = list(range(len(rows)))
        if labels is not None and labels.any():
            samples = np.flatnonzero(~labels)
            values[: self._width] = [mine[samples] for mine in values[: self._width]]
            places = samples.tolist()
        seconds, taus = self._times(rows, cells, places)
        self._hold(values, len(places))
        # From here on the rows are counted in.
        if taus is not None and len(taus):
            self.clock.go_on(float(seconds[-1]))
        self._warn(rows, cells, known)
        made = [column.enter(mine) for column, mine in zip(self._all, values, strict=True)]
        return Entries(
            _beside(made[: self._width], len(places)),
            _beside(made[self._width :], len(rows)),
            known,
            taus,
            ids,
            labels,
        )

    def _stay(self, gaps: Sequence[Any], labels: Any) -> Any:
        """Which rows stay, if any is left out for a missing cell; raises for a cell that must not be missing."""
        stay = None
        for policy in ("skip", "raise"):
            for k in self._with[policy]:
                if not gaps[k].any():
                    continue
                missing = gaps[k] if labels is None else gaps[k] & ~labels
                if policy == "skip":
                    stay = ~missing if stay is None else stay & ~missing
                elif (missing if stay is None else missing & stay).any():
                    raise self.columns[k].gap()
        return None if stay is None or stay.all() else stay

    def _times(
        self, rows: Sequence[RawRow], cells: Sequence[Any], places: Sequence[int]
    ) -> tuple[Any, Array | None]:
        """The time stamps of the samples at these places, in seconds, and their time steps."""
        if self._time is None:
            return None, None
        stamps = self._stamps([cells[-1][place] for place in places])
        seconds = seconds_of(stamps)
        if self.clock.unit is None and len(stamps) > 1:
            # The first gap that there is becomes the unit.
            raise LeftOutError
        taus, good = self.clock.steps(seconds)
        if not good.all():
            first = int(np.argmin(good))
            where = f"{self._word} {rows[places[first]][0]}"
            to_seconds(stamps[first], where)
            raise self.clock.explain(stamps[first], where, "bad")
        return seconds, taus

    def _hold(self, values: list[Any], count: int) -> None:
        """Fill gaps by the last values of columns with `missing="hold"`; raises if a value has no place."""
        holds = self._with["hold"] if count else []
        for k in holds:
            values[k] = self.columns[k].filled(values[k])
        gap = any(self.columns[k].gaps(values[k]).any() for k in holds)
        if gap and count > 1:
            raise LeftOutError
        for column, mine in zip(self._all, values, strict=True):
            column.require_room(mine)
        for k in holds:
            self.columns[k].hold(values[k])
        if gap:
            # What the row has is held all the same.
            raise LeftOutError

    def _id_of(self, cell: Any) -> Any:
        """What a sample is called; `None` if it has no name."""
        if is_missing(cell):
            return None
        if isinstance(cell, np.integer):
            return int(cell)
        if isinstance(cell, bool) or not isinstance(cell, str | int):
            raise BadCellError(f"column {self._id!r} holds {shown(cell)}, neither a text nor a whole number.")
        return cell.strip() if isinstance(cell, str) else cell

    def _stamps(self, cells: Sequence[Any]) -> Sequence[Any]:
        """Time stamps, read by `time_format`."""
        return cells if self._format is None else [self._stamp(cell, self._format) for cell in cells]

    def _stamp(self, cell: Any, form: str) -> Any:
        if not isinstance(cell, str):
            return cell
        try:
            return datetime.strptime(cell.strip(), form)
        except (ValueError, OverflowError, re.error) as error:
            raise BadCellError(
                f"column {self._time!r} holds {shown(cell.strip())}, which does not follow {form!r}: {error}."
            ) from error

    def _warn(self, rows: Sequence[RawRow], cells: Sequence[Any], known: Any) -> None:
        """Warn once that a word counts as missing, if it may be meant as a class found on the way."""
        if self._warned or self.classes is None or self.classes.fixed:
            return
        for place in np.flatnonzero(~known).tolist():
            cell = cells[self._width][place]
            if isinstance(cell, str | bytes) and cell.strip():
                self._warned = True
                logger.warning(
                    "%s %d: the target %r counts as missing. Name it among the classes, classes=[...], if it is "
                    "one",
                    self._word,
                    rows[place][0],
                    name_of(cell),
                )
                return

    def find_unit(self, rows: Sequence[RawRow]) -> None:
        """Find the unit of time from the first rows of the table."""
        stamps: list[Any] = []
        for _, cells in rows:
            if not isinstance(cells, str) and not is_missing(cells[-1]):
                with contextlib.suppress(BadCellError):
                    stamps += self._stamps([cells[-1]])
        self.clock.find(stamps)

    def together(self, pieces: Sequence[Entries]) -> Block | list[Sample | Label]:
        """Rows as one block or, if some may be labels, as a list of events."""
        if self._id is not None:
            return [event for piece in pieces for event in self._events(piece)]
        u, target, known, taus, *_ = pieces[0]
        if len(pieces) > 1:
            u, target, known = (np.concatenate(parts) for parts in list(zip(*pieces, strict=True))[:3])
            taus = None if taus is None else np.concatenate([cast("Array", piece.taus) for piece in pieces])
        block = Block(len(u), [torch.from_numpy(u).to(self.dtype)], None, [], None)
        if known.any():
            block.target, block.known = [self._tensor(target)], None if known.all() else known.tolist()
        if taus is not None:
            steps = _optional(taus)
            block.tau = None if steps == [None] else steps
        return block

    def _events(self, made: Entries) -> Iterator[Sample | Label]:
        u, targets = iter(torch.from_numpy(made.u).to(self.dtype)), self._tensor(made.target)
        taus = iter([None] * len(made.u) if made.taus is None else _optional(made.taus))
        for target, known, id, label in zip(targets, made.known.tolist(), made.ids, made.labels, strict=True):
            yield Label(id, target) if label else Sample(next(u), target if known else None, next(taus), id=id)

    def _tensor(self, target: Array) -> torch.Tensor:
        made = torch.from_numpy(target)
        return made[:, 0].long() if self.classes is not None else made.to(self.dtype)

    def look(self, cells: Sequence[Sequence[Any]]) -> torch.Tensor:
        """The vectors of rows, each as if it came next; nothing changes.

        Raises:
            SampleError: A cell cannot be in its column, or its row would be left out.
        """
        known, made = self.state(), []
        for row, mine in enumerate(cells):
            where = "the row" if len(cells) == 1 else f"row {row} of the frame"
            try:
                values = [self._value(column, cell) for column, cell in zip(self.columns, mine, strict=True)]
                entries = [column.enter(value)[0] for column, value in zip(self.columns, values, strict=True)]
            except BadCellError as error:
                raise SampleError(f"{where}: {error}") from None
            self.load(known)
            made.append(np.concatenate(entries))
        return torch.from_numpy(np.array(made, dtype=np.float64)).to(self.dtype)

    def _value(self, column: Column, cell: Any) -> Any:
        """The value in a cell, or what is held in its place."""
        value = column.parse([cell])
        if column.missing == "hold":
            value = column.filled(value)
        if column.gaps(value)[0] and column.missing == "raise":
            raise column.gap()
        if column.gaps(value)[0] and column.missing in ("skip", "hold"):
            why = "leaves such rows out" if column.missing == "skip" else "has no value to hold yet"
            raise BadCellError(
                f"column {column.name!r} is missing, and missing={column.missing!r} {why}, which "
                "leaves no input. Give it a value."
            )
        column.require_room(value)
        return value

    def state(self) -> dict[str, Any]:
        """The values learned from the rows so far, as JSON."""
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


def _beside(columns: Sequence[Array], count: int) -> Array:
    """The entries of some columns beside each other."""
    if len(columns) == 1:
        return columns[0]
    return np.concatenate(columns, 1) if columns else np.empty((count, 0))


def _optional(taus: Array) -> list[float | None]:
    """Time steps, `None` for NaN."""
    return [None if tau != tau else tau for tau in taus.tolist()]
