"""The input of a table: which columns it has, what each holds, and rows to vectors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from hamlearn.errors import ConfigError, SampleError
from hamlearn.streams.columns import SKIP, Category, Column, Hashed, Number
from hamlearn.streams.moments import Array
from hamlearn.streams.places import to_places
from hamlearn.streams.values import shown

Policy = Literal["raise", "skip", "hold", "mean", "indicate"]
POLICIES: tuple[str, ...] = get_args(Policy)
"""What a missing cell may get, besides a number."""

Missing = Policy | float | Mapping[str, Policy | float]
"""One policy for all columns, or one for each that is named; the others raise."""
Categories = Mapping[str, Sequence[Any] | int]
"""Columns of categories: the categories of each in order, or how many may be found on the way."""


class Columns:
    """The input columns of a table together: rows to vectors.

    Args:
        columns: In the order of their entries.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._fresh = self.state()
        self.numbers = list(itertools.chain.from_iterable(column.numbers for column in columns))

    @property
    def skips(self) -> bool:
        """Whether rows may be left out because a cell is missing."""
        return any(column.missing in ("skip", "hold") for column in self._columns)

    @property
    def entries(self) -> list[str]:
        """Names of the entries of a vector."""
        return list(itertools.chain.from_iterable(column.entries for column in self._columns))

    def read(self, cells: Sequence[Any], where: str) -> list[Any] | None:
        """The values of a row, or `None` where it is to be left out; only what a column holds on to may change."""
        values: list[Any] = []
        for column, cell in zip(self._columns, cells, strict=True):
            value = column.read(cell, where)
            if value is SKIP:
                for before, known in zip(self._columns, values, strict=False):
                    before.held = before.held if known is None else known
                return None
            values.append(value)
        return values

    def write(self, values: Sequence[Any]) -> list[float]:
        """The vector of a row that was read, which is counted in now."""
        row: list[float] = []
        for column, value in zip(self._columns, values, strict=True):
            row += column.write(value)
        return row

    def look(self, cells: Sequence[Any], where: str) -> list[float]:
        """The vector that would be made of a row now; nothing changes.

        Raises:
            SampleError: A cell cannot be in its column, or the row would be left out.
        """
        row: list[float] = []
        for column, cell in zip(self._columns, cells, strict=True):
            value = column.read(cell, where)
            if value is SKIP:
                why = "leaves such rows out" if column.missing == "skip" else "has no value to hold yet"
                raise SampleError(
                    f"{where}: column {column.name!r} is missing, and missing={column.missing!r} {why}, so that "
                    "there is no input. Give it a value."
                )
            row += column.look(value)
        return row

    def many(self, columns: Sequence[Sequence[Any]]) -> Array | None:
        """Vectors of many rows, given as columns; `None`, and nothing has changed, where one is not regular."""
        before, parts = self.state(), []
        for column, cells in zip(self._columns, columns, strict=True):
            part = column.many(cells)
            if part is None:
                self.load(before)
                return None
            parts.append(part)
        return np.concatenate(parts, 1)

    def forget(self) -> None:
        """Be as at the beginning."""
        self.load(self._fresh)

    def state(self) -> list[Any]:
        """What is known of the rows before, in values that JSON keeps exactly."""
        return [column.state() for column in self._columns]

    def load(self, state: Sequence[Sequence[Any]]) -> None:
        """Take up what `state` told."""
        for column, mine in zip(self._columns, state, strict=True):
            column.load(mine)


def declare(
    u: Sequence[str],
    categories: Categories | None = None,
    hashed: Mapping[str, int] | None = None,
    missing: Missing = "raise",
    largest: float = math.inf,
) -> Columns:
    """The columns as a user declared them.

    Args:
        u: Their names.
        categories: Those that hold categories.
        hashed: Those whose categories share so many places.
        missing: What a missing cell gets.
        largest: The largest number that is let through.

    Raises:
        ConfigError: Naming the argument that cannot be.

    Example:
        >>> columns = declare(["price", "shop"], categories={"shop": ["north", "south"]}, missing="indicate")
        >>> columns.entries
        ['price', 'price is missing', 'shop=north', 'shop=south']
        >>> columns.write(columns.read(["1.5", "south"], "row 0"))
        [1.5, 0.0, 0.0, 1.0]
        >>> columns.write(columns.read(["", None], "row 1"))
        [1.5, 1.0, 0.0, 0.0]
    """
    categories, hashed = categories or {}, hashed or {}
    by_column = missing if isinstance(missing, Mapping) else {}
    for argument, named in (("categories", categories), ("hashed", hashed), ("missing", by_column)):
        if not isinstance(named, Mapping):
            raise ConfigError(f"{argument}={shown(named)} must go from names of columns to what they hold.")
        for name in named:
            if name not in u:
                raise ConfigError(
                    f"{argument} names {name!r}, which is none of the input columns {shown(list(u))}."
                )
    made: list[Column] = []
    for name in u:
        policy = by_column.get(name, "raise") if isinstance(missing, Mapping) else missing
        if not _is_policy(policy):
            raise ConfigError(
                f"missing={shown(policy)} is not known. Give {', '.join(map(repr, POLICIES))} or a finite "
                "number, or a mapping from names of columns to these."
            )
        if name in categories and name in hashed:
            raise ConfigError(f"{name!r} is in categories and in hashed. Leave it in one of them.")
        if name in categories:
            made.append(Category(name, policy, to_places(categories[name], f"categories[{name!r}]")))
        elif name in hashed:
            made.append(Hashed(name, policy, _count(hashed[name], name)))
        else:
            made.append(Number(name, policy, largest))
    return Columns(made)


def _is_policy(missing: Any) -> bool:
    if isinstance(missing, str):
        return missing in POLICIES
    return isinstance(missing, int | float) and not isinstance(missing, bool) and abs(missing) < math.inf


def _count(count: Any, name: str) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ConfigError(f"hashed[{name!r}]={shown(count)} is no number of places. Give a whole number above 0.")
    return count
