"""Lines of a file, and what is in the cells of a table."""

from __future__ import annotations

import math
from typing import Any

from hamlearn.errors import SampleError
from hamlearn.streams.values import number_in

_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})


def is_missing(text: str) -> bool:
    """Whether a cell says that there is nothing in it."""
    return text.strip().lower() in _MISSING


def number(text: str, name: str, where: str) -> float | None:
    """A cell as a finite number; `None` where it is missing."""
    text = text.strip()
    if is_missing(text):
        return None
    try:
        value = number_in(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise SampleError(
            f"{where}: column {name!r} holds {text!r}, which is not a finite number. "
            'Mend the cell, or leave such rows out with bad="skip".'
        )
    return value


class Lines:
    """Lines of a binary file as text, so that `file.tell()` is the start of the next line to be read."""

    def __init__(self, file: Any, encoding: str, line: int = 0) -> None:
        self._file = file
        self._encoding = encoding
        self.line = line

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> str:
        data = self._file.readline()
        if not data:
            raise StopIteration
        self.line += 1
        text: str = data.decode(self._encoding)
        # A byte-order mark would become part of the first column's name.
        return text.removeprefix("\ufeff") if self.line == 1 else text
