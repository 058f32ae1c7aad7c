"""Time stamps to time steps, in a unit of time that is given or found from the first gaps."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

import numpy as np
from torch import Tensor

from hamlearn.errors import ConfigError, SampleError, shown
from hamlearn.streams.cells import plain_numbers
from hamlearn.streams.moments import Array

logger = logging.getLogger("hamlearn")

Stamp = Any
"""A number, a `datetime`, a `date`, a `numpy.datetime64`, or a text in ISO format."""
Unit = float | timedelta | Literal["auto"]
"""What counts as one unit of time; `"auto"`: the median of the first gaps."""
FIRST = 32
"""How many gaps the unit is found from, at most."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_TIME = (TypeError, ValueError, OverflowError, RuntimeError)


def to_unit(unit: float | timedelta) -> float:
    """A unit of time as a number of seconds.

    Example:
        >>> to_unit(timedelta(minutes=3))
        180.0
    """
    try:
        seconds = unit.total_seconds() if isinstance(unit, timedelta) else float(unit)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError(f"unit={unit!r} is not a unit of time. Give a positive, finite number or timedelta.")
    return seconds


class Clock:
    """Turns time stamps into time steps.

    Args:
        unit: What counts as one unit of time; `"auto"` to find it from the data.
        ties: The time step of a sample whose stamp is that of its predecessor; `None`: there may be none.

    Attributes:
        unit: What counts as one unit of time, in seconds; `None` as long as it has not been found.
        last: The last time stamp, in seconds.

    Raises:
        ConfigError: `ties` is not a time step.
    """

    def __init__(self, unit: Unit, ties: float | None = None) -> None:
        if ties is not None and (isinstance(ties, bool) or not 0.0 < ties < math.inf):
            raise ConfigError(
                f"ties={ties!r} is not a time step. Give a positive number of units of time, such as 0.01, or "
                "None to reject equal time stamps."
            )
        self.unit = None if unit == "auto" else to_unit(unit)
        self.ties = None if ties is None else float(ties)
        self.last: float | None = None
        self._finds = self.unit is None

    def find(self, stamps: Sequence[Stamp]) -> None:
        """Take the median of the first gaps as the unit, if it was left to the data, and log it."""
        if self.unit is not None:
            return
        seconds = seconds_of(stamps)
        known = np.flatnonzero(np.isfinite(seconds))[: FIRST + 1]
        gaps = np.diff(seconds[known])
        gaps = gaps[gaps > 0]
        if not gaps.size:
            return
        self.unit = float(np.median(gaps))
        logger.warning(
            "one unit of time is %g%s: the median of the first gaps between time stamps. Give unit=... "
            "for another",
            self.unit,
            " s" if _is_date(stamps[known[0]]) else "",
        )

    def state(self) -> dict[str, float | None]:
        """The last stamp, and the unit that was found."""
        return {"last": self.last, "unit": self.unit if self._finds else None}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken."""
        self.last = None if state["last"] is None else float(state["last"])
        if self._finds:
            self.unit = None if state["unit"] is None else float(state["unit"])

    def steps(self, seconds: Array) -> tuple[Array, Any]:
        """The time steps to many stamps, NaN for the first of all, and which of them are steps; nothing changes.

        A stamp that does not move forward has no step, and the one after it is measured from the one before it.
        """
        valid = np.isfinite(seconds)
        start = -math.inf if self.last is None else self.last
        # A stamp that does not move forward never exceeds those before it, so that they alone give the maximum.
        before = np.maximum.accumulate(np.concatenate([[start], np.where(valid, seconds, -math.inf)]))[:-1]
        first = valid & np.isneginf(before)
        with np.errstate(all="ignore"):
            gaps = seconds - before
            # Where no unit is known, the first gap becomes one.
            taus = np.sign(gaps) if self.unit is None else gaps / self.unit
        if self.ties is not None:
            taus[gaps == 0] = self.ties
        good = first | ((gaps >= 0) & (taus > 0) & np.isfinite(taus))
        return np.where(first, math.nan, taus), good

    def go_on(self, seconds: float) -> None:
        """Continue after this stamp, which moved forward."""
        if self.unit is None and self.last is not None:
            self.find([self.last, seconds])
        self.last = seconds

    def explain(self, stamp: Stamp, where: str, option: str) -> SampleError:
        """Why a stamp does not move forward; `option` is the argument that leaves such samples out."""
        now = to_seconds(stamp, where)
        last = now if self.last is None else self.last
        if now == last:
            return SampleError(
                f"time stands still at {where}: it has the time stamp of its predecessor, {shown(stamp)}, or one "
                "that is less than a quarter of a microsecond away, which dates cannot tell. Let such samples "
                "follow after a fixed step, for example ties=0.01 (units of time), give stamps of a finer "
                f'resolution, do without time stamps, or leave such samples out with {option}="skip".'
            )
        if now < last:
            return SampleError(
                f"time runs backwards at {where}: {shown(stamp)} comes {last - now:g} before its predecessor. "
                "Sort the data by time; if these are local times and the clock was put back, give them in UTC or "
                f'with their offset (2024-10-27T02:30+02:00); or leave such samples out with {option}="skip".'
            )
        return SampleError(
            f"the time step at {where}, {now - last:g} in units of {self.unit or now - last:g}, is not a finite "
            f'number. Correct the time stamp, choose another unit, or leave it out with {option}="skip".'
        )


def seconds_of(stamps: Any) -> Array:
    """Many time stamps as seconds; NaN if one is not a time.

    Example:
        >>> seconds_of([1.5, "1970-01-02", "soon", None]).tolist()
        [1.5, 86400.0, nan, nan]
    """
    if isinstance(stamps, Tensor):
        stamps = stamps.detach().cpu().numpy()
    kind = stamps.dtype.kind if isinstance(stamps, np.ndarray) else ""
    if kind == "M":
        seconds = since_1970(stamps)
    elif kind and kind in "biuf":
        seconds = stamps.astype(np.float64)
    else:
        cells = stamps.tolist() if hasattr(stamps, "tolist") else stamps
        plain = plain_numbers(cells)
        seconds = np.array(list(map(_seconds_or_nan, cells)), dtype=np.float64) if plain is None else plain
    return np.where(np.isfinite(seconds), seconds, math.nan)


def to_seconds(stamp: Stamp, where: str) -> float:
    """A time stamp as a number; datetimes count in seconds."""
    try:
        seconds = _seconds(stamp)
    except _NO_TIME as error:
        raise SampleError(
            f"{shown(stamp)} at {where} is not a time stamp. Give a number, a datetime, or a text in ISO format; "
            "a table reads texts of another form by time_format."
        ) from error
    if not math.isfinite(seconds):
        raise SampleError(f"the time stamp at {where} is {seconds}. Leave the sample out, or give it a time.")
    return seconds


def _seconds_or_nan(stamp: Stamp) -> float:
    try:
        return _seconds(stamp)
    except _NO_TIME:
        return math.nan


def _seconds(stamp: Stamp) -> float:
    """A time stamp as a number; one of the errors in `_NO_TIME` if it is none. A text of digits is a number."""
    if isinstance(stamp, str):
        if _is_number(stamp):
            return float(stamp)
        stamp = datetime.fromisoformat(stamp.strip())
    if isinstance(stamp, datetime):
        # Without a time zone, UTC: local time would jump where clocks are put back.
        aware = stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)
        return (aware - _EPOCH) / timedelta(seconds=1)
    if isinstance(stamp, date):
        return float((stamp - _EPOCH.date()).days * 86_400)
    if isinstance(stamp, np.datetime64):
        return float(since_1970(np.array([stamp]))[0])
    if isinstance(stamp, bool):
        raise TypeError("a truth value")
    return float(stamp)


def _is_number(text: str) -> bool:
    # Python's float reads 1_0 as 10, which no other program writes.
    try:
        return "_" not in text and float(text) == float(text)
    except ValueError:
        return False


def _is_date(stamp: Stamp) -> bool:
    """Whether a valid time stamp is a date, which counts in seconds, and not a number of whatever unit."""
    return not _is_number(stamp) if isinstance(stamp, str) else isinstance(stamp, date | np.datetime64)


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
