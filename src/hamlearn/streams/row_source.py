"""Where rows come from: a collection, an iterator, a function that gives them anew, or columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import chain, islice
from typing import Any

from hamlearn.errors import ConfigError, SampleError
from hamlearn.streams.iterables import pass_over, require_ahead
from hamlearn.streams.units import FIRST
from hamlearn.streams.values import shown

Row = Mapping[str, Any]
Rows = Iterable[Row] | Callable[[], Iterable[Row]] | Mapping[str, Sequence[Any]]
"""Rows, a function that answers them anew, or columns by name."""


class Source:
    """Where the rows come from.

    Attributes:
        length: How many rows there are, where that is known.
    """

    def __init__(self, rows: Any) -> None:
        self._columns: dict[str, Any] | None = None
        if isinstance(rows, Mapping):
            self._columns = dict(rows)
            sizes = {name: len(column) for name, column in self._columns.items()}
            if len(set(sizes.values())) != 1:
                raise ConfigError(f"the columns differ in length: {shown(sizes)}. Give one cell for each row.")
        elif not callable(rows) and not isinstance(rows, Iterable):
            raise ConfigError(
                f"{shown(rows)} holds no rows. Give an iterable of mappings, or a mapping of columns."
            )
        self._rows: Any = rows
        self.once = isinstance(rows, Iterator)
        self._given = 0
        self.length = len(next(iter(rows.values()))) if self._columns is not None else _length(rows)

    def header(self, look: bool) -> list[str] | None:
        """Names of the columns in the first rows; of an iterator in its first row, and only if told to look."""
        if self._columns is not None:
            return list(self._columns)
        if self.once and not look:
            return None
        names: dict[str, None] = {}
        first = list(islice(self._fresh(), 1 if self.once else FIRST + 1))
        if self.once:
            self._rows = chain(first, self._rows)
        for k, row in enumerate(first):
            names.update(dict.fromkeys(_mapping(row, k)))
        return list(names)

    def _fresh(self) -> Iterator[Any]:
        return iter(self._rows() if callable(self._rows) else self._rows)

    def cells(self, names: Sequence[str], start: int) -> Iterator[Sequence[Any]]:
        """The cells of the columns `names`, row by row, from row `start` on."""
        if self._columns is not None:
            return islice(zip(*(self._columns[name] for name in names), strict=True), start, None)
        if isinstance(self._rows, list | tuple):
            return _cells(islice(self._rows, start, None), names, start)
        if self.once:
            require_ahead(self._given, start)
            pass_over(self._rows, start - self._given, start)
            return _cells(self._counted(start), names, start)
        rows = self._fresh()
        pass_over(rows, start, start)
        return _cells(rows, names, start)

    def _counted(self, start: int) -> Iterator[Any]:
        self._given = start
        for row in self._rows:
            self._given += 1
            yield row


def _cells(rows: Iterator[Any], names: Sequence[str], start: int) -> Iterator[Sequence[Any]]:
    for k, row in enumerate(rows, start):
        mapping = _mapping(row, k)
        yield [mapping.get(name) for name in names]


def _mapping(row: Any, k: int) -> Row:
    if isinstance(row, Mapping):
        return row
    if isinstance(row, tuple) and hasattr(row, "_asdict"):
        return dict(row._asdict())
    raise SampleError(
        f"row {k} is a {type(row).__name__}, not a mapping from names of columns to cells. Give dictionaries, "
        "or use streams.from_iterable for pairs (u, target)."
    )


def _length(rows: Any) -> int | None:
    return len(rows) if isinstance(rows, Sized) else None
