"""The page and its routes, for any server: a path in, an answer out."""

from __future__ import annotations

import html
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import resources
from string import Template
from typing import Protocol

from hamlearn.record.page import asset

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What the page may load: its own style, script and events, and nothing from anywhere else."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
STILL_HERE = 15.0
"""Seconds after which a line without meaning shows whether the reader is still there."""


class View(Protocol):
    """What the page shows: `RunView`, or whatever says the same of a run."""

    title: str

    def look(self) -> tuple[int, str]:
        """The number of the present view, and its parts as one line of JSON.

        `status` is `waiting`, `learning` or `finished`, `at` the time of the last row; `alarm`, `cards` and
        `charts` are HTML, as `hamlearn.record.page.sections` makes it.
        """

    def facts(self) -> str:
        """What is being run, as HTML."""


@dataclass(frozen=True)
class Answer:
    """What a server is to send.

    Args:
        status: Of HTTP.
        body: The whole of it, or pieces that are to be sent as they come.
        kind: Its media type.
        headers: Further headers.

    Example:
        >>> Answer(404, b"there is no such page").headers["X-Content-Type-Options"]
        'nosniff'
    """

    status: int
    body: bytes | Iterator[bytes]
    kind: str = "text/plain; charset=utf-8"
    headers: dict[str, str] = field(default_factory=lambda: dict(HEADERS))


class Site:
    """The live page: `/`, its style and script, and `/events`, by which the server sends what is new.

    It knows no web framework: whoever serves it passes the path on, and sends the answer.

    Args:
        view: What is shown.
        root: The path that it is served under, such as `/watch`; without a slash at the end.
        pause: Seconds between two looks for something new.
        sleep: How to wait so long.

    Example:
        >>> empty = dict.fromkeys(("status", "at", "alarm", "cards", "charts"), "")
        >>> class Nothing:
        ...     title = "A run"
        ...     look = lambda self: (1, json.dumps(empty))
        ...     facts = lambda self: ""
        >>> site = Site(Nothing())
        >>> site.get("/").status, b"A run" in site.get("/").body, site.get("/other").status
        (200, True, 404)
    """

    def __init__(
        self, view: View, root: str = "", pause: float = 0.5, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._view, self._root, self._pause, self._sleep = view, root, pause, sleep
        self._files = {
            "/watch.css": (asset("report.css") + _own("watch.css"), "text/css; charset=utf-8"),
            "/watch.js": (asset("report.js") + _own("watch.js"), "text/javascript; charset=utf-8"),
        }

    def get(self, path: str, seen: str | None = None) -> Answer:
        """The answer to a request.

        Args:
            path: Below `root`; what follows a question mark is ignored.
            seen: The header `Last-Event-ID`, where a browser that lost its connection comes back.
        """
        path = path.partition("?")[0]
        if path in ("", "/"):
            return Answer(200, self._page().encode(), "text/html; charset=utf-8")
        if path == "/events":
            return Answer(200, self.events(seen), "text/event-stream; charset=utf-8")
        if path in self._files:
            text, kind = self._files[path]
            return Answer(200, text.encode(), kind)
        return Answer(404, f"There is no {path[:80]!r} here: the page is at {self._root}/.\n".encode())

    def events(self, seen: str | None = None) -> Iterator[bytes]:
        """The view as it is, and then each new one, as server-sent events, until nobody reads them."""
        quiet = 0.0
        while True:
            version, parts = self._view.look()
            if str(version) != seen:
                seen, quiet = str(version), 0.0
                yield f"event: view\nid: {version}\ndata: {parts}\n\n".encode()
            elif quiet >= STILL_HERE:
                quiet = 0.0
                yield b": still here\n\n"
            self._sleep(self._pause)
            quiet += self._pause

    def _page(self) -> str:
        facts = self._view.facts()
        parts = json.loads(self._view.look()[1])
        names = {"root": html.escape(self._root), "title": html.escape(self._view.title), "facts": facts}
        return Template(_own("page.html")).substitute(parts | names)


def _own(name: str) -> str:
    return resources.files("hamlearn.watch").joinpath(name).read_text("utf-8")
