"""Time stamps to time steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from itertools import islice
from typing import Any

import numpy as np

from hamlearn.errors import ConfigError, SampleError
from hamlearn.streams.fields import Mask
from hamlearn.streams.moments import Array
from hamlearn.streams.units import FIRST, median_gap, tell
from hamlearn.streams.values import number_in, shown

Stamp = Any
"""A number, a `datetime`, a `date`, a `numpy.datetime64`, or a text in ISO format."""


class Clock:
    """Turns time stamps into time steps.

    Args:
        unit: What counts as one unit of time; `None` to find it from the data.
        first: The time step of the first sample.
        ties: The time step of a sample whose stamp is that of its predecessor; `None`: there may be none.

    Raises:
        ConfigError: `ties` is no time step.
    """

    def __init__(self, unit: float | None, first: float | None, ties: float | None = None) -> None:
        if ties is not None and (isinstance(ties, bool) or not 0.0 < ties < math.inf):
            raise ConfigError(
                f"ties={ties!r} is no time step. Give a positive number of units of time, such as 0.01, or None "
                "to refuse equal time stamps."
            )
        self.unit = unit
        self.first = first
        self.ties = None if ties is None else float(ties)
        self.last: float | None = None
        self._finds = unit is None

    def find(self, stamps: Iterable[Stamp]) -> None:
        """Take the median of the first gaps as the unit, where it was left to the data, and say so."""
        if self.unit is None:
            valid = list(islice(_valid(stamps), FIRST + 1))
            self.unit = median_gap(to_seconds(stamp, "") for stamp in valid)
            if self.unit is not None:
                tell(self.unit, _is_date(valid[0]))

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
        if now == self.last and self.ties is not None:
            return self.ties, True
        if not now > self.last:
            if skip:
                return None, False
            raise (
                _still(stamp, where, option) if now == self.last else _back(stamp, where, option, self.last - now)
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

    def steps(self, stamps: Array, rows: Mask) -> tuple[Array, Mask]:
        """The time steps of many stamps in seconds, and which of them do not move forward; nothing changes.

        Args:
            stamps: Seconds.
            rows: Which of them count; the others are passed over.

        The step of the first stamp of all is NaN.
        """
        taus, late = np.full(len(stamps), math.nan), np.zeros(len(stamps), dtype=bool)
        index = np.flatnonzero(rows)
        now = stamps[index]
        # A stamp that does not move forward never exceeds those before it, so that they alone give the maximum.
        before = np.maximum.accumulate(np.concatenate([[-math.inf if self.last is None else self.last], now]))[:-1]
        with np.errstate(all="ignore"):
            gaps = now - before
            steps = gaps / self._unit_of(gaps)
        tied = gaps == 0
        if self.ties is not None:
            steps[tied] = self.ties
        first = np.isneginf(before)
        late[index] = ~first & (~(steps > 0) | (gaps < 0) | (tied if self.ties is None else False))
        overflows = np.flatnonzero(~first & ~late[index] & ~np.isfinite(steps))
        if overflows.size:
            # Only the first: it is passed over, and those after it are measured from the stamp before it.
            late[index[overflows[0]]] = True
        taus[index] = np.where(first, math.nan, steps)
        return taus, late

    def commit(self, stamps: Array) -> None:
        """Go on after these stamps, which moved forward."""
        if self.unit is None and len(stamps):
            base = float(stamps[0]) if self.last is None else self.last
            ahead = stamps[stamps > base]
            if ahead.size:
                self.find([base, float(ahead[0])])
        if len(stamps):
            self.last = float(stamps[-1])

    def _unit_of(self, gaps: Array) -> float:
        """The unit of time; if it is not known yet, the first gap."""
        if self.unit is not None:
            return self.unit
        forward = gaps[(gaps > 0) & np.isfinite(gaps)]
        return float(forward[0]) if forward.size else math.nan

    def advance_many(self, stamps: Sequence[Stamp]) -> list[float | None] | None:
        """The same for many stamps at once; `None`, and nothing has changed, if one does not move forward."""
        now = seconds_of(stamps)
        taus, late = self.steps(now, np.ones(len(now), dtype=bool))
        if late.any() or np.isnan(now).any():
            return None
        first = self.last is None
        self.commit(now)
        return [self.first if first and k == 0 else tau for k, tau in enumerate(taus.tolist())]


def _still(stamp: Stamp, where: str, option: str) -> SampleError:
    return SampleError(
        f"time stands still at {where}: it has the time stamp of its predecessor, {shown(stamp)}, or one that is "
        "less than a quarter of a microsecond away, which dates cannot tell. Let such samples follow after a "
        "fixed step, for example ties=0.01 (units of time), give stamps of a finer resolution, do without time "
        f'stamps, or leave such samples out with {option}="skip".'
    )


def _back(stamp: Stamp, where: str, option: str, by: float) -> SampleError:
    return SampleError(
        f"time runs backwards at {where}: {shown(stamp)} comes {by:g} before its predecessor. Sort the data by "
        "time; if these are local times and the clock was put back, give them in UTC or with their offset "
        f'(2024-10-27T02:30+02:00); or leave such samples out with {option}="skip".'
    )


def seconds_of(stamps: Sequence[Stamp]) -> Array:
    """Many time stamps as seconds; NaN where one is not a time.

    Example:
        >>> seconds_of([1.5, "1970-01-02", "soon", None]).tolist()
        [1.5, 86400.0, nan, nan]
    """
    plain = _plain_seconds(stamps)
    return np.array(list(map(_seconds_or_nan, stamps)), dtype=np.float64) if plain is None else plain


def _seconds_or_nan(stamp: Stamp) -> float:
    try:
        return math.nan if stamp is None else to_seconds(stamp, "")
    except SampleError:
        return math.nan


def _plain_seconds(stamps: Sequence[Stamp]) -> Array | None:
    """Time stamps as numbers, if all are plain numbers, or all dates of one kind."""
    kinds = set(map(type, stamps))
    try:
        if kinds <= {int, float}:
            seconds = np.array(list(map(float, stamps)), dtype=np.float64)
        elif kinds == {np.datetime64}:
            seconds = since_1970(np.array(stamps))
        elif kinds == {str} and not _is_dated(stamps[0]):
            seconds = np.array(list(map(number_in, stamps)))
        else:
            seconds = np.array([_since_epoch(_dated(stamp)) for stamp in stamps])
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if bool(np.isfinite(seconds).all()) else None


def since_1970(dates: np.ndarray[Any, Any]) -> Array:
    """Dates of NumPy as seconds since 1970 began; NaN for NaT.

    Example:
        >>> since_1970(np.array(["1970-01-02", "9999-12-31"], dtype="datetime64[D]")).tolist()
        [86400.0, 253402214400.0]
    """
    # Nanoseconds reach from 1677 to 2262 only, and NumPy wraps dates beyond silently. Microseconds reach further.
    fine = np.datetime_data(dates.dtype)[0] in ("ns", "ps", "fs", "as")
    counts = dates.astype("datetime64[ns]" if fine else "datetime64[us]").astype(np.int64)
    return np.where(np.isnat(dates), math.nan, counts / (1e9 if fine else 1e6))


def _is_dated(text: str) -> bool:
    return text.strip()[4:5] == "-"


def _dated(stamp: Stamp) -> datetime:
    # A text such as 20240101 is a number.
    if isinstance(stamp, str) and _is_dated(stamp):
        return datetime.fromisoformat(stamp.strip())
    if isinstance(stamp, datetime):
        return stamp
    raise TypeError


def _since_epoch(stamp: datetime) -> float:
    # Without a time zone, UTC: local time would jump where clocks are put back.
    aware = stamp if stamp.tzinfo else stamp.replace(tzinfo=_UTC)
    return (aware - _EPOCH) / timedelta(seconds=1)


def _valid(stamps: Iterable[Stamp]) -> Iterator[Stamp]:
    for stamp in stamps:
        try:
            to_seconds(stamp, "")
        except SampleError:
            # It is named when its turn comes.
            continue
        yield stamp


def _is_date(stamp: Stamp) -> bool:
    """Whether a valid time stamp is a date, which counts in seconds, and not a number of whatever unit."""
    if not isinstance(stamp, str):
        return isinstance(stamp, date | np.datetime64)
    try:
        number_in(stamp)
    except ValueError:
        return True
    return False


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
            seconds = float(since_1970(np.array([stamp]))[0])
        elif isinstance(stamp, bool):
            raise TypeError("a truth value")
        else:
            seconds = float(stamp)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise SampleError(
            f"{shown(stamp)} at {where} is no time stamp. Give a number, a datetime, or a text in ISO format; a "
            "table reads texts of another form by time_format."
        ) from error
    if not math.isfinite(seconds):
        raise SampleError(f"the time stamp at {where} is {seconds}. Leave the sample out, or give it a time.")
    return seconds


_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_UTC = _EPOCH.tzinfo
