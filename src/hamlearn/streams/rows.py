"""Streams over rows that are mappings, or over columns, in memory or as they come."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal

import torch

from hamlearn.errors import ConfigError, SampleError
from hamlearn.streams.base import END
from hamlearn.streams.blocks import Block
from hamlearn.streams.encode import Categories, Missing
from hamlearn.streams.fields import is_missing, require_columns
from hamlearn.streams.row_source import Rows, Source
from hamlearn.streams.table import TableStream, others_than
from hamlearn.streams.units import Unit, ahead, raising
from hamlearn.streams.values import Spec


def from_rows(
    rows: Rows,
    u: str | Sequence[str] | None = None,
    target: str | Sequence[str] | None = None,
    time: str | None = None,
    classes: Sequence[Any] | int | None = None,
    missing: Missing = "raise",
    bad: Literal["raise", "skip"] = "raise",
    time_format: str | None = None,
    unit: Unit = "auto",
    dtype: torch.dtype | None = None,
    categories: Categories | None = None,
    hashed: Mapping[str, int] | None = None,
    id: str | None = None,
    ties: float | None = None,
) -> RowsStream:
    """A stream over rows, each a mapping from names of columns to cells; `csv` says what columns may hold.

    Args:
        rows: A collection or an iterator of mappings, a function that returns a fresh iterator for each pass, or a
            mapping from names to columns of one length. A cell that is `None`, NaN, or not there, is missing.
        u: The input columns; `None`: all that are neither `target`, `time` nor `id`, as the first rows have them.
        target: The target column, or several.
        time: The column of time stamps: numbers, datetimes, or texts of them.
        classes: Names of the classes of the target column, in order; or how many may be found on the way.
        missing: What a missing input cell gets: `"raise"`, `"skip"`, `"hold"`, `"mean"`, `"indicate"` or a
            number; or a mapping from names of columns to these.
        bad: What a bad row gets: `"raise"` or `"skip"`.
        time_format: As in `datetime.strptime`, for texts.
        unit: What counts as one unit of time, as in `csv`.
        dtype: Of inputs and numeric targets; `None` is torch's default.
        categories: Input columns of categories: for each, the categories in order or how many may be found.
        hashed: Input columns of many categories, which share so many entries.
        id: The column of names by which labels that come later call their samples. A row without a target is
            then a sample that waits for its label, and a row with an id, a target and no inputs is that label,
            which takes no time.
        ties: The time step, in units of time, of a row with the time stamp of the row before it, as in `csv`.

    An iterator, which can be iterated over only once, simply continues in a second pass.

    Example:
        >>> rows = [{"price": 2.0, "shop": "north", "sold": "yes"}, {"price": None, "shop": "west", "sold": "no"}]
        >>> stream = from_rows(rows, target="sold", classes=2, categories={"shop": 3}, missing="indicate")
        >>> [(sample.u.tolist(), sample.target.item()) for sample in stream]
        [([2.0, 0.0, 1.0, 0.0, 0.0], 0), ([2.0, 1.0, 0.0, 1.0, 0.0], 1)]
        >>> stream.classes
        ['yes', 'no']
    """
    source = Source(rows)
    header = source.header(look=u is None)
    if u is None:
        u = others_than(header or [], target, time, id)
        if header == []:
            raise ConfigError("there are no rows, so that nobody knows the input columns. Name them by u.")
    columns = (u, target, time, classes, categories, hashed, missing, bad, time_format, unit, dtype, id, ties)
    return RowsStream(source, header, columns)


class RowsStream(TableStream):
    """What `from_rows` returns. `skipped` counts the rows that were left out."""

    _n = 0
    _moves = ("_n", *TableStream._moves)

    def __init__(self, source: Source, header: list[str] | None, columns: tuple[Any, ...]) -> None:
        super().__init__(*columns)
        self._source, self._header = source, header or self._used
        self._reading: Iterator[Any] | None = None
        self._pulled: deque[Sequence[Any]] = deque()
        if header:
            require_columns(header, self._used, "the table")
        self._rewind()

    @property
    def spec(self) -> Spec:
        """Vectors of the columns; the length where it is known and no row is left out."""
        spec = super().spec
        whole = self._bad == "raise" and not self._columns.skips
        return Spec(spec.u, spec.target, self._source.length if whole else None)

    @property
    def replayable(self) -> bool:
        """Whether it is made of something else than an iterator."""
        return not self._source.once

    def _rows(self) -> Iterator[Sequence[Any]]:
        rows = self._source.cells(self._used, self._n)
        if self._time is not None and self._clock.unit is None:
            seen, rows = ahead(rows)
            stamps = (row[-1] for row in seen if self._id is None or not is_missing(row[-1]))
            self._clock.find(self._readable(stamps))
        return rows

    def _readable(self, stamps: Iterable[Any]) -> Iterator[Any]:
        for stamp in stamps:
            try:
                yield self._stamp(stamp, "")
            except SampleError:
                # The row is named when its turn comes.
                return

    def _begin(self) -> None:
        # Rows that were read of an iterator, and not made samples of, still come.
        if self.replayable or self._resumed:
            self._reading = None
            self._pulled.clear()
        super()._begin()

    def _samples(self) -> Iterator[Any]:
        while (cells := self._pulled.popleft() if self._pulled else next(self._read(), END)) is not END:
            self._n += 1
            try:
                sample = self._sample(cells, f"row {self._n - 1}")
            except SampleError:
                if self._bad == "raise":
                    # It comes again after a resume; an iterator goes on behind it.
                    self._n -= self.replayable
                    raise
                self.skipped += 1
                continue
            if sample is not None:
                yield sample

    def _block(self, n: int) -> Block | None:
        if len(self._pulled) < n:
            self._pull(n - len(self._pulled))
        taken = list(islice(self._pulled, n))
        block = self._block_of(list(zip(*taken, strict=True)), len(taken)) if taken else None
        if block is not None:
            self._n += len(taken)
            for _ in taken:
                self._pulled.popleft()
        return block

    def _read(self) -> Iterator[Any]:
        if self._reading is None:
            self._reading = self._rows()
        return self._reading

    def _pull(self, n: int) -> None:
        """Read `n` rows; what goes wrong after some of them does so when their turn has come."""
        rows = self._read()
        try:
            for row in islice(rows, n):
                self._pulled.append(row)
        except Exception as error:
            if not self._pulled:
                self._reading = None
                raise
            self._reading = raising(error)
