"""What tables have in common, whether they come from a file or from memory: rows to samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from hamlearn.errors import ConfigError, SampleError
from hamlearn.sample import Id, Label, Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.blocks import Block
from hamlearn.streams.clock import Clock
from hamlearn.streams.encode import Categories, Missing, declare
from hamlearn.streams.fields import is_missing, listed
from hamlearn.streams.targets import Targets
from hamlearn.streams.units import Unit, unit_or_auto
from hamlearn.streams.values import Spec, TensorSpec, shown


def column_names(names: Any) -> list[str]:
    """None, one or several columns, as a list; pandas calls columns by whole numbers where nobody has named them.

    Example:
        >>> column_names("x"), column_names(["x", "y"]), column_names(3)
        (['x'], ['x', 'y'], [3])
    """
    if names is None:
        return []
    return list(names) if isinstance(names, Iterable) and not isinstance(names, str) else [names]


def others_than(
    header: Sequence[str], target: str | Sequence[str] | None, time: str | None, id: str | None
) -> list[str]:
    """The columns that are neither target nor time nor id."""
    named = {*column_names(target), *column_names(time), *column_names(id)}
    return [name for name in header if name not in named]


class TableStream(Stream):
    """Rows of a table as samples. `skipped` counts the rows that were left out."""

    skipped = 0
    _header: Sequence[str]
    _moves: ClassVar[tuple[str, ...]] = ("skipped",)

    def __init__(
        self,
        u: Sequence[str],
        target: str | Sequence[str] | None,
        time: str | None,
        classes: Sequence[Any] | int | None,
        categories: Categories | None,
        hashed: Mapping[str, int] | None,
        missing: Missing,
        bad: str,
        time_format: str | None,
        unit: Unit,
        dtype: torch.dtype | None,
        id: str | None,
        ties: float | None,
    ) -> None:
        if bad not in ("raise", "skip"):
            raise ConfigError(f'bad={bad!r} is not known. Give "raise" or "skip".')
        self._dtype = dtype or torch.get_default_dtype()
        largest = torch.finfo(self._dtype).max if self._dtype.is_floating_point else math.inf
        self._u, self._time, self._time_format, self._bad = column_names(u), time, time_format, bad
        if not self._u:
            raise ConfigError("u=[] names no input column. Name one or more.")
        self._columns = declare(self._u, categories, hashed, missing, largest)
        self._targets = Targets(column_names(target), classes, self._dtype, largest)
        self._clock = Clock(unit_or_auto(unit), None, ties)
        self._id = id
        if id is not None and not self._targets.names:
            raise ConfigError(f"id={id!r} is what labels call their samples by, and there is no target: name it")
        self._used = [*self._u, *self._targets.names, *column_names(id), *column_names(time)]

    @property
    def spec(self) -> Spec:
        """Vectors of the columns; how many rows there are is told by those that know."""
        return Spec(TensorSpec((len(self._columns.numbers),), self._dtype), self._targets.spec, None)

    @property
    def numbers(self) -> list[bool]:
        """Which entries of the input are measured, rather than 0 or 1 for a category or a missing cell."""
        return self._columns.numbers

    @property
    def entries(self) -> list[str]:
        """Names of the entries of the input; a category that has not been found yet is `?` and its place."""
        return self._columns.entries

    @property
    def classes(self) -> list[str] | None:
        """The classes of the target in order, as far as they are known; `None` where it is a number."""
        return self._targets.classes

    @property
    def unit(self) -> float | None:
        """What counts as one unit of time; `None` as long as it has not been found."""
        return self._clock.unit

    def encode(self, row: Mapping[str, Any]) -> Tensor:
        """The input that the stream would make of a row now; nothing changes. `Stream.encode` says more."""
        if not isinstance(row, Mapping):
            raise SampleError(
                f"the row is a {type(row).__name__}, not a mapping from names of columns to cells. "
                "Give a dictionary."
            )
        named = {*self._header, *self._used}
        unknown = [name for name in row if name not in named]
        if unknown:
            raise SampleError(
                f"the row has {listed(unknown)}, which the table does not have. Its columns are "
                f"{listed(self._header)}. Leave out what is not among them."
            )
        cells = [row.get(name) for name in self._u]
        return torch.tensor(self._columns.look(cells, "the row"), dtype=self._dtype)

    def _config(self) -> dict[str, Any]:
        return {
            "u": self._u,
            "target": self._targets.names,
            "time": self._time,
            "id": self._id,
            "ties": self._clock.ties,
            "width": len(self._columns.numbers),
            "classes": None if self._targets.places is None else self._targets.places.count,
        }

    def _rewind(self) -> None:
        super()._rewind()
        self._clock.last = None
        self._columns.forget()
        self._targets.forget()

    def _cursor(self) -> dict[str, Any]:
        known = {"columns": self._columns.state(), "classes": self._targets.state()}
        return {**super()._cursor(), **self._clock.state(), **known}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        super()._seek(cursor)
        self._clock.load_state(cursor)
        self._columns.load(cursor["columns"])
        self._targets.load(cursor["classes"])

    def _sample(self, cells: Sequence[Any], where: str) -> Sample | Label | None:
        """The sample of a row, its cells in the order of `_used`, or its label; `None` where it is left out.

        What is known of the rows before changes only once the whole row has been read.
        """
        inputs, targets = len(self._u), len(self._targets.names)
        id = None if self._id is None else self._name(cells[inputs + targets], where)
        if id is not None and all(is_missing(cell) for cell in cells[:inputs]):
            label = self._targets.read(cells[inputs : inputs + targets], where)
            if label is not None:
                return Label(id, self._targets.write(label))
        values = self._columns.read(cells[:inputs], where)
        if values is None:
            self.skipped += 1
            return None
        target, tau = self._targets.read(cells[inputs : inputs + targets], where), None
        if self._time is not None:
            stamp = self._stamp(cells[-1], where)
            tau = self._clock.advance(stamp, where, skip=False, option="bad")[0]
        u = torch.tensor(self._columns.write(values), dtype=self._dtype)
        return Sample(u, self._targets.write(target), tau, id=id if target is None else None)

    def _name(self, cell: Any, where: str) -> Id | None:
        """What a sample is called; `None` where it has no name."""
        if is_missing(cell):
            return None
        if isinstance(cell, np.integer):
            return int(cell)
        if isinstance(cell, bool) or not isinstance(cell, str | int):
            raise SampleError(
                f"{where}: column {self._id!r} holds {shown(cell)}, neither a text nor a whole number."
            )
        return cell.strip() if isinstance(cell, str) else cell

    def _block_of(self, columns: Sequence[Sequence[Any]], count: int) -> Block | None:
        """Many rows at once, as columns in the order of `_used`.

        `None`, and nothing has changed, where one has to be left out, refused or looked at more closely.
        """
        if self._id is not None:
            return None
        inputs, targets = len(self._u), len(self._targets.names)
        columns_before, classes_before = self._columns.state(), self._targets.state()
        rows = self._columns.many(columns[:inputs])
        found = None if rows is None else self._targets.many(columns[inputs : inputs + targets])
        taus = None if found is None or self._time is None else self._taus(columns[-1])
        if rows is None or found is None or (taus is None and self._time is not None):
            self._columns.load(columns_before)
            self._targets.load(classes_before)
            return None
        target, known = found
        u = torch.from_numpy(rows).to(self._dtype)
        return Block(count, [u], None, target, None, known, None if taus == [None] else taus)

    def _taus(self, stamps: Sequence[Any]) -> list[float | None] | None:
        try:
            if self._time_format is not None:
                stamps = [self._stamp(stamp, "") for stamp in stamps]
            return self._clock.advance_many(stamps)
        except SampleError:
            # The row is named when it is read by itself.
            return None

    def _stamp(self, cell: Any, where: str) -> Any:
        text = cell.strip() if isinstance(cell, str) else cell
        if self._time_format is None or not isinstance(text, str):
            return text
        try:
            return datetime.strptime(text, self._time_format)
        except (ValueError, OverflowError) as error:
            raise SampleError(
                f"{where}: column {self._time!r} holds {shown(text)}, which does not follow {self._time_format!r}."
            ) from error
