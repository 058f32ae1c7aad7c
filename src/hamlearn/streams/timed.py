"""Streams with time stamps: uneven spacing becomes the `tau` of each sample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, zip_longest
from typing import Any, Literal

import numpy as np
import torch

from hamlearn.errors import ConfigError, StreamError
from hamlearn.sample import Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.blocks import Block, is_dense
from hamlearn.streams.clock import Clock, Stamp, seconds_of, to_seconds
from hamlearn.streams.items import Items
from hamlearn.streams.units import FIRST, Unit
from hamlearn.streams.values import Spec, native, to_tensors

_INDEXED = (list, tuple, np.ndarray, torch.Tensor, range)


def timed(
    times: Iterable[Stamp],
    u: Iterable[Any],
    target: Iterable[Any] | None = None,
    unit: Unit = "auto",
    first: float | None = None,
    backwards: Literal["raise", "skip"] = "raise",
    ties: float | None = None,
    gap: Literal["before", "after"] = "before",
) -> Stream:
    """A stream whose samples carry the true time since the one before, τ_k = (t_k − t_{k−1}) / unit.

    Args:
        times: Time stamps: numbers, datetimes, or texts in ISO format.
        u: Inputs, one for each time stamp.
        target: Targets, `None` in it where there is none.
        unit: What counts as one unit of time: a number (of seconds, for datetimes) or a `timedelta`. `"auto"`: the
            median of the first 32 gaps, which is logged, and kept with the stream's state. Where `times` is an
            iterator, so many rows are then read before the first sample is yielded.
        first: `tau` of the sample that has no gap, the first or, with `gap="after"`, the last; `None` takes
            `Hyper.tau`.
        backwards: What happens where time stands still or runs backwards: `"raise"`, or `"skip"` the sample.
        ties: The time step, in units of time, of a sample whose stamp is that of the one before; the next gap is
            still measured from that stamp. `None`: time stands still there.
        gap: Which gap is the `tau` of a sample: the one `"before"` it, as a learner meets it in a live feed; or
            the one `"after"` it, over which its input is held, τ_k = (t_{k+1} − t_k) / unit. That is for
            recorded data: it has to be known when the next sample comes. Each sample waits for its successor.

    Example:
        >>> from datetime import datetime, timedelta
        >>> days = [datetime(2024, 1, 1), datetime(2024, 1, 2), datetime(2024, 1, 5)]
        >>> [sample.tau for sample in timed(days, [[0.1], [0.2], [0.3]], unit=timedelta(days=1))]
        [None, 1.0, 3.0]
        >>> [sample.tau for sample in timed(days, [[0.1], [0.2], [0.3]], unit=timedelta(days=1), gap="after")]
        [1.0, 3.0, None]
    """
    if backwards not in ("raise", "skip"):
        raise ConfigError(f'backwards={backwards!r} is not known. Give "raise" or "skip".')
    if gap not in ("before", "after"):
        raise ConfigError(f'gap={gap!r} is not known. Give "before" or "after".')
    columns = {"times": times, "u": u, "target": target}
    sizes = {name: len(column) for name, column in columns.items() if isinstance(column, _INDEXED)}
    if len(set(sizes.values())) > 1:
        raise ConfigError(f"the columns differ in length: {sizes}. Give one entry for each time stamp.")
    return TimedStream(
        [times, u] if target is None else [times, u, target], Clock(unit, ties), first, backwards, gap
    )


class TimedStream(Stream):
    """What `timed` returns. `skipped` counts samples left out because time ran backwards."""

    _n = skipped = 0
    _moves = ("_n", "skipped")
    _fixed = ("_gap",)

    def __init__(
        self, columns: list[Iterable[Any]], clock: Clock, first: float | None, backwards: str, gap: str
    ) -> None:
        self._columns, self._clock, self._first = columns, clock, first
        self._skips, self._gap = backwards == "skip", gap
        self._is_indexed = all(isinstance(column, _INDEXED) for column in columns)
        self._seen: Sample | None = None
        self._rewind()

    @property
    def unit(self) -> float | None:
        """What counts as one unit of time; `None` as long as it has not been found."""
        return self._clock.unit

    @property
    def spec(self) -> Spec:
        """As the first sample looks; the length where all columns have one and nothing is skipped."""
        if self._seen is None and self._is_indexed:
            self._seen = next((_sample(row, None) for row in zip(*self._columns, strict=False)), None)
        known = self._is_indexed and not self._skips
        length = len(self._columns[0]) if known else None  # type: ignore[arg-type]
        return Spec(None, None, length) if self._seen is None else Spec.of(self._seen, length)

    def _rewind(self) -> None:
        super()._rewind()
        self._clock.last = None

    def _config(self) -> dict[str, Any]:
        return {**super()._config(), "ties": self._clock.ties}

    def _cursor(self) -> dict[str, Any]:
        clock = self._clock.state()
        # With gap="after", a pass begins with the row that waits for its successor.
        return {**super()._cursor(), **clock, "last": None if self._gap == "after" else clock["last"]}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        super()._seek(cursor)
        self._clock.load_state(cursor)

    def _block(self, n: int) -> Block | None:
        # Rows of arrays in memory: a block is one indexing and one subtraction, not one of each per sample.
        rows = _arrays(self._columns[1:]) if self._is_indexed and self._gap == "before" else None
        times: Any = self._columns[0]
        if rows is None or self._n == len(times):
            return None
        stop = min(self._n + n, len(times))
        if self._clock.unit is None:
            self._clock.find(times[self._n : self._n + FIRST + 1])
        seconds = seconds_of(times[self._n : stop])
        taus, late = self._clock.steps(seconds)
        if late.any() or np.isnan(seconds).any():
            # One of them is left out, or an error says which it is.
            return None
        self._clock.commit(seconds)
        # Copied, as samples are that are read one by one: the arrays may be written to before all are learned.
        parts = [column[self._n : stop].clone() for column in rows]
        block = Block(stop - self._n, parts[:1], None, parts[1:], None)
        steps = [self._first if tau != tau else tau for tau in taus.tolist()]
        block.tau = None if steps == [None] else steps
        self._n = stop
        return block

    def _samples(self) -> Iterator[Any]:
        rows = Items(self._rows())
        if self._clock.unit is None:
            self._clock.find([row[0] for row in rows.peek(FIRST + 1)])
        return self._after(rows) if self._gap == "after" else self._before(rows)

    def _before(self, rows: Iterable[Any]) -> Iterator[Sample]:
        for row in rows:
            self._n += 1
            tau, ok = self._step(row[0], self._n - 1)
            if ok:
                sample = _sample(row, tau)
                self._seen = self._seen or sample
                yield sample
            else:
                self.skipped += 1

    def _after(self, rows: Iterable[Any]) -> Iterator[Sample]:
        """Samples that wait for the time stamp of the next one. The cursor stands at the row that waits."""
        waiting, skipped, end = None, self.skipped, self._n
        self._clock.last = None
        for place, row in enumerate(rows, self._n):
            tau, ok = self._step(row[0], place)
            end = place + 1
            if not ok:
                skipped += 1
            elif waiting is None:
                waiting = _sample(row, None)
            else:
                self._n, self.skipped = place, skipped
                sample, waiting = replace(waiting, tau=tau), _sample(row, None)
                yield sample
        if waiting is not None:
            self._n, self.skipped = end, skipped
            yield replace(waiting, tau=self._first)

    def _step(self, stamp: Stamp, place: int) -> tuple[float | None, bool]:
        """The time since the last stamp, and whether it is a step forward."""
        seconds = np.array([to_seconds(stamp, f"sample {place}")])
        taus, late = self._clock.steps(seconds)
        if late[0]:
            if not self._skips:
                raise self._clock.explain(stamp, f"sample {place}", "backwards")
            return None, False
        self._clock.commit(seconds)
        return self._first if taus[0] != taus[0] else float(taus[0]), True

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows from the cursor on."""
        columns = [_from(column, self._n) for column in self._columns]
        for place, row in enumerate(zip_longest(*columns, fillvalue=_ENDED), self._n):
            if any(entry is _ENDED for entry in row):
                raise StreamError(
                    f"times, u and target do not end together: at sample {place} some have ended and some have "
                    "not. Give one entry for each time stamp."
                )
            yield row


_ENDED: Any = object()


def _sample(row: Sequence[Any], tau: float | None) -> Sample:
    return Sample(to_tensors(row[1]), to_tensors(row[2]) if len(row) > 2 else None, tau)


def _from(column: Iterable[Any], n: int) -> Iterator[Any]:
    """The entries of a column from number `n` on."""
    if isinstance(column, torch.Tensor | np.ndarray):
        # One by one: to iterate over a tensor makes a tensor of every row at once.
        return (column[k] for k in range(n, len(column)))
    return islice(column, n, None)


def _arrays(columns: Sequence[Iterable[Any]]) -> list[torch.Tensor] | None:
    """Columns as tensors, in their own memory if that can be; `None` if rows have to be read one by one."""
    tensors = []
    for column in columns:
        if type(column) is torch.Tensor and is_dense(column) and column.dim() and not column.requires_grad:
            tensors.append(column)
        elif type(column) is np.ndarray and column.ndim and column.dtype.kind in "biuf":
            try:
                tensors.append(torch.as_tensor(native(column)))
            except (TypeError, ValueError):
                # PyTorch has no such type, or it runs backwards through its memory.
                return None
        else:
            return None
    return tensors
