"""Where rows come from: a collection, an iterator, a function that gives them anew, or columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import chain, islice
from typing import Any

from hamlearn.errors import ConfigError, SampleError, StreamError
from hamlearn.streams.units import FIRST
from hamlearn.streams.values import shown

Row = Mapping[str, Any]
Rows = Iterable[Row] | Callable[[], Iterable[Row]] | Mapping[str, Sequence[Any]]
"""Rows, a function that answers them anew, or columns by name."""


class Source:
    """Where the rows come from.

    Attributes:
        once: Whether it can be gone through once only.
        length: How many rows there are, where that is known.
        taken: How many rows of an iterator are gone.
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
        self.taken = 0
        self._put_back: Iterator[Any] | None = None
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
        if self._put_back is not None:
            return self._put_back
        skip = start - self.taken if self.once else start
        rows = self._fresh()
        if isinstance(self._rows, list | tuple):
            rows = islice(self._rows, skip, None)
        else:
            for k in range(skip):
                if next(rows, self) is self:
                    raise StreamError(
                        f"the rows ended after {k} while skipping to row {start}, where the stream had been "
                        "saved. Give it the same rows as when it was saved."
                    )
        return _cells(rows, names, start)

    def put_back(self, rows: Iterator[Any]) -> None:
        """Of an iterator, remember what was read ahead of it."""
        if self.once:
            self._put_back = rows


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
