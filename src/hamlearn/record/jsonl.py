"""Records as lines of text that are appended, each whole: JSON lines."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hamlearn.errors import CheckpointError, ConfigError
from hamlearn.record.fields import DEFAULT, Row
from hamlearn.record.sinks import Every, Sink

MOST_ROWS = 4000
"""Rows that a page is given at most: many more than a chart has points."""
LONGEST = 500
"""Bytes of a line, about, up to which all lines of a file are read."""
TAIL = 1 << 20
"""Bytes at the end of a file among which its last whole line ends."""


class Lines:
    """A file that whole lines are appended to, and that can be cut back to where it was.

    Args:
        path: The file; its folder must exist.
        append: Whether to continue a file that has lines; a last one that a crash cut short is removed.
    """

    def __init__(self, path: str | os.PathLike[str], append: bool) -> None:
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise ConfigError(f"there is no folder {str(self.path.parent)!r} for {self.path.name}. Make it first.")
        if not append and self.path.exists() and self.path.stat().st_size:
            raise ConfigError(f"{self.path} has rows already. Give another path, remove it, or pass append=True.")
        # Without a buffer: the system has what is written, even if this process is killed.
        self._file = self.path.open("a+b", buffering=0)
        start = self._file.seek(max(0, self.path.stat().st_size - TAIL))
        self.end = start + self._file.read().rfind(b"\n") + 1
        self._file.truncate(self.end)

    def write(self, text: str) -> None:
        """Append whole lines; if the disk is full, none of them."""
        data, written = text.encode(), 0
        try:
            while written < len(data):
                written += self._file.write(data[written:])
        except OSError as error:
            self._file.truncate(self.end)
            message = f"{error.strerror}: the record ends after its last whole row, nothing before is lost"
            raise OSError(error.errno, message, str(self.path)) from error
        self.end += len(data)

    def sync(self) -> None:
        """Wait until the disk has all lines."""
        if not self._file.closed:
            os.fsync(self._file.fileno())

    def cut(self, end: int) -> None:
        """Remove what was written after a checkpoint. A file that was rotated since is continued at its end."""
        if end > self.end:
            logging.getLogger("hamlearn").warning(
                "%s is shorter than at the checkpoint: it continues at its end", self.path
            )
        self.end = min(self.end, end)
        self._file.truncate(self.end)

    def close(self) -> None:
        """Force everything to the disk and close the file."""
        self.sync()
        self._file.close()


class JsonLines(Sink):
    r"""Rows as one JSON object per line, appended to a file.

    Each row is written as soon as it is kept, so a process that is killed loses none. A run that is resumed from a
    checkpoint removes what was written after it, and writes each row once.

    Args:
        path: The file; its folder must exist.
        policy: Which steps are written; `None` is every fiftieth step.
        fields: The measured values. Leave out `seconds` for a record that is the same in every run.
        append: Whether to continue a file that has rows already.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "run.jsonl"
        >>> sink = JsonLines(path)
        >>> sink.put({"step": 1, "loss": 0.5})
        >>> read(path)
        [{'step': 1, 'loss': 0.5}]
        >>> sink.close()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        policy: Every | None = None,
        fields: Iterable[str] = DEFAULT,
        append: bool = False,
    ) -> None:
        super().__init__(Every(50) if policy is None else policy, fields)
        self._lines = Lines(path, append)

    def put(self, row: Row) -> None:
        """Append a row."""
        # JSON has no NaN: readers other than Python's would fail on the whole file.
        plain = {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in row.items()
        }
        self._lines.write(json.dumps(plain) + "\n")

    def close(self) -> None:
        """Force everything to the disk and close the file."""
        self._lines.close()

    def state_dict(self) -> dict[str, Any]:
        """Where the file ends, once the disk has it."""
        self._lines.sync()
        return super().state_dict() | {"bytes": self._lines.end}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Cut the file to where it ended when the state was taken."""
        super().load_state_dict(state)
        self._lines.cut(int(state["bytes"]))


def read(path: str | os.PathLike[str]) -> list[Row]:
    r"""The rows of a file of JSON lines, without a last one that was cut short.

    Raises:
        CheckpointError: A line is not a row of a record; says which, and why.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "run.jsonl"
        >>> _ = path.write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "lo')
        >>> read(path)
        [{'step': 1, 'loss': 0.5}]
    """
    rows = []
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                rows.append(_parsed(line))
            except (ValueError, RecursionError) as error:
                raise CheckpointError(
                    f"line {number} of {os.fspath(path)} is not a row of a record ({error}). "
                    "Give a file that JsonLines wrote, or remove the line."
                ) from error
    return rows


def sampled(path: Path, most: int = MOST_ROWS) -> list[Row]:
    """Rows of a file that may still grow: all, or about `most` of a long one, evenly, and the last ones.

    A line that is not a row, or not whole yet, is passed over. A file that is not there has no rows.
    """
    if not path.is_file():
        return []
    with path.open("rb") as file:
        size = path.stat().st_size
        lines: Iterable[bytes] = file
        if size > most * LONGEST:
            # The line after each of so many places, and all at the end; one that is found twice is kept once.
            found: dict[int, bytes] = {}
            for place in [*(size * k // most for k in range(most)), size - 10 * LONGEST]:
                file.seek(place)
                file.readline()
                found[file.tell()] = file.readline()
            lines = [*found.values(), *file]
        rows = []
        for line in lines:
            with suppress(ValueError, RecursionError):
                rows += [_parsed(line)] if line.endswith(b"\n") else []
    return rows


def _parsed(line: bytes) -> Row:
    """One line of a record; raises `ValueError` for another."""
    row = json.loads(line)
    if not isinstance(row, dict) or type(row.get("step", 0)) is not int:
        raise ValueError("it is not an object with a whole number as its step")
    return {name: float(value) if value in ("nan", "inf", "-inf") else value for name, value in row.items()}
