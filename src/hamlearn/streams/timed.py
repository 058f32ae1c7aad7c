"""Streams with time stamps: uneven spacing becomes the `tau` of each sample."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from hamlearn.errors import ConfigError, StreamError
from hamlearn.sample import Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.blocks import Block, is_dense
from hamlearn.streams.clock import Clock, Stamp
from hamlearn.streams.dates import since_1970
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
) -> Stream:
    """A stream whose samples carry the true time since the one before, τ_k = (t_k − t_{k−1}) / unit.

    Args:
        times: Time stamps: numbers, datetimes, or texts in ISO format.
        u: Inputs, one for each time stamp.
        target: Targets, `None` in it where there is none.
        unit: What counts as one unit of time: a number (of seconds, for datetimes) or a `timedelta`. `"auto"`: the
            median of the first 32 gaps, which is logged, and kept with the stream's state. Where `times` is an
            iterator, so many rows are then read before the first sample is yielded.
        first: `tau` of the first sample; `None` takes `Hyper.tau`.
        backwards: What happens where time stands still or runs backwards: `"raise"`, or `"skip"` the sample.
        ties: The time step, in units of time, of a sample whose stamp is that of the one before; the next gap is
            still measured from that stamp. `None`: time stands still there.

    Example:
        >>> from datetime import datetime, timedelta
        >>> days = [datetime(2024, 1, 1), datetime(2024, 1, 2), datetime(2024, 1, 5)]
        >>> [sample.tau for sample in timed(days, [[0.1], [0.2], [0.3]], unit=timedelta(days=1))]
        [None, 1.0, 3.0]
    """
    seconds = unit_or_auto(unit)
    if backwards not in ("raise", "skip"):
        raise ConfigError(f'backwards={backwards!r} is not known. Give "raise" or "skip".')
    columns = {"times": times, "u": u, "target": target}
    sizes = {name: len(column) for name, column in columns.items() if isinstance(column, _INDEXED)}
    if len(set(sizes.values())) > 1:
        raise ConfigError(f"the columns differ in length: {sizes}. Give one entry for each time stamp.")
    return TimedStream(times, u, target, seconds, first, backwards, ties)


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
    ) -> None:
        self._columns: tuple[Iterable[Any], ...] = (times, u) if target is None else (times, u, target)
        self._clock = Clock(unit, first, ties)
        self._backwards = backwards
        self._seen: Sample | None = None
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
            self._seen = None if row is None else _sample(row, None)
        known = indexed and self._backwards == "raise"
        length = len(self._columns[0]) if known else None  # type: ignore[arg-type]
        return Spec(None, None, length) if self._seen is None else Spec.of(self._seen, length)

    def _rewind(self) -> None:
        super()._rewind()
        self._clock.last = None

    def _config(self) -> dict[str, Any]:
        return {"ties": self._clock.ties}

    def _cursor(self) -> dict[str, Any]:
        return {**super()._cursor(), **self._clock.state()}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        super()._seek(cursor)
        self._clock.load_state(cursor)

    def _blocks(self, size: Callable[[], int], turn: int) -> Iterator[Block]:
        # Rows of arrays in memory: a block is one indexing and one subtraction, not one of each per sample.
        times, rows = self._columns[0], _arrays(self._columns[1:])
        while rows is not None and isinstance(times, _INDEXED):
            self._check_turn(turn)
            if self._n == len(times):
                return
            stop = min(self._n + size(), len(times))
            if self._clock.unit is None:
                self._clock.find(times[self._n : self._n + FIRST + 1])
            taus = self._clock.advance_many(_stamps(times[self._n : stop]))
            if taus is None:
                # One of them wants a closer look: it is left out, or named.
                break
            # Copied, as samples are that are read one by one: the arrays may be written to before all are learned.
            parts = [column[self._n : stop].clone() for column in rows]
            block = Block(len(taus), parts[:1], None, parts[1:], None)
            block.tau = None if all(tau is None for tau in taus) else taus
            self._n = stop
            if self._seen is None:
                self._seen = block.sample(0)
            yield block
        yield from super()._blocks(size, turn)

    def _samples(self) -> Iterator[Sample]:
        columns = [itertools.islice(column, self._n, None) for column in self._columns]
        rows = _zip(columns, self._n)
        if self._clock.unit is None:
            seen, rows = ahead(rows)
            self._clock.find(row[0] for row in seen)
        for row in rows:
            self._n += 1
            tau, ok = self._clock.advance(row[0], f"sample {self._n - 1}", self._backwards == "skip")
            if not ok:
                self.skipped += 1
                continue
            sample = _sample(row, tau)
            if self._seen is None:
                self._seen = sample
            yield sample


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
            # Which of them is too far away is told when its turn comes.
            return list(times)
    plain = isinstance(times, torch.Tensor) or (isinstance(times, np.ndarray) and times.dtype.kind != "M")
    return times.tolist() if plain else list(times)


def _sample(row: Sequence[Any], tau: float | None) -> Sample:
    return Sample(to_tensors(row[1]), to_tensors(row[2]) if len(row) > 2 else None, tau)


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
