"""Streams with time stamps: uneven spacing becomes the `tau` of each sample."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from hamlearn.errors import ConfigError, StreamError
from hamlearn.sample import Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.blocks import Block, is_dense
from hamlearn.streams.clock import Clock, Stamp, since_1970
from hamlearn.streams.units import FIRST, Unit, ahead, unit_or_auto
from hamlearn.streams.values import Spec, native, to_tensors


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
    seconds = unit_or_auto(unit)
    if backwards not in ("raise", "skip"):
        raise ConfigError(f'backwards={backwards!r} is not known. Give "raise" or "skip".')
    if gap not in ("before", "after"):
        raise ConfigError(f'gap={gap!r} is not known. Give "before" or "after".')
    columns = {"times": times, "u": u, "target": target}
    sizes = {name: len(column) for name, column in columns.items() if isinstance(column, _INDEXED)}
    if len(set(sizes.values())) > 1:
        raise ConfigError(f"the columns differ in length: {sizes}. Give one entry for each time stamp.")
    return TimedStream(times, u, target, seconds, first, backwards, ties, gap)


class TimedStream(Stream):
    """What `timed` returns. `skipped` counts samples left out because time ran backwards."""

    _n = skipped = 0
    _moves = ("_n", "skipped")

    def __init__(
        self,
        times: Iterable[Stamp],
        u: Iterable[Any],
        target: Iterable[Any] | None,
        unit: float | None,
        first: float | None,
        backwards: str,
        ties: float | None,
        gap: str,
    ) -> None:
        self._columns: tuple[Iterable[Any], ...] = (times, u) if target is None else (times, u, target)
        self._clock = Clock(unit, first, ties)
        self._backwards, self._gap = backwards, gap
        self._seen: Sample | None = None
        self._arrays: tuple[list[torch.Tensor] | None] | None = None
        self._rewind()

    @property
    def unit(self) -> float | None:
        """What counts as one unit of time; `None` as long as it has not been found."""
        return self._clock.unit

    @property
    def spec(self) -> Spec:
        """As the first sample looks; the length where all columns have one and nothing is skipped."""
        indexed = all(isinstance(column, _INDEXED) for column in self._columns)
        if self._seen is None and indexed:
            row = next(zip(*self._columns, strict=False), None)
            if row is not None:
                self._sample(row, None)
        known = indexed and self._backwards == "raise"
        length = len(self._columns[0]) if known else None  # type: ignore[arg-type]
        return Spec(None, None, length) if self._seen is None else Spec.of(self._seen, length)

    def _rewind(self) -> None:
        super()._rewind()
        self._clock.last = None

    def _config(self) -> dict[str, Any]:
        return {"ties": self._clock.ties, "gap": self._gap}

    def _cursor(self) -> dict[str, Any]:
        clock = self._clock.state()
        return {**super()._cursor(), **clock, "last": None if self._gap == "after" else clock["last"]}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        super()._seek(cursor)
        self._clock.load_state(cursor)

    def _block(self, n: int) -> Block | None:
        # Rows of arrays in memory: a block is one indexing and one subtraction, not one of each per sample.
        times, rows = self._columns[0], self._tensors()
        if rows is None or self._n == len(times):  # type: ignore[arg-type]
            return None
        stop = min(self._n + n, len(times))  # type: ignore[arg-type]
        if self._clock.unit is None:
            self._clock.find(times[self._n : self._n + FIRST + 1])  # type: ignore[index]
        taus = self._taus(times, self._n, stop)
        if taus is None:
            # One of them wants a closer look: it is left out, or an error says which it is.
            return None
        # Copied, as samples are that are read one by one: the arrays may be written to before all are learned.
        parts = [column[self._n : stop].clone() for column in rows]
        block = Block(stop - self._n, parts[:1], None, parts[1:], None)
        block.tau = None if all(tau is None for tau in taus) else taus
        self._n = stop
        if self._seen is None:
            self._seen = block.sample(0)
        return block

    def _taus(self, times: Any, start: int, stop: int) -> list[float | None] | None:
        """The time steps of rows of an array; `None` where one of them is none."""
        if self._gap == "before":
            return self._clock.advance_many(_stamps(times[start:stop]))
        self._clock.last = None
        taus = self._clock.advance_many(_stamps(times[start : stop + 1]))
        self._clock.last = None
        if taus is None:
            return None
        return taus[1:] if stop < len(times) else [*taus[1:], self._clock.first]

    def _tensors(self) -> list[torch.Tensor] | None:
        """Inputs and targets as tensors; `None` where rows are to be looked at one by one."""
        if self._arrays is None:
            indexed = isinstance(self._columns[0], _INDEXED)
            self._arrays = (_arrays(self._columns[1:]) if indexed else None,)
        return self._arrays[0]

    def _samples(self) -> Iterator[Any]:
        columns = [_from(column, self._n) for column in self._columns]
        rows = _zip(columns, self._n)
        if self._clock.unit is None:
            seen, rows = ahead(rows)
            self._clock.find(row[0] for row in seen)
        return self._held(rows) if self._gap == "after" else self._timed(rows)

    def _timed(self, rows: Iterable[Any]) -> Iterator[Sample]:
        for row in rows:
            self._n += 1
            tau, ok = self._clock.advance(row[0], f"sample {self._n - 1}", self._backwards == "skip")
            if ok:
                yield self._sample(row, tau)
            else:
                self.skipped += 1

    def _held(self, rows: Iterable[Any]) -> Iterator[Sample]:
        """Samples that wait for the time stamp of the next one. The cursor stands at the row that waits."""
        before, clock, skipped, end = None, self._clock, self.skipped, self._n
        # Resumed, a pass begins with the row that waits, before which there is none.
        clock.last = None
        for place, row in enumerate(rows, self._n):
            tau, ok = clock.advance(row[0], f"sample {place}", self._backwards == "skip")
            end = place + 1
            if not ok:
                skipped += 1
            elif before is None:
                before = row
            else:
                self._n, self.skipped = place, skipped
                sample, before = self._sample(before, tau), row
                yield sample
        if before is not None:
            self._n, self.skipped = end, skipped
            yield self._sample(before, clock.first)

    def _sample(self, row: Sequence[Any], tau: float | None) -> Sample:
        sample = Sample(to_tensors(row[1]), to_tensors(row[2]) if len(row) > 2 else None, tau)
        if self._seen is None:
            self._seen = sample
        return sample


def _arrays(columns: Sequence[Iterable[Any]]) -> list[torch.Tensor] | None:
    """Columns as tensors, in their own memory if that can be; `None` where rows are to be looked at one by one."""
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


def _stamps(times: Any) -> Sequence[Stamp]:
    """Time stamps as Python has them; dates of NumPy's in seconds."""
    if isinstance(times, np.ndarray) and times.dtype.kind == "M" and not np.isnat(times).any():
        try:
            times = since_1970(times)
        except OverflowError:
            # The one that is too far away raises an error when its turn comes.
            return list(times)
    plain = isinstance(times, torch.Tensor) or (isinstance(times, np.ndarray) and times.dtype.kind != "M")
    return times.tolist() if plain else list(times)


def _from(column: Iterable[Any], n: int) -> Iterator[Any]:
    """The entries of a column from number `n` on."""
    if isinstance(column, torch.Tensor | np.ndarray):
        # One by one: to iterate over a tensor makes a tensor of every row at once.
        return (column[k] for k in range(n, len(column)))
    return itertools.islice(column, n, None)


def _zip(columns: Sequence[Iterator[Any]], n: int) -> Iterator[tuple[Any, ...]]:
    for k, row in enumerate(itertools.zip_longest(*columns, fillvalue=_ENDED)):
        if any(entry is _ENDED for entry in row):
            raise StreamError(
                f"times, u and target do not end together: at sample {n + k} some have ended and some "
                "have not. "
                "Give one entry for each time stamp."
            )
        yield row


_ENDED = object()
_INDEXED = (list, tuple, np.ndarray, torch.Tensor, range)
