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
from hamlearn.record.policies import Every, Policy
from hamlearn.record.sinks import Sink

_LOG = logging.getLogger("hamlearn")


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
        # Without a buffer: what is written is with the system, whatever becomes of this process.
        self._file = self.path.open("ab", buffering=0)
        self.end = _whole_lines(self.path)
        self._file.truncate(self.end)

    def write(self, text: str) -> None:
        """Append whole lines; if the disk is full, none of them."""
        data, written = text.encode(), 0
        try:
            while written < len(data):
                written += self._file.write(data[written:])
        except OSError as error:
            self._file.truncate(self.end)
            raise OSError(
                error.errno,
                f"cannot write to the record ({error.strerror}): it ends after its last whole row, and nothing "
                "before is lost. Make room on the disk, then resume from the last checkpoint",
                str(self.path),
            ) from error
        self.end += len(data)

    def sync(self) -> None:
        """Wait until the disk has all lines."""
        if not self._file.closed:
            os.fsync(self._file.fileno())

    def cut(self, end: int) -> None:
        """Remove what was written after a checkpoint; continue a file that was rotated or removed since."""
        if end > self.end:
            _LOG.warning(
                "%s has %d bytes, but had %d at the checkpoint: it is continued where it ends",
                self.path,
                self.end,
                end,
            )
            return
        self._file.truncate(end)
        self.end = end

    def close(self) -> None:
        """Force everything to the disk and close the file."""
        if not self._file.closed:
            self.sync()
            self._file.close()


class JsonLines(Sink):
    r"""Rows as one JSON object per line, appended to a file.

    Each row is written as soon as it is kept, so a process that is killed loses none. A run that is resumed from a
    checkpoint removes what was written after it, and writes each row once.

    Args:
        path: The file; its folder must exist.
        policy: What is written; `None` is every fiftieth step.
        fields: What is measured. Leave out `seconds` for a record that is the same in every run.
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
        policy: Policy | None = None,
        fields: Iterable[str] = DEFAULT,
        append: bool = False,
    ) -> None:
        super().__init__(Every(50) if policy is None else policy, fields)
        self._lines = Lines(path, append)

    def put(self, row: Row) -> None:
        """Append a row."""
        self._lines.write(json.dumps({name: _plain(value) for name, value in row.items()}) + "\n")

    def sync(self) -> None:
        """Wait until the disk has all rows."""
        self._lines.sync()

    def close(self) -> None:
        """Force everything to the disk and close the file."""
        self._lines.close()

    def place(self) -> dict[str, Any]:
        """Where the file ends, whether the disk has it yet or not."""
        return {**super().state_dict(), "bytes": self._lines.end}

    def state_dict(self) -> dict[str, Any]:
        """Where the file ends, once the disk has it."""
        self.sync()
        return self.place()

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
                rows.append(parsed(line))
            except (ValueError, RecursionError) as error:
                raise CheckpointError(
                    f"line {number} of {os.fspath(path)} is not a row of a record ({error}). "
                    "Give a file that JsonLines wrote, or remove the line."
                ) from error
    return rows


def parsed(line: bytes) -> Row:
    """One line of a record; raises `ValueError` for another."""
    row = json.loads(line)
    if not isinstance(row, dict) or type(row.get("step", 0)) is not int:
        raise ValueError("it is not an object with a whole number as its step")
    return {name: float(value) if value in ("nan", "inf", "-inf") else value for name, value in row.items()}


def _plain(value: Any) -> Any:
    # JSON has no NaN: readers other than Python's would refuse the whole file.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _whole_lines(path: Path) -> int:
    """Bytes up to the end of the last whole line."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(end - 4096, 0)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0
