"""The rows of a record that is still being written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import BinaryIO

from hamlearn.record.jsonl import parse_row
from hamlearn.record.moments import Row

MOST = 4000
"""Rows that are kept at most: many more than a chart has points."""
PIECE = 1 << 20
"""Bytes that are read at one time."""


class Tail:
    r"""Follows a file of JSON lines: each look reads what was appended since the last.

    A run that is resumed cuts its records back to its checkpoint and goes on from there; then, and wherever a line
    cannot be read, the file is read anew. Of more than `MOST` rows every second is forgotten, evenly over the run.

    Args:
        path: The file, which may not be there yet.

    Attributes:
        rows: What is kept, in order, and the last row that was read.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "record.jsonl"
        >>> tail = Tail(path)
        >>> tail.look(), tail.rows
        (False, [])
        >>> _ = path.write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "lo')
        >>> tail.look(), tail.rows
        (True, [{'step': 1, 'loss': 0.5}])
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: list[Row] = []
        self._last: Row | None = None
        self._file: tuple[int, int] | None = None
        self._at, self._count, self._stride = 0, 0, 1

    @property
    def rows(self) -> list[Row]:
        """The rows, old to new."""
        last = [] if self._last is None or (self._kept and self._kept[-1] is self._last) else [self._last]
        return [*self._kept, *last]

    def look(self) -> bool:
        """Read what is new; says whether there was anything."""
        before = self._count, self._at
        try:
            with self._path.open("rb") as file:
                about = os.fstat(file.fileno())
                if (about.st_dev, about.st_ino) != self._file or about.st_size < self._at:
                    self._forget()
                    self._file = about.st_dev, about.st_ino
                if not self._read(file, skip=False):
                    # It was cut and written anew between two looks. A line that cannot be read then is none.
                    self._forget()
                    self._read(file, skip=True)
        except FileNotFoundError:
            self._forget()
            self._file = None
        return (self._count, self._at) != before

    def _read(self, file: BinaryIO, skip: bool) -> bool:
        """Read whole lines up to the end; `False` at one that is no row, unless such are to be skipped."""
        file.seek(self._at)
        left = b""
        while data := file.read(PIECE):
            *lines, left = (left + data).split(b"\n")
            for line in lines:
                try:
                    row = parse_row(line)
                except (ValueError, TypeError, RecursionError):
                    if not skip:
                        return False
                else:
                    self._take(row)
                self._at += len(line) + 1
        return True

    def _take(self, row: Row) -> None:
        if self._last is not None and row.get("step", 0) < self._last.get("step", 0):
            # Another life of the run has begun before this row.
            self._kept = [old for old in self._kept if old.get("step", 0) < row.get("step", 0)]
        self._last = row
        if self._count % self._stride == 0:
            self._kept.append(row)
            if len(self._kept) > MOST:
                self._kept, self._stride = self._kept[::2], 2 * self._stride
        self._count += 1

    def _forget(self) -> None:
        self._kept, self._last = [], None
        self._at, self._count, self._stride = 0, 0, 1


def summary(path: Path) -> Row | None:
    """An object that a file holds; `None` while there is none, or it is no object."""
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) else None
