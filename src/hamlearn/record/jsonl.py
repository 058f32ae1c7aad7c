"""Records as JSON lines: appended whole, never lost, never doubled."""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hamlearn.errors import CheckpointError, ConfigError
from hamlearn.record.moments import DEFAULT, Row
from hamlearn.record.policies import Every, Policy
from hamlearn.record.sinks import Sink


class JsonLines(Sink):
    r"""Rows as one JSON object per line, appended to a file.

    Each row is handed to the system in one piece as soon as it is kept, so that a process which is killed
    loses none. `state_dict` waits until the disk has them, and remembers where the file ends;
    `load_state_dict` cuts the file there, once it has seen that the rows before are those that were written, so
    that a run which is resumed from a checkpoint writes each row once. If a write fails (a full disk), the file is
    cut back to its last whole row, and the error says so.

    Args:
        path: The file; its folder must exist.
        policy: What is written; `None` is every fiftieth moment.
        fields: What is measured. Leave out `seconds` for a record that is the same in every run.
        append: Whether to continue a file that has rows already; a last line that a crash truncated is
            removed. Otherwise such a file is refused.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "run.jsonl"
        >>> sink = JsonLines(path)
        >>> sink.put({"step": 1, "loss": 0.5}, None)
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
        self._path = Path(path)
        if not self.policy.appends:
            raise ConfigError(f"{self.policy!r} would write every moment to the file. Use it with Memory instead.")
        if not self._path.parent.is_dir():
            raise ConfigError(
                f"there is no folder {str(self._path.parent)!r} for {self._path.name}. Make it first."
            )
        if not append and self._path.exists() and self._path.stat().st_size:
            raise ConfigError(
                f"{self._path} has rows already. Give another path, remove it, or go on with it by append=True."
            )
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        self._end = _whole(self._file)
        self._sum = _checksum(self._file, self._end)
        os.ftruncate(self._file, self._end)

    def put(self, row: Row, slot: int | None) -> None:
        """Append a row."""
        if slot is not None:
            row = {**row, "slot": slot}
        data = (json.dumps({name: _plain(value) for name, value in row.items()}) + "\n").encode()
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._file, data[written:], self._end + written)
        except OSError as error:
            os.ftruncate(self._file, self._end)
            raise OSError(
                error.errno,
                f"cannot write to the record ({error.strerror}): it ends after its last whole row, and "
                "nothing "
                "before is lost. Make room on the disk, then resume from the last checkpoint",
                str(self._path),
            ) from error
        self._end += written
        self._sum = zlib.crc32(data, self._sum)

    def close(self) -> None:
        """Force everything to the disk and close the file."""
        if self._file >= 0:
            os.fsync(self._file)
            os.close(self._file)
            self._file = -1

    def sync(self) -> None:
        """Wait until the disk has all rows."""
        if self._file >= 0:
            os.fsync(self._file)

    def place(self) -> dict[str, Any]:
        """Where the file ends, whether the disk has it yet or not."""
        return {**super().state_dict(), "bytes": self._end, "crc32": self._sum}

    def state_dict(self) -> dict[str, Any]:
        """Where the file ends, once the disk has it."""
        self.sync()
        return self.place()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Cut the file to where it ended when the state was taken."""
        end = int(state["bytes"])
        if end > self._end:
            raise CheckpointError(
                f"{self._path} has {self._end} bytes of whole rows, but there were {end} when the "
                "checkpoint was "
                "saved: rows are missing. Restore the file, or start anew."
            )
        if _checksum(self._file, end) != state["crc32"]:
            raise CheckpointError(
                f"{self._path} is not as it was when the checkpoint was saved: what its first {end} bytes say has "
                "changed. Restore the file, or start anew."
            )
        super().load_state_dict(state)
        os.ftruncate(self._file, end)
        self._end, self._sum = end, state["crc32"]


def read(path: str | os.PathLike[str]) -> list[Row]:
    r"""The rows of a file of JSON lines, less a last one that was cut short; of a reservoir, what it holds.

    Raises:
        CheckpointError: A line is no row of a record; says which, and why.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "run.jsonl"
        >>> _ = path.write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "lo')
        >>> read(path)
        [{'step': 1, 'loss': 0.5}]
    """
    rows: list[Row] = []
    slots: dict[int, Row] = {}
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                row = parse_row(line)
            except (ValueError, TypeError, RecursionError) as error:
                raise CheckpointError(
                    f"line {number} of {os.fspath(path)} is no row of a record ({error}). "
                    "Give a file that JsonLines wrote, or remove the line."
                ) from error
            slot = row.pop("slot", None)
            if slot is None:
                rows.append(row)
            else:
                slots[slot] = row
    return rows + sorted(slots.values(), key=lambda row: row.get("step", 0))


def parse_row(line: bytes) -> Row:
    """One line of a record.

    Raises:
        ValueError: It is no row; so do `TypeError` and `RecursionError` say.
    """
    row = json.loads(line.decode("utf-8"), parse_constant=_no_number)
    if not isinstance(row, dict):
        raise TypeError(f"it is a {type(row).__name__}, not an object")
    for name in ("step", "slot"):
        count = row.get(name, 0)
        if type(count) is not int or not 0 <= count < 1 << 63:
            raise ValueError(f"its {name} is no whole number of at least 0")
    if b"\\u" in line:
        # Half of a letter can be written in JSON, and nowhere else.
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    return {name: _back(value) for name, value in row.items()}


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def _whole(file: int) -> int:
    """Bytes up to the end of the last whole line."""
    end = os.fstat(file).st_size
    while end:
        start = max(end - 4096, 0)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _checksum(file: int, end: int) -> int:
    """Of the first `end` bytes."""
    found, at = 0, 0
    while at < end:
        data = os.pread(file, min(end - at, 1 << 20), at)
        found, at = zlib.crc32(data, found), at + len(data)
    return found


def _plain(value: Any) -> Any:
    # JSON has no NaN: readers other than Python's would refuse the whole file.
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _back(value: Any) -> Any:
    return float(value) if value in ("nan", "inf", "-inf") else value
