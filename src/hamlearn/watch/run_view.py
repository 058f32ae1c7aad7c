"""What a page shows of a run, anew whenever there is something new to show."""

from __future__ import annotations

import html
import json
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hamlearn.errors import ConfigError
from hamlearn.experiments.run import RECORD, RESULT, RESUMED, SPEED, facts
from hamlearn.experiments.run_config import load
from hamlearn.record.page import sections, table
from hamlearn.watch.tail import Tail, summary


class RunView:
    """A folder that `hamlearn run` writes, as the parts of a page.

    Whoever looks makes the page for all who look at that moment: between two looks at the files lies at least
    `every` seconds, however many watch.

    Args:
        folder: Of the run, which may still be about to begin.
        every: Seconds between two looks at the files.
        clock: Seconds.

    Attributes:
        title: Of the run.

    Example:
        >>> import tempfile
        >>> view = RunView(tempfile.mkdtemp())
        >>> version, parts = view.look()
        >>> version, view.title
        (1, 'Run')
    """

    def __init__(
        self, folder: str | Path, every: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._every, self._clock = Path(folder), every, clock
        if not self._folder.is_dir():
            raise ConfigError(f"there is no folder {str(folder)!r}. Give the folder that hamlearn run writes to.")
        self._record, self._speed, self._lives = (Tail(self._folder / name) for name in (RECORD, SPEED, RESUMED))
        self._lock = threading.Lock()
        self._looked: float | None = None
        self._version, self._parts, self._key = 0, "", ""
        self.title = "Run"

    def look(self) -> tuple[int, str]:
        """The number of the present view, which grows when it changes, and its parts as one line of JSON."""
        with self._lock:
            now = self._clock()
            if self._looked is None or now - self._looked >= self._every:
                self._looked = now
                self._refresh()
            return self._version, self._parts

    def facts(self) -> str:
        """What is being run, as an HTML table; empty until the run has written its configuration."""
        path = self._folder / "config.toml"
        if not path.is_file():
            return ""
        config = load(path)
        self.title = config["run"]["title"]
        return table(facts(config))

    def _refresh(self) -> None:
        new = [tail.look() for tail in (self._record, self._speed, self._lives)]
        rows = [row for row in self._record.rows if type(row.get("step")) is int]
        end = summary(self._folder / RESULT)
        ended = bool(rows and end and type(end.get("steps")) is int and end["steps"] >= rows[-1]["step"])
        key = json.dumps([ended, len(rows)])
        if self._version and not any(new) and key == self._key:
            return
        self._key = key
        self._parts = json.dumps(self._made(rows, ended))
        self._version += 1

    def _made(self, rows: list[dict[str, Any]], ended: bool) -> dict[str, str]:
        if not rows:
            waiting = "Nothing has been recorded yet: the first rows appear here by themselves."
            return {
                "status": "waiting",
                "alarm": "",
                "cards": "",
                "charts": f'<p class="empty">{waiting}</p>',
                "at": "",
            }
        lives = [row["step"] for row in self._lives.rows if type(row.get("step")) is int]
        written = (self._folder / RECORD).stat().st_mtime
        at = f"{datetime.fromtimestamp(written, UTC):%Y-%m-%d %H:%M:%S} UTC"
        parts = sections(rows, self._speed.rows, lives)
        return {"status": "finished" if ended else "learning", "at": html.escape(at), **parts}
