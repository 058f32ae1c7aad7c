"""NumPy's dates in seconds, however far from the present they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from hamlearn.streams.moments import Array

_SECOND = 10**9
_NANOSECONDS = {
    "us": 10**3,
    "ms": 10**6,
    "s": _SECOND,
    "m": 60 * _SECOND,
    "h": 3_600 * _SECOND,
    "D": 86_400 * _SECOND,
    "W": 7 * 86_400 * _SECOND,
}
_LARGEST = 2**63 - 1


def since_1970(dates: np.ndarray[Any, Any]) -> Array:
    """Dates, all of them known, as seconds since 1970 began.

    Nanoseconds that fit into 64 bits reach from 1677 to 2262; NumPy's own conversion takes dates beyond for
    others within, without a word. Here they are counted in Python's numbers, which have no end.

    Raises:
        OverflowError: They are so far away that NumPy cannot tell their day.

    Example:
        >>> since_1970(np.array(["1970-01-02", "9999-12-31"], dtype="datetime64[D]")).tolist()
        [86400.0, 253402214400.0]
    """
    unit, step = np.datetime_data(dates.dtype)
    if unit in ("Y", "M"):
        days = dates.astype("datetime64[D]")
        if bool((days.astype(dates.dtype) != dates).any()):
            raise OverflowError("the years have too many digits")
        dates, unit, step = days, "D", 1
    if unit not in _NANOSECONDS:
        # Nanoseconds, or finer: all that there is fits.
        return dates.astype("datetime64[ns]").astype(np.int64) / 1e9
    each, counts = step * _NANOSECONDS[unit], dates.astype(np.int64)
    far = np.abs(counts) > _LARGEST // each
    seconds: Array = np.where(far, 0, counts) * each / 1e9
    for index in np.flatnonzero(far):
        seconds[index] = int(counts[index]) * each / _SECOND
    return seconds


def seconds_of(date: np.datetime64) -> float:
    """The same for one date, to the bit.

    Example:
        >>> seconds_of(np.datetime64("9999-12-31"))
        253402214400.0
    """
    near = date.astype("datetime64[ns]")
    # What NumPy has taken for another date does not come back; to compare is faster than to count.
    if near.astype(date.dtype) == date:
        return int(near.astype(np.int64)) / 1e9
    return float(since_1970(date.reshape(1))[0])
