"""The unit of time of a stream: given, or found from the first gaps between its time stamps."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Iterable
from datetime import timedelta
from itertools import islice, pairwise
from typing import Literal

from hamlearn.errors import ConfigError

logger = logging.getLogger("hamlearn")

Unit = float | timedelta | Literal["auto"]
"""What counts as one unit of time; `"auto"`: the median of the first gaps."""
FIRST = 32
"""How many gaps the unit is found from, at most."""


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
    if not (seconds > 0 and math.isfinite(seconds)):
        raise ConfigError(f"unit={unit!r} is no unit of time. Give a positive, finite number or timedelta.")
    return seconds


def unit_or_auto(unit: Unit) -> float | None:
    """The same, where the unit may be left to the data: `None` stands for that."""
    return None if unit == "auto" else to_unit(unit)


def median_gap(stamps: Iterable[float]) -> float | None:
    """The median of the steps forward among the first time stamps; `None` if there is none.

    Example:
        >>> median_gap([0.0, 2.0, 4.0, 60.0, 59.0])
        2.0
    """
    first = list(islice(stamps, FIRST + 1))
    gaps = [b - a for a, b in pairwise(first) if b > a]
    return statistics.median(gaps) if gaps else None
