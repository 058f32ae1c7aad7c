"""Cells of a table as numbers, and the names in its header."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from typing import Any

import numpy as np

from hamlearn.errors import ConfigError, SampleError
from hamlearn.streams.moments import Array
from hamlearn.streams.values import number_in, shown

Mask = np.ndarray[Any, np.dtype[np.bool_]]

_WORDS = ("", "na", "n/a", "nan", "null", "none", "?")
_MISSING = frozenset({*_WORDS, *(word.encode() for word in _WORDS)})
_TRUTH = {"true": 1.0, "false": 0.0}


def is_missing(cell: Any) -> bool:
    """Whether a cell is missing: `None`, NaN, not a time, or a word such as NA."""
    if isinstance(cell, str | bytes):
        return cell.strip().lower() in _MISSING
    # NaN and NaT differ from themselves.
    return cell is None or (isinstance(cell, float | np.floating | np.datetime64) and bool(cell != cell))


def is_date(cell: Any) -> bool:
    """Whether a cell is a date, or a text in ISO format that has one.

    Example:
        >>> [is_date(cell) for cell in ("2024-03-01 08:01", "3.5", "north")]
        [True, False, False]
    """
    if not isinstance(cell, str):
        return isinstance(cell, date | np.datetime64)
    try:
        return bool(datetime.fromisoformat(cell.strip()))
    except ValueError:
        return False


def number(cell: Any, name: str, where: str, largest: float, remedy: str = "") -> float | None:
    """A cell as a number of at most the size `largest`, a truth value as 1 or 0; `None` if it is missing.

    Args:
        cell: A text, or what Python takes for a number.
        name: Of its column.
        where: Its row.
        largest: The largest absolute value that is allowed.
        remedy: What to do if the cell is not a number.

    Raises:
        SampleError: The cell is neither missing nor a number of that size.
    """
    if is_missing(cell):
        return None
    why, value = "", math.nan
    try:
        text = cell.strip().lower() if isinstance(cell, str) else None
        value = float(cell) if text is None else _TRUTH[text] if text in _TRUTH else number_in(text)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        why = remedy
    if not abs(value) <= largest:
        what = "not a finite number" if not math.isfinite(value) else f"larger than {largest:g}, the most there is"
        shown_cell = shown(cell.strip() if isinstance(cell, str) else cell)
        raise SampleError(
            f"{where}: column {name!r} holds {shown_cell}, which is {what}. {why}"
            'Correct the cell, or leave such rows out with bad="skip".'
        )
    return value


def numbers(cells: Sequence[Any]) -> Array:
    """Many cells as numbers: NaN if one is missing, infinity if it is not a finite number.

    Example:
        >>> numbers(["1.5", " TRUE ", "NA", "1_0", "soon"]).tolist()
        [1.5, 1.0, nan, inf, inf]
    """
    kinds = set(map(type, cells))
    # Python's float reads 1_0 as 10, which no other program writes.
    if kinds <= {int, float} or (kinds == {str} and "_" not in "".join(cells)):
        try:
            return np.array(list(map(float, cells)), dtype=np.float64)
        except (ValueError, OverflowError):
            # Some cells are missing or not numbers: each is read by itself.
            pass
    return np.array(list(map(_number, cells)), dtype=np.float64)


def _number(cell: Any) -> float:
    if type(cell) is str and not cell:
        return math.nan
    try:
        # As number_in, without its call.
        return float(cell) if type(cell) is not str or "_" not in cell else math.inf
    except (TypeError, ValueError, OverflowError, RuntimeError):
        if is_missing(cell):
            return math.nan
        return _TRUTH.get(cell.strip().lower(), math.inf) if isinstance(cell, str) else math.inf


def too_large(values: Array, largest: float) -> Mask:
    """Which of the numbers are larger than `largest`; NaN is not."""
    return ~(np.abs(values) <= largest) & ~np.isnan(values)


def listed(header: Sequence[Any]) -> str:
    """The names of the columns, at most twenty of them."""
    columns = ", ".join(str(column)[:60] for column in header[:20])
    return columns + (f" and {len(header) - 20} more" if len(header) > 20 else "")


def require_columns(header: Sequence[Any], names: Iterable[Any], table: str) -> None:
    """Raise `ConfigError` if a column is missing, or is there more than once."""
    for name in names:
        found = [i for i, column in enumerate(header, 1) if column == name]
        if not found:
            near = next((column for column in header if str(column).strip() == str(name).strip()), None)
            hint = "" if near is None else f" Did you mean {shown(near)}?"
            raise ConfigError(f"{table} has no column {name!r}. Its columns are {listed(header)}.{hint}")
        if len(found) > 1:
            raise ConfigError(
                f"{table}, line 1 names {name!r} {len(found)} times, as columns {', '.join(map(str, found[:5]))}. "
                "Give each column that is used a name of its own."
            )
