"""Target columns of a table: numbers, or the index of a class; many rows at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn.errors import ConfigError, SampleError
from hamlearn.streams.columns import Cells
from hamlearn.streams.fields import Mask, number, numbers, too_large
from hamlearn.streams.places import NamePlaces, Names, name_in, name_of, to_places
from hamlearn.streams.row_source import RowBatch
from hamlearn.streams.units import logger
from hamlearn.streams.values import TensorSpec, shown


class Targets:
    """Target cells as a tensor.

    Args:
        names: Of the target columns, none to several.
        classes: The classes in order, or how many may be found on the way; `None` if targets are numbers.
        dtype: Of numbers.
        largest: The largest number that is allowed.
    """

    def __init__(
        self, names: Sequence[str], classes: Sequence[Any] | int | None, dtype: torch.dtype, largest: float
    ) -> None:
        self.names, self._dtype, self._largest = list(names), dtype, largest
        if classes is not None and len(self.names) != 1:
            raise ConfigError(f"classes={shown(classes)} needs one target column, not {shown(self.names)}.")
        self._warned = False
        self.places: NamePlaces | None = None if classes is None else to_places(classes, "classes")

    @property
    def classes(self) -> list[str] | None:
        """The classes found so far, in order; `None` if targets are numbers."""
        return None if self.places is None else self.places.names

    @property
    def spec(self) -> TensorSpec | None:
        """What a target looks like."""
        if self.places is not None:
            return TensorSpec((), torch.int64)
        return TensorSpec((len(self.names),), self._dtype) if self.names else None

    def read(self, columns: Sequence[Sequence[Any]], count: int) -> Cells:
        """Read the cells; nothing changes. Numbers make a row of values for each row of the table."""
        if self.places is not None:
            names = Names(columns[0], self._listed)
            return Cells(names.codes, names.codes < 0, np.zeros(count, dtype=bool), names)
        values = np.stack([numbers(cells) for cells in columns], 1) if columns else np.full((count, 1), np.nan)
        gaps: Mask = np.isnan(values).any(axis=1)
        bad: Mask = np.logical_or.reduce(too_large(values, self._largest), axis=1)
        return Cells(values, gaps, bad)

    def full(self, cells: Cells, rows: Mask) -> Mask:
        """Which rows have a class that is not listed, or one too many if those of `rows` were counted in."""
        if cells.names is None or self.places is None:
            return np.zeros(len(rows), dtype=bool)
        return cells.names.without_room(self.places, cells.values[rows])

    def enter(self, cells: Cells, rows: Any) -> tuple[Tensor, Mask]:
        """Targets of the rows at these indices, and which of them have one; classes are counted in."""
        values, known = cells.values[rows], ~cells.gaps[rows]
        if cells.names is None or self.places is None:
            return torch.from_numpy(np.where(known[:, None], values, 0.0)).to(self._dtype), known
        places = cells.names.places(values, self.places.find)
        return torch.from_numpy(np.where(known, places, 0)), known

    def warn(self, batch: RowBatch, column: int, rows: Iterable[int]) -> None:
        """Warn once that a word counts as missing, if it may be meant as a class found on the way."""
        if self._warned or self.places is None or self.places.fixed:
            return
        for row in rows:
            cell = batch.cells[column][row]
            if isinstance(cell, str | bytes) and cell.strip():
                self._warned = True
                logger.warning(
                    "%s: the target %r counts as missing. Name it among the classes, classes=[...], if it is one",
                    batch.where(row),
                    name_of(cell),
                )
                return

    def check(self, cells: Sequence[Any], where: str) -> None:
        """Raise `SampleError` if the cells of a row cannot be a target."""
        if self.places is None:
            remedy = "If it names classes, say so: classes=[...] lists them, classes=8 finds up to 8 on the way. "
            for cell, column in zip(cells, self.names, strict=True):
                number(cell, column, where, self._largest, remedy if len(self.names) == 1 else "")
            return
        name = name_in(cells[0], self._listed)
        if name is None or self.places.look(name) is not None:
            return
        full = f"one more than classes={self.places.count} has room for. Raise it"
        given = f"none of the classes {shown(self.places.names)}. Add it to classes"
        raise SampleError(
            f"{where}: column {self.names[0]!r} holds {shown(name)}, which is "
            f'{given if self.places.fixed else full}, or leave such rows out with bad="skip".'
        )

    @property
    def _listed(self) -> Sequence[Any]:
        return tuple(self.places.index) if self.places is not None and self.places.fixed else ()

    def state(self) -> list[str]:
        """The classes that were found."""
        return [] if self.places is None or self.places.fixed else self.places.names

    def load(self, names: Sequence[str]) -> None:
        """Set the classes that were found before."""
        if self.places is not None:
            self.places.load(names)
