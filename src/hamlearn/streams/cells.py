"""What is in the cells of a table, and in its header."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hamlearn.errors import ConfigError, SampleError
from hamlearn.streams.values import number_in, shown

_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})


def is_missing(text: str) -> bool:
    """Whether a cell says that there is nothing in it."""
    return text.strip().lower() in _MISSING


def number(text: str, name: str, where: str, largest: float) -> float | None:
    """A cell as a number of at most the size `largest`; `None` where it is missing."""
    text = text.strip()
    if is_missing(text):
        return None
    try:
        value = number_in(text)
    except ValueError:
        value = math.nan
    if not abs(value) <= largest:
        what = "not a finite number" if not math.isfinite(value) else f"larger than {largest:g}, the most there is"
        raise SampleError(
            f"{where}: column {name!r} holds {shown(text)}, which is {what}. "
            'Mend the cell, or leave such rows out with bad="skip".'
        )
    return value


def require_columns(header: Sequence[str], names: Iterable[str], file: str) -> None:
    """Refuse a table in which a column is missing, or there more than once."""
    for name in names:
        found = [i for i, column in enumerate(header, 1) if column == name]
        if not found:
            columns = ", ".join(column[:60] for column in header[:20])
            columns += f" and {len(header) - 20} more" if len(header) > 20 else ""
            near = next((column for column in header if column.strip() == str(name).strip()), None)
            hint = "" if near is None else f" Did you mean {shown(near)}?"
            raise ConfigError(f"{file} has no column {name!r}. Its columns are {columns}.{hint}")
        if len(found) > 1:
            raise ConfigError(
                f"{file}, line 1 names {name!r} {len(found)} times, as columns {', '.join(map(str, found[:5]))}. "
                "Give each column that is used a name of its own."
            )
