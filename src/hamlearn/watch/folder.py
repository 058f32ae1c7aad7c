"""The files of a run that is still going on, read as they grow."""

from __future__ import annotations

import json
import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hamlearn.errors import ConfigError
from hamlearn.experiments.run import RECORD, RESULT, RESUMED, SPEED, facts
from hamlearn.experiments.run.config import load
from hamlearn.record.fields import Row
from hamlearn.record.jsonl import parsed
from hamlearn.record.page import page_data, table

MOST = 4000
"""Rows of a file that are kept at most: many more than a chart has points."""


class Tail:
    r"""Follows a file of JSON lines: each look reads what was appended since the last.

    A file that became shorter, as when a run is resumed, is read again. A line that is not a row is passed over.
    Of more than `MOST` rows every second one is dropped, evenly over the run.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "record.jsonl"
        >>> tail = Tail(path)
        >>> _ = path.write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "lo')
        >>> tail.look(), tail.rows, tail.look()
        (True, [{'step': 1, 'loss': 0.5}], False)
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._restart()

    def _restart(self) -> None:
        self._kept: list[Row] = []
        self._last: list[Row] = []
        self._at, self._count, self._stride = 0, 0, 1

    @property
    def rows(self) -> list[Row]:
        """The rows, oldest first, and the newest one in any case."""
        return self._kept if self._kept[-1:] == self._last else [*self._kept, *self._last]

    def look(self) -> bool:
        """Read what is new; says whether there was anything."""
        before = self._at, self._count
        size = self._path.stat().st_size if self._path.is_file() else 0
        if size < self._at:
            self._restart()
        if size > self._at:
            with self._path.open("rb") as file:
                file.seek(self._at)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._at += len(line)
                    self._take(line)
        return (self._at, self._count) != before

    def _take(self, line: bytes) -> None:
        try:
            row = parsed(line)
        except (ValueError, RecursionError):
            return
        step = row.get("step", 0)
        if self._last and step < self._last[0].get("step", 0):
            # A resumed run has cut the file and has grown beyond where it was.
            self._kept = [old for old in self._kept if old.get("step", 0) < step]
        self._last = [row]
        if self._count % self._stride == 0:
            self._kept.append(row)
            if len(self._kept) > MOST:
                self._kept, self._stride = self._kept[::2], 2 * self._stride
        self._count += 1


class RunFolder:
    """A folder that `hamlearn run` writes, as the data of a page.

    Args:
        folder: Of the run, which may still be about to begin.
        title: Of the page; `None`: that of the run.

    Example:
        >>> import tempfile
        >>> json.loads(RunFolder(tempfile.mkdtemp()).look()[1])["status"]
        'waiting'
    """

    def __init__(self, folder: str | os.PathLike[str], title: str | None = None) -> None:
        self._folder, self._title = Path(folder), title
        if not self._folder.is_dir():
            raise ConfigError(f"there is no folder {str(folder)!r}. Give the folder that hamlearn run writes to.")
        self._record, self._speed, self._lives = (Tail(self._folder / name) for name in (RECORD, SPEED, RESUMED))
        self._lock = threading.Lock()
        self._version, self._data = 0, ""
        self._result: dict[str, Any] | None = None

    def about(self) -> tuple[str, str]:
        """The title, and what is being run as an HTML table; the latter is empty before the run has begun."""
        path = self._folder / "config.toml"
        if not path.is_file():
            return self._title or "Run", ""
        config = load(path)
        return self._title or config["run"]["title"], table(facts(config))

    def look(self) -> tuple[int, str]:
        """The number of the present data, which grows when they change, and the data as JSON."""
        with self._lock:
            result = _object(self._folder / RESULT)
            new = [tail.look() for tail in (self._record, self._speed, self._lives)]
            if any(new) or result != self._result or not self._version:
                self._result, self._version = result, self._version + 1
                self._data = self._made(result or {})
            return self._version, self._data

    def _made(self, result: dict[str, Any]) -> str:
        rows = [row for row in self._record.rows if "step" in row]
        lives = [row["step"] for row in self._lives.rows if "step" in row]
        status, at = "waiting", ""
        if rows:
            status = "finished" if result.get("steps", -1) >= rows[-1]["step"] else "learning"
            written = datetime.fromtimestamp((self._folder / RECORD).stat().st_mtime, UTC)
            at = f"{written:%Y-%m-%d %H:%M:%S} UTC"
        shown = result if status == "finished" else {}
        return page_data(rows, self._speed.rows, lives, shown, status=status, at=at)


def _object(path: Path) -> dict[str, Any] | None:
    """An object that a file holds; `None` while there is none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
