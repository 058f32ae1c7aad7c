"""The unit of time of a stream: given, or found from the first gaps between its time stamps."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import chain, islice, pairwise
from typing import Any, Literal

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
    """The median of the steps forward among the first time stamps; `None` where there is none.

    Example:
        >>> median_gap([0.0, 2.0, 4.0, 60.0, 59.0])
        2.0
    """
    first = list(islice(stamps, FIRST + 1))
    gaps = [b - a for a, b in pairwise(first) if b > a]
    return statistics.median(gaps) if gaps else None


def tell(unit: float, dates: bool) -> None:
    """Say which unit was found: in seconds, where time stamps are dates."""
    logger.warning(
        "one unit of time is %g%s: the median of the first gaps between time stamps. Give unit=... for another",
        unit,
        " s" if dates else "",
    )


def ahead(rows: Iterator[Any]) -> tuple[list[Any], Iterator[Any]]:
    """The first rows, and all of them again; what goes wrong among them does so when its turn comes."""
    seen: list[Any] = []
    rest: Iterator[Any] = rows
    try:
        for row in islice(rows, FIRST + 1):
            seen.append(row)
    except Exception as error:  # whatever the source raises belongs to the row that it could not give
        rest = raising(error)
    return seen, chain(seen, rest)


def raising(error: Exception) -> Iterator[Any]:
    """An iterator whose next item raises."""
    raise error
    yield
