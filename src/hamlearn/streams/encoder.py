"""Rows of a table as vectors, targets, time steps and labels: what a table has learned from its rows so far."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

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
    Classes,
    Column,
    Missing,
    declare,
    declare_targets,
)
from hamlearn.streams.moments import Array
from hamlearn.streams.values import TensorSpec


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
    """The encoded entries of a row.

    Attributes:
        u: The entries of the input; `None` if the row is the label of an earlier sample.
        target: Those of the target; `None` if it is missing.
        tau: The time step.
        id: What a label calls the sample by.
    """

    u: list[float] | None
    target: list[float] | None
    tau: float | None = None
    id: Any = None


class RowEncoder:
    """Rows of a table as samples, with what is known of the rows before: means, names, classes, the last time.

    A row is first read as a whole, and only then counted in: one that is bad, or left out, leaves no trace.

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
        # The cells of a row are in this order.
        self.used = [*u, *self.target_names, *column_names(self._id), *column_names(self._time)]
        self._width = len(self.columns)
        self._reads = [column.read for column in (*self.columns, *self.targets)]
        # Which columns have which of the policies that look at the row.
        self._with: dict[str, list[int]] = {"raise": [], "skip": [], "hold": []}
        for k, column in enumerate(self.columns):
            if isinstance(column.missing, str):
                self._with.setdefault(column.missing, []).append(k)

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

    def encode(self, number: int, cells: Sequence[Any] | str) -> Entries | None:
        """What a row becomes, which is counted in; `None` if it is left out.

        Args:
            number: Of the row, in messages.
            cells: In the order of `used`; or what is wrong with a row that cannot be read.

        Raises:
            SampleError: The row is bad, and such rows are not left out.
        """
        try:
            if isinstance(cells, str):
                raise SampleError(f"{self._word} {number} {cells}, {OR_SKIP}")
            return self._encode(number, cells)
        except BadCellError as error:
            # A row that is left out may hold anything.
            if self._skips or any(is_missing(cells[k]) for k in self._with["skip"]):
                return None
            raise SampleError(f"{self._word} {number}: {error}") from None
        except SampleError:
            if self._skips:
                return None
            raise

    def _encode(self, number: int, cells: Sequence[Any]) -> Entries | None:
        values = [read(cell) for read, cell in zip(self._reads, cells, strict=False)]
        inputs, targets = values[: self._width], values[self._width :]
        known = bool(targets) and None not in targets
        id = None if self._id is None else self._id_of(cells[len(values)])
        if None in inputs:
            if known and id is not None and inputs.count(None) == self._width:
                return Entries(None, self._targets(targets), id=id)
            if any(inputs[k] is None for k in self._with["skip"]):
                return None
            for k in self._with["raise"]:
                if inputs[k] is None:
                    raise self.columns[k].gap()
        seconds, tau = 0.0, None
        if self._time is not None:
            stamp, where = self._stamp(cells[-1]), f"{self._word} {number}"
            seconds = to_seconds(stamp, where)
            tau = self.clock.step(seconds, stamp, where, "bad")
        if self._with["hold"]:
            inputs = self._held(inputs)
            if any(inputs[k] is None for k in self._with["hold"]):
                return None
        # From here on the row is counted in.
        if self._time is not None:
            self.clock.go_on(seconds)
        if not known and self.classes is not None:
            self._warn(cells[self._width], number)
        u: list[float] = []
        for column, value in zip(self.columns, inputs, strict=True):
            column.enter(value, u)
        return Entries(u, self._targets(targets) if known else None, tau, id)

    def _targets(self, values: Sequence[Any]) -> list[float]:
        out: list[float] = []
        for column, value in zip(self.targets, values, strict=True):
            column.enter(value, out)
        return out

    def _held(self, inputs: list[Any]) -> list[Any]:
        """The inputs with gaps filled by the last values, which become these."""
        filled = list(inputs)
        for k in self._with["hold"]:
            filled[k] = self.columns[k].filled(inputs[k])
        for k in self._with["hold"]:
            self.columns[k].held = filled[k]
        return filled

    def _id_of(self, cell: Any) -> Any:
        """What a sample is called; `None` if it has no name."""
        if is_missing(cell):
            return None
        if isinstance(cell, np.integer):
            return int(cell)
        if isinstance(cell, bool) or not isinstance(cell, str | int):
            raise BadCellError(f"column {self._id!r} holds {shown(cell)}, neither a text nor a whole number.")
        return cell.strip() if isinstance(cell, str) else cell

    def _stamp(self, cell: Any) -> Any:
        """A time stamp, read by `time_format`."""
        text = cell.strip() if isinstance(cell, str) else cell
        if self._format is None or not isinstance(text, str):
            return cell
        try:
            return datetime.strptime(text, self._format)
        except (ValueError, OverflowError, re.error) as error:
            raise BadCellError(
                f"column {self._time!r} holds {shown(text)}, which does not follow {self._format!r}: {error}."
            ) from error

    def _warn(self, cell: Any, number: int) -> None:
        """Warn once that a word counts as missing, if it may be meant as a class found on the way."""
        assert self.classes is not None
        if not self._warned and not self.classes.fixed and isinstance(cell, str | bytes) and cell.strip():
            self._warned = True
            logger.warning(
                "%s %d: the target %r counts as missing. Name it among the classes, classes=[...], if it is one",
                self._word,
                number,
                name_of(cell),
            )

    def find_unit(self, rows: Sequence[Sequence[Any] | str]) -> None:
        """Find the unit of time from the first rows of the table."""
        stamps = [cells[-1] for cells in rows if not isinstance(cells, str) and not is_missing(cells[-1])]
        self.clock.find(self._stamps(stamps))

    def _stamps(self, cells: Sequence[Any]) -> Sequence[Any]:
        """Time stamps, read by `time_format`; `None` for one that does not follow it."""
        if self._format is None:
            return cells
        stamps: list[Any] = []
        for cell in cells:
            try:
                stamps.append(self._stamp(cell))
            except BadCellError:
                stamps.append(None)
        return stamps

    def event(self, made: Entries) -> Sample | Label:
        """A row as a sample, or as a label."""
        target = None
        if made.target is not None:
            is_class = self.classes is not None
            target = torch.tensor(int(made.target[0])) if is_class else torch.tensor(made.target, dtype=self.dtype)
        if made.u is None:
            assert target is not None
            return Label(made.id, target)
        return Sample(torch.tensor(made.u, dtype=self.dtype), target, made.tau, id=made.id)

    def block(self, rows: Sequence[tuple[int, Sequence[Any] | str]]) -> Block | None:
        """Rows as one block, without those that miss a cell of a column with `missing="skip"`.

        `None`, and nothing has changed, if they have to be taken one by one.
        """
        if not rows or self._id is not None or str in {type(cells) for _, cells in rows}:
            return None
        cells = list(zip(*(cells for _, cells in rows), strict=True))
        columns = (*self.columns, *self.targets)
        values = [column.read_all(mine) for column, mine in zip(columns, cells, strict=False)]
        if any(mine is None for mine in values):
            return None
        there = self._there(values, self._with["skip"], len(rows))
        if not all(there):
            return self.block([row for row, stays in zip(rows, there, strict=True) if stays])
        taus = None
        if self._time is not None:
            seconds = seconds_of(self._stamps(cells[-1]))
            taus = self.clock.steps(seconds)
            if taus is None:
                return None
            # From here on the rows are counted in.
            self.clock.last = float(seconds[-1])
        known = self._there(values, range(self._width, len(columns)), len(rows))
        for k in self._with["hold"]:
            last = values[k][-1]
            self.columns[k].held = float(last) if isinstance(last, float) else last
        made = [column.enter_all(mine) for column, mine in zip(columns, values, strict=True)]
        if self.classes is not None:
            for (number, cells_of_row), is_known in zip(rows, known, strict=True):
                if not is_known:
                    self._warn(cells_of_row[self._width], number)
        u = np.concatenate([np.empty((len(rows), 0)), *made[: self._width]], 1)
        target = np.concatenate(made[self._width :], 1) if self.targets else u
        return self._block(u, target, known, None if taus is None else taus.tolist())

    def _there(self, values: Sequence[Any], columns: Iterable[int], count: int) -> list[bool]:
        """Which rows have values in all of these columns; a missing name is `None`, and a missing number NaN."""
        there = [True] * count
        for k in columns:
            mine = values[k]
            if np.isnan(mine).any() if isinstance(mine, np.ndarray) else None in mine:
                there = [before and v is not None and v == v for before, v in zip(there, mine, strict=True)]
        return there

    def one_by_one(self, made: Sequence[Entries]) -> Block | list[Sample | Label]:
        """Rows that were taken one by one as one block or, where some may be labels, as a list of events."""
        if self._id is not None:
            return [self.event(one) for one in made]
        u, targets, taus, _ = zip(*made, strict=True)
        known = [target is not None for target in targets]
        nothing = [0.0] * len(self.targets)
        target = np.array([nothing if target is None else target for target in targets], dtype=np.float64)
        return self._block(np.array(u, dtype=np.float64), target, known, list(taus))

    def _block(self, u: Array, target: Array, known: list[bool], taus: list[float | None] | None) -> Block:
        block = Block(len(u), [torch.from_numpy(u).to(self.dtype)], None, [], None)
        if self.targets and any(known):
            block.target, block.known = [self._tensor(target)], None if all(known) else known
        if taus is not None and any(tau is not None for tau in taus):
            block.tau = taus
        return block

    def _tensor(self, target: Array) -> torch.Tensor:
        made = torch.from_numpy(target)
        return made[:, 0].long() if self.classes is not None else made.to(self.dtype)

    def look(self, cells: Sequence[Sequence[Any]]) -> torch.Tensor:
        """The vectors of rows, each as if it came next; nothing changes.

        Raises:
            SampleError: A cell cannot be in its column, or its row would be left out.
        """
        made: list[list[float]] = []
        for row, mine in enumerate(cells):
            where, known = "the row" if len(cells) == 1 else f"row {row} of the frame", self.state()
            out: list[float] = []
            try:
                for column, cell in zip(self.columns, mine, strict=True):
                    column.enter(self._value(column, cell), out)
            except BadCellError as error:
                raise SampleError(f"{where}: {error}") from None
            finally:
                self.load(known)
            made.append(out)
        return torch.from_numpy(np.array(made, dtype=np.float64)).to(self.dtype)

    def _value(self, column: Column, cell: Any) -> Any:
        """The value in a cell, or what is held in its place."""
        value = column.read(cell)
        if column.missing == "raise" and value is None:
            raise column.gap()
        if column.missing == "hold":
            value = column.filled(value)
        if value is None and column.missing in ("skip", "hold"):
            why = "leaves such rows out" if column.missing == "skip" else "has no value to hold yet"
            raise BadCellError(
                f"column {column.name!r} is missing, and missing={column.missing!r} {why}, which "
                "leaves no input. Give it a value."
            )
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
