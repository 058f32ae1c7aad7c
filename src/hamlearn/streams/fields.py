"""What is in the cells of a table, and in its header."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hamlearn.errors import ConfigError, SampleError
from hamlearn.streams.moments import Array
from hamlearn.streams.values import number_in, shown

_WORDS = ("", "na", "n/a", "nan", "null", "none", "?")
_MISSING = frozenset({*_WORDS, *(word.encode() for word in _WORDS)})
_TRUTH = {"true": 1.0, "false": 0.0}


def is_missing(cell: Any) -> bool:
    """Whether a cell says that there is nothing in it."""
    if isinstance(cell, str | bytes):
        return cell.strip().lower() in _MISSING
    # Not a number, and not a time, differ from themselves.
    return cell is None or (isinstance(cell, float | np.floating | np.datetime64) and bool(cell != cell))


def number(cell: Any, name: str, where: str, largest: float, remedy: str = "") -> float | None:
    """A cell as a number of at most the size `largest`, a truth value as 1 or 0; `None` where it is missing.

    Args:
        cell: A text, or what Python takes for a number.
        name: Of its column.
        where: Its row.
        largest: The largest absolute value that is let through.
        remedy: What to do where the cell is no number at all.
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
            'Mend the cell, or leave such rows out with bad="skip".'
        )
    return value


def plain_numbers(cells: Sequence[Any], largest: float) -> Array | None:
    """Many cells at once, where each of them plainly is a number; `None` where they want a closer look."""
    kinds = set(map(type, cells))
    if kinds == {str}:
        if "_" in "".join(cells):
            return None
    elif not kinds <= {int, float, bool}:
        return None
    try:
        values = np.array(list(map(float, cells)), dtype=np.float64)
    except (ValueError, OverflowError):
        return None
    return values if bool((np.abs(values) <= largest).all()) else None


def listed(header: Sequence[str]) -> str:
    """The names of the columns, the first of them where there are very many."""
    columns = ", ".join(str(column)[:60] for column in header[:20])
    return columns + (f" and {len(header) - 20} more" if len(header) > 20 else "")


def require_columns(header: Sequence[str], names: Iterable[str], file: str) -> None:
    """Refuse a table in which a column is missing, or there more than once."""
    for name in names:
        found = [i for i, column in enumerate(header, 1) if column == name]
        if not found:
            near = next((column for column in header if str(column).strip() == str(name).strip()), None)
            hint = "" if near is None else f" Did you mean {shown(near)}?"
            raise ConfigError(f"{file} has no column {name!r}. Its columns are {listed(header)}.{hint}")
        if len(found) > 1:
            raise ConfigError(
                f"{file}, line 1 names {name!r} {len(found)} times, as columns {', '.join(map(str, found[:5]))}. "
                "Give each column that is used a name of its own."
            )


def require_delimiter(header: Sequence[str], named: Iterable[str], file: str, delimiter: str) -> None:
    """Refuse a header of one column that nobody named and that seems to hold several, separated otherwise."""
    if len(header) != 1 or header[0] in named:
        return
    counts = {other: header[0].count(other) for other in (";", "\t", ",", "|") if other != delimiter}
    most = max(counts, key=lambda other: counts[other])
    if counts[most]:
        written = '"\\t"' if most == "\t" else f'"{most}"'
        raise ConfigError(
            f"{file} has one column only, {shown(header[0])}: its cells seem to be separated by {written}. Give "
            f"delimiter={written}, or, if this is the name of one column, name it by u."
        )
