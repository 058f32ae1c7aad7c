"""The target of a table: numbers, or a class whose name was given or is found on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn.errors import ConfigError, SampleError
from hamlearn.streams.fields import is_missing, number, plain_numbers
from hamlearn.streams.places import Places, name_of, names_again, to_places
from hamlearn.streams.units import logger
from hamlearn.streams.values import TensorSpec, shown


class Targets:
    """Target cells as a tensor.

    Args:
        names: Of the target columns, none to several.
        classes: The classes in order, or how many may be found on the way; `None` where targets are numbers.
        dtype: Of numbers.
        largest: The largest number that is let through.
    """

    def __init__(
        self, names: Sequence[str], classes: Sequence[Any] | int | None, dtype: torch.dtype, largest: float
    ) -> None:
        self.names, self._dtype, self._largest = list(names), dtype, largest
        if classes is not None and len(self.names) != 1:
            raise ConfigError(f"classes={shown(classes)} needs one target column, not {shown(self.names)}.")
        self._told = False
        self.places: Places | None = None if classes is None else to_places(classes, "classes")
        self._remedy = (
            "If it names classes, say so: classes=[...] lists them, classes=8 finds up to 8 on the way. "
            if len(self.names) == 1
            else ""
        )

    @property
    def classes(self) -> list[str] | None:
        """The classes in order, as far as they are known; `None` where targets are numbers."""
        return None if self.places is None else self.places.names

    @property
    def spec(self) -> TensorSpec | None:
        """What a target looks like."""
        if self.places is not None:
            return TensorSpec((), torch.int64)
        return TensorSpec((len(self.names),), self._dtype) if self.names else None

    def read(self, cells: Sequence[Any], where: str) -> Any:
        """A class, numbers, or `None` where one is missing; nothing that is known of the classes changes."""
        if self.places is None:
            values = [
                number(cell, name, where, self._largest, self._remedy)
                for name, cell in zip(self.names, cells, strict=True)
            ]
            return None if None in values or not values else values
        name = None if cells[0] is None else name_of(cells[0])
        if name in self.places.index:
            return name
        if name is None or is_missing(cells[0]):
            self._tell(name if isinstance(cells[0], str | bytes) else None, where)
            return None
        if self.places.has_room(name):
            return name
        full = f"one more than classes={self.places.count} has room for. Raise it"
        given = f"none of the classes {shown(self.places.names)}. Add it to classes"
        raise SampleError(
            f"{where}: column {self.names[0]!r} holds {shown(name)}, which is "
            f'{given if self.places.fixed else full}, or leave such rows out with bad="skip".'
        )

    def _tell(self, word: str | None, where: str) -> None:
        """Say once that a word counts as missing, where it may be meant as a class that is found on the way."""
        if self._told or not word or self.places is None or self.places.fixed:
            return
        if not where:
            raise SampleError(f"{shown(word)} is told of when its row is read by itself.")
        self._told = True
        logger.warning(
            "%s: the target %r counts as missing. Name it among the classes, classes=[...], if it is one",
            where,
            word,
        )

    def write(self, value: Any) -> Tensor | None:
        """The tensor of what was read; a new class is counted in now."""
        if value is None:
            return None
        if self.places is not None:
            return torch.tensor(self.places.find(value))
        return torch.tensor(value, dtype=self._dtype)

    def many(self, columns: Sequence[Sequence[Any]]) -> tuple[list[Tensor], list[bool] | None] | None:
        """Targets of many rows, and which have one; `None`, and nothing has changed, where one is not regular."""
        if not self.names:
            return [], None
        if self.places is None:
            parts = [plain_numbers(cells, self._largest) for cells in columns]
            if not any(part is None for part in parts):
                return [torch.from_numpy(np.stack(parts, 1)).to(self._dtype)], None  # type: ignore[arg-type]
        rows = list(zip(*columns, strict=True))
        try:
            # Each class is looked at once; texts alone, since 1 and True are one key but two classes.
            texts = self.places is not None and all(type(cell) is str for cell in columns[0])
            read = {row: self.read(row, "") for row in dict.fromkeys(rows)} if texts else None
            values = [self.read(row, "") if read is None else read[row] for row in rows]
        except SampleError:
            return None
        known = [value is not None for value in values]
        if not any(known):
            return [], None
        if self.places is None:
            blank = [0.0] * len(self.names)
            found = torch.tensor([value or blank for value in values], dtype=self._dtype)
        else:
            # Room for each was there when it was read; together they may be too many.
            new = {value for value in values if value is not None and value not in self.places.index}
            if len(self.places.index) + len(new) > self.places.count:
                return None
            found = torch.tensor([0 if value is None else self.places.find(value) for value in values])
        return [found], None if all(known) else known

    def forget(self) -> None:
        """Be as at the beginning."""
        self.load([])

    def state(self) -> list[str]:
        """The classes that were found."""
        return [] if self.places is None or self.places.fixed else self.places.names

    def load(self, names: Sequence[str]) -> None:
        """Take up the classes that were found before."""
        if self.places is not None:
            self.places.load(names_again(names))
