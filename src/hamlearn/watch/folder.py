"""The files of a run that is still going on, as the data of a page."""

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
from hamlearn.record.jsonl import sampled
from hamlearn.record.page import page_data, table


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
        self._lock = threading.Lock()
        self._files: list[tuple[int, int] | None] = []
        self._version, self._data = 0, ""

    def about(self) -> tuple[str, str]:
        """The title, and what is being run as an HTML table; the latter is empty before the run has begun."""
        path = self._folder / "config.toml"
        if not path.is_file():
            return self._title or "Run", ""
        config = load(path)
        return self._title or config["run"]["title"], table(facts(config))

    def look(self) -> tuple[int, str]:
        """The number of the present data, which grows when a file has changed, and the data as JSON."""
        with self._lock:
            files = [_stamp(self._folder / name) for name in (RECORD, SPEED, RESUMED, RESULT)]
            if files != self._files:
                data = self._read()
                self._version, self._files = self._version + (data != self._data), files
                self._data = data
            return self._version, self._data

    def _read(self) -> str:
        rows, speed, lives = (sampled(self._folder / name) for name in (RECORD, SPEED, RESUMED))
        rows = [row for row in rows if "step" in row]
        result = _object(self._folder / RESULT)
        status, at = "waiting", ""
        if rows:
            status = "finished" if result.get("steps", -1) >= rows[-1]["step"] else "learning"
            written = datetime.fromtimestamp((self._folder / RECORD).stat().st_mtime, UTC)
            at = f"{written:%Y-%m-%d %H:%M:%S} UTC"
        shown = result if status == "finished" else {}
        return page_data(rows, speed, [row["step"] for row in lives if "step" in row], shown, status=status, at=at)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Size and time of a file; `None` if there is none."""
    if not path.is_file():
        return None
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _object(path: Path) -> dict[str, Any]:
    """An object that a file holds; empty while there is none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
