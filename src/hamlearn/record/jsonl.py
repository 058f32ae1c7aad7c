"""Records as lines of text that are appended, each whole: JSON lines."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hamlearn.errors import CheckpointError, ConfigError
from hamlearn.record.fields import DEFAULT, Row
from hamlearn.record.recorder import Sink

TAIL = 1 << 20
"""Bytes at the end of a file among which its last whole line ends."""


class LineSink(Sink):
    """A sink that appends whole lines to a file, and cuts them back to where they were at a checkpoint.

    Args:
        path: The file; its folder must exist.
        every: Keep every so many-th step.
        fields: The measured values.
        append: Whether to continue a file that has lines; a last one that a crash cut short is removed.
    """

    kept = True

    def __init__(self, path: str | os.PathLike[str], every: int, fields: Iterable[str], append: bool) -> None:
        super().__init__(every, fields)
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

    def close(self) -> None:
        """Force everything to the disk and close the file."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
        self._file.close()

    def state_dict(self) -> dict[str, Any]:
        """Where the file ends, once the disk has it."""
        os.fsync(self._file.fileno())
        return {"bytes": self.end}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Cut the file to where it ended. One that was rotated since is continued at its end."""
        if state["bytes"] > self.end:
            logging.getLogger("hamlearn").warning(
                "%s is shorter than at the checkpoint: it continues at its end", self.path
            )
        self.end = min(self.end, int(state["bytes"]))
        self._file.truncate(self.end)


class JsonLines(LineSink):
    r"""Rows as one JSON object per line, appended to a file.

    Each row is written as soon as it is kept, so a process that is killed loses none. A run that is resumed from a
    checkpoint removes what was written after it, and writes each row once.

    Args:
        path: The file; its folder must exist.
        every: Write every so many-th step.
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
        every: int = 50,
        fields: Iterable[str] = DEFAULT,
        append: bool = False,
    ) -> None:
        super().__init__(path, every, fields, append)

    def put(self, row: Row) -> None:
        """Append a row."""
        # JSON has no NaN: readers other than Python's would fail on the whole file.
        plain = {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in row.items()
        }
        self.write(json.dumps(plain) + "\n")


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
    for number, line in enumerate(whole_lines(Path(path)), 1):
        try:
            rows.append(parsed(line))
        except (ValueError, RecursionError) as error:
            raise CheckpointError(
                f"line {number} of {os.fspath(path)} is not a row of a record ({error}). "
                "Give a file that JsonLines wrote, or remove the line."
            ) from error
    return rows


def whole_lines(path: Path) -> list[bytes]:
    """The lines of a file up to the last whole one."""
    return path.read_bytes().split(b"\n")[:-1]


def parsed(line: bytes) -> Row:
    """One line of a record; raises `ValueError` for another."""
    row = json.loads(line)
    if not isinstance(row, dict) or type(row.get("step", 0)) is not int:
        raise ValueError("it is not an object with a whole number as its step")
    return {name: float(value) if value in ("nan", "inf", "-inf") else value for name, value in row.items()}
