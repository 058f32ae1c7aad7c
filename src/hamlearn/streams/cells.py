"""Cells of a table as numbers and as names: what counts as missing, and which place a name has."""

from __future__ import annotations

import re
import zlib
from collections.abc import Hashable, Iterable, Sequence
from datetime import date, datetime
from typing import Any

import numpy as np
import torch

from hamlearn.errors import ConfigError, shown
from hamlearn.streams.moments import Array

Mask = np.ndarray[Any, np.dtype[np.bool_]]

_WORDS = ("", "na", "n/a", "nan", "null", "none", "?")
_MISSING = frozenset({*_WORDS, *(word.encode() for word in _WORDS)})
_WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]*))\.0+")


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


def plain_numbers(cells: Sequence[Any]) -> Array | None:
    """Cells that are all numbers, or all texts of numbers, without a call for each; `None` if one is not.

    Example:
        >>> plain_numbers(["1.5", " 2 "]).tolist(), plain_numbers(["1", "soon"]), plain_numbers(["1_0"])
        ([1.5, 2.0], None, None)
    """
    kinds = set(map(type, cells))
    # Python's float reads 1_0 as 10, which no other program writes.
    if kinds <= {int, float} or (kinds == {str} and "_" not in "".join(cells)):
        try:
            return np.array(list(map(float, cells)), dtype=np.float64)
        except (ValueError, OverflowError):
            # Some are missing or not numbers: each is read by itself.
            pass
    return None


def name_of(value: Any) -> str:
    """A category as a text, the same whether it comes from a file or from Python.

    A whole number is written without a point, also if the file has 3.0: pandas writes whole numbers of a column
    with gaps that way. All other texts stay as they are, so that 01234 and 1234 are two categories.

    Example:
        >>> [name_of(value) for value in (" north ", True, "FALSE", b"west", 2.5, "1.50", "01234")]
        ['north', 'true', 'false', 'west', '2.5', '1.50', '01234']
        >>> [name_of(value) for value in (3, 3.0, "3", "3.0", torch.tensor(3))]
        ['3', '3', '3', '3', '3']
    """
    if isinstance(value, torch.Tensor) and value.dim() == 0:
        value = value.item()
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    if isinstance(value, float | np.floating) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    whole = _WHOLE.fullmatch(text)
    if whole is not None:
        return "0" if whole[1] == "-0" else whole[1]
    return text.lower() if text.lower() in ("true", "false") else text


def shared(value: Hashable, count: int) -> int:
    """One of `count` places for a value, by a checksum, the same in every process.

    Example:
        >>> shared("north", 8) == shared("north", 8)
        True
    """
    return zlib.crc32(repr(value).encode()) % count


def column_names(names: Any) -> list[Any]:
    """None, one or several columns, as a list; pandas may call columns by whole numbers.

    Example:
        >>> column_names("x"), column_names(["x", "y"]), column_names(3)
        (['x'], ['x', 'y'], [3])
    """
    if names is None:
        return []
    return list(names) if isinstance(names, Iterable) and not isinstance(names, str) else [names]


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
