"""Streams with time stamps: uneven spacing becomes the `tau` of each sample."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, Literal

import numpy as np
import torch

from hamlearn.errors import ConfigError
from hamlearn.sample import Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.blocks import Block, is_dense
from hamlearn.streams.clock import FIRST, Clock, Stamp, Unit, seconds_of
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
            median of the first 32 gaps, which is logged, and kept with the stream's state.
        first: `tau` of the sample that has no gap, the first or, with `gap="after"`, the last; `None` takes
            `Hyper.tau`.
        backwards: What happens where time stands still or runs backwards: `"raise"`, or `"skip"` the sample.
        ties: The time step, in units of time, of a sample whose stamp is that of the one before; the next gap is
            still measured from that stamp. `None`: time stands still there.
        gap: Which gap is the `tau` of a sample: the one `"before"` it, as a learner meets it in a live feed; or
            the one `"after"` it, over which its input is held, τ_k = (t_{k+1} − t_k) / unit. That is for
            recorded data: it has to be known when the next sample comes.

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
    given = {"times": times, "u": u} if target is None else {"times": times, "u": u, "target": target}
    for name, column in given.items():
        if not isinstance(column, Sized) or not isinstance(column, Iterable):
            raise ConfigError(
                f"{name} must be a list, an array or a tensor, got {type(column).__name__}. Give an iterator of "
                "rows with time stamps to from_rows(..., time=...), or a feed to live."
            )
    columns = [column if isinstance(column, _INDEXED) else list(column) for column in given.values()]
    sizes = {name: len(column) for name, column in zip(given, columns, strict=True)}
    if len(set(sizes.values())) > 1:
        raise ConfigError(f"the columns differ in length: {sizes}. Give one entry for each time stamp.")
    return TimedStream(columns, Clock(unit, ties), first, backwards, gap)


class TimedStream(Stream):
    """What `timed` returns. The time steps of all rows are found at once, before the first sample."""

    _n = 0
    _moves, _fixed = ("_n",), ("_gap",)

    def __init__(self, columns: list[Any], clock: Clock, first: float | None, backwards: str, gap: str) -> None:
        self._times, *self._columns = columns
        self._clock, self._first, self._skips, self._gap = clock, first, backwards == "skip", gap
        self._tensors = _arrays(self._columns)
        # The rows that are not left out, and their time steps; -1 if the stamp is bad.
        self._kept: Any = None
        self._taus: Any = None

    @property
    def unit(self) -> float | None:
        """What counts as one unit of time; `None` as long as it has not been found."""
        return self._clock.unit

    @property
    def skipped(self) -> int:
        """Samples left out so far because time stood still or ran backwards."""
        if self._kept is None:
            return 0
        return int(self._kept[self._n] if self._n < len(self._kept) else len(self._times)) - self._n

    @property
    def spec(self) -> Spec:
        """As the first sample looks; the length where nothing is skipped."""
        length = None if self._skips else len(self._times)
        return Spec.of(self._sample(0, None), length) if len(self._times) else Spec(None, None, length)

    def _config(self) -> dict[str, Any]:
        return {**super()._config(), "ties": self._clock.ties}

    def _cursor(self) -> dict[str, Any]:
        return {**super()._cursor(), "unit": self._clock.state()["unit"]}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        super()._seek(cursor)
        self._clock.load_state({"last": None, "unit": cursor["unit"]})
        self._kept = None

    def _find_steps(self) -> None:
        """Find the rows that are not left out, and their time steps."""
        if self._kept is not None:
            return
        seconds = seconds_of(self._times)
        self._clock.find(self._times[: FIRST + 1])
        if self._clock.unit is None:
            # All of the first stamps are one: the first gap that there is.
            self._clock.find(np.unique(seconds[np.isfinite(seconds)])[:2].tolist())
        taus, good = self._clock.steps(seconds)
        late = ~good & (taus <= 0) & np.isfinite(taus)
        taus = np.where(good, taus, -1.0)
        if self._gap == "after":
            taus[good] = np.append(taus[good][1:], math.nan)
        self._kept = np.flatnonzero(~late) if self._skips else np.arange(len(seconds))
        self._taus = taus[self._kept]

    def _block(self, n: int) -> Block | None:
        # Rows of arrays in memory: a block is one indexing, not one for each sample.
        self._find_steps()
        taus = self._taus[self._n : self._n + n]
        bad = np.flatnonzero(taus < 0)
        taus = taus[: bad[0]] if bad.size else taus
        if self._tensors is None or not len(taus):
            return None
        rows = torch.from_numpy(self._kept[self._n : self._n + len(taus)])
        self._n += len(taus)
        # Copied, as samples are that are read one by one: the arrays may be written to before all are learned.
        parts = [column[rows] for column in self._tensors]
        steps = [self._first if tau != tau else tau for tau in taus.tolist()]
        return Block(len(taus), parts[:1], None, parts[1:], None, tau=None if steps == [None] else steps)

    def _samples(self) -> Iterator[Any]:
        self._find_steps()
        while self._n < len(self._kept):
            row, tau = int(self._kept[self._n]), float(self._taus[self._n])
            self._n += 1
            if tau < 0:
                before = seconds_of(self._times[:row])
                self._clock.last = None if np.isnan(before).all() else float(np.nanmax(before))
                error = self._clock.explain(self._times[row], f"sample {row}", "backwards")
                self._clock.last = None
                raise error
            yield self._sample(row, self._first if tau != tau else tau)

    def _sample(self, row: int, tau: float | None) -> Sample:
        u, *target = (to_tensors(column[row]) for column in self._columns)
        return Sample(u, target[0] if target else None, tau)


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
