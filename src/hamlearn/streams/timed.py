"""Streams with time stamps: uneven spacing becomes the `tau` of each sample."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Literal

import numpy as np
import torch

from hamlearn.errors import ConfigError, SampleError, StreamError
from hamlearn.state import Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.units import Unit, ahead, median_gap, tell, unit_or_auto
from hamlearn.streams.values import Spec, number_in, shown, to_tensors

Stamp = Any
"""A number, a `datetime`, a `date`, a `numpy.datetime64`, or a text in ISO format."""


def timed(
    times: Iterable[Stamp],
    u: Iterable[Any],
    target: Iterable[Any] | None = None,
    unit: Unit = "auto",
    first: float | None = None,
    backwards: Literal["raise", "skip"] = "raise",
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
    return TimedStream(times, u, target, seconds, first, backwards)


class TimedStream(Stream):
    """What `timed` returns. `skipped` counts samples left out because time ran backwards."""

    def __init__(
        self,
        times: Iterable[Stamp],
        u: Iterable[Any],
        target: Iterable[Any] | None,
        unit: float | None,
        first: float | None,
        backwards: str,
    ) -> None:
        self._columns: tuple[Iterable[Any], ...] = (times, u) if target is None else (times, u, target)
        self._clock = Clock(unit, first)
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
        self._n = 0
        self.skipped = 0
        self._clock.last = None

    def _cursor(self) -> dict[str, Any]:
        return {"n": self._n, "skipped": self.skipped, **self._clock.state()}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        self._n, self.skipped = int(cursor["n"]), int(cursor["skipped"])
        self._clock.load_state(cursor)

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


class Clock:
    """Turns time stamps into time steps.

    Args:
        unit: What counts as one unit of time; `None` to find it from the data.
        first: The time step of the first sample.
    """

    def __init__(self, unit: float | None, first: float | None) -> None:
        self.unit = unit
        self.first = first
        self.last: float | None = None
        self._finds = unit is None

    def find(self, stamps: Iterable[Stamp]) -> None:
        """Take the median of the first gaps as the unit, where it was left to the data, and say so."""
        if self.unit is None:
            self.unit = median_gap(_valid(stamps))
            if self.unit is not None:
                tell(self.unit)

    def state(self) -> dict[str, float | None]:
        """The last stamp, and the unit that was found."""
        return {"last": self.last, "unit": self.unit if self._finds else None}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken."""
        self.last = None if state["last"] is None else float(state["last"])
        if self._finds:
            self.unit = None if state["unit"] is None else float(state["unit"])

    def advance(
        self, stamp: Stamp, where: str, skip: bool, option: str = "backwards"
    ) -> tuple[float | None, bool]:
        """The time since the last stamp, and whether it is a step forward; `option` is named as the remedy.

        Raises:
            SampleError: Time does not move forward and `skip` is not set, or the stamp is no time.
        """
        now = to_seconds(stamp, where)
        if self.last is None:
            self.last = now
            return self.first, True
        if not now > self.last:
            if skip:
                return None, False
            how = "stands still" if now == self.last else "runs backwards"
            when = "at the time of" if now == self.last else f"{self.last - now:g} before"
            raise SampleError(
                f"time {how} at {where}: {shown(stamp)} comes {when} its predecessor. "
                f'Sort the data by time, or leave such samples out with {option}="skip".'
            )
        if self.unit is None:
            self.find([self.last, now])
        assert self.unit is not None
        tau = (now - self.last) / self.unit
        if not 0.0 < tau < math.inf:
            raise SampleError(
                f"the time step at {where}, {now - self.last:g} in units of {self.unit:g}, is no number that can "
                f'be told. Mend the time stamp, choose another unit, or leave it out with {option}="skip".'
            )
        self.last = now
        return tau, True

    def advance_many(self, stamps: Sequence[Stamp]) -> list[float | None] | None:
        """The same for many stamps at once; `None`, and nothing has changed, where one wants a closer look."""
        now = _plain_seconds(stamps)
        if now is None or (self.unit is None and (self.last is not None or len(now) > 1)):
            return None
        before = now if self.last is None else np.concatenate([[self.last], now])
        gaps = np.diff(before)
        # Nobody needs to hear that a quotient is no number: the row is read by itself then, and named.
        with np.errstate(all="ignore"):
            taus = gaps / self.unit if self.unit is not None else gaps
        if not bool(((gaps > 0) & (taus > 0) & np.isfinite(taus)).all()):
            return None
        first: list[float | None] = [self.first] if self.last is None else []
        self.last = float(now[-1])
        return [*first, *taus.tolist()]


def _plain_seconds(stamps: Sequence[Stamp]) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """Time stamps as numbers, where all are plain numbers, or all datetimes or texts of them."""
    try:
        if any(type(stamp) not in (int, float, str) or (type(stamp) is str and "_" in stamp) for stamp in stamps):
            raise TypeError
        seconds = np.array(list(map(float, stamps)))
    except (TypeError, ValueError, OverflowError):
        try:
            seconds = np.array([_since_epoch(_dated(stamp)) for stamp in stamps])
        except (TypeError, ValueError, OverflowError):
            return None
    return seconds if bool(np.isfinite(seconds).all()) else None


def _dated(stamp: Stamp) -> datetime:
    # A text such as 20240101 is a number.
    if isinstance(stamp, str) and stamp[4:5] == "-":
        return datetime.fromisoformat(stamp)
    if isinstance(stamp, datetime):
        return stamp
    raise TypeError


def _since_epoch(stamp: datetime) -> float:
    # Without a time zone, UTC: local time would jump where clocks are put back.
    aware = stamp if stamp.tzinfo else stamp.replace(tzinfo=_UTC)
    return (aware - _EPOCH) / timedelta(seconds=1)


def _valid(stamps: Iterable[Stamp]) -> Iterator[float]:
    for stamp in stamps:
        try:
            yield to_seconds(stamp, "")
        except SampleError:
            # It is named when its turn comes.
            continue


def to_seconds(stamp: Stamp, where: str) -> float:
    """A time stamp as a number; datetimes count in seconds."""
    if type(stamp) in (int, float) and -1e300 < stamp < 1e300:
        return float(stamp)
    try:
        if isinstance(stamp, str):
            try:
                stamp = number_in(stamp)
            except ValueError:
                stamp = datetime.fromisoformat(stamp.strip())
        if isinstance(stamp, datetime):
            seconds = _since_epoch(stamp)
        elif isinstance(stamp, date):
            seconds = float((stamp - _EPOCH.date()).days * 86_400)
        elif isinstance(stamp, np.datetime64):
            # Not a time, NaT, would become the smallest whole number there is.
            known = not np.isnat(stamp)
            seconds = int(stamp.astype("datetime64[ns]").astype(np.int64)) / 1e9 if known else math.nan
        elif isinstance(stamp, bool):
            raise TypeError("a truth value")
        else:
            seconds = float(stamp)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise SampleError(
            f"{shown(stamp)} at {where} is no time stamp. Give a number, a datetime, or a text in ISO format."
        ) from error
    if not math.isfinite(seconds):
        raise SampleError(f"the time stamp at {where} is {seconds}. Leave the sample out, or give it a time.")
    return seconds


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
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_UTC = _EPOCH.tzinfo
