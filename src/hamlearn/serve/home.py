"""The live page of a served learner's records, at `/`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hamlearn.serve.answers import send_body
from hamlearn.watch import RunView, Site

PAUSE, STILL_HERE = 0.5, 15.0
"""Seconds between two looks for something new, and between two signs of life where there is nothing new."""


def live_page(folder: Path, title: str, ending: Callable[[], bool]) -> Home:
    """The page of a folder's records, as an ASGI application.

    Args:
        folder: Where the records are.
        title: Of the page.
        ending: Whether the server is about to stop, so that nobody may look on.
    """
    view = RunView(folder)
    view.title = title
    return Home(Site(view), view, ending)


class Home:
    """A site that knows no web framework, and the events of its view, for ASGI.

    Args:
        site: Answers `get(path)` with a status, a body, a kind and headers.
        view: Answers `look()` with the number of the present view, and its parts as one line of JSON.
        ending: Whether the server is about to stop.
    """

    def __init__(self, site: Site, view: RunView, ending: Callable[[], bool]) -> None:
        self._site, self._view, self._ending = site, view, ending
        # Files are read and charts drawn by one thread for all who look, so that requests are not held up.
        self._thread = ThreadPoolExecutor(1, "hamlearn-page")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request for the page, its parts, or its events."""
        loop = asyncio.get_running_loop()
        if scope["path"] == "/events" and scope["method"] == "GET":
            await self._events(scope, send)
            return
        answer = await loop.run_in_executor(self._thread, self._site.get, scope["path"])
        assert isinstance(answer.body, bytes)
        headers = tuple((name.lower(), text) for name, text in answer.headers.items())
        rest = tuple(pair for pair in headers if pair[0] not in ("cache-control", "x-content-type-options"))
        await send_body(send, answer.status, answer.body, answer.kind, rest)

    async def _events(self, scope: Any, send: Any) -> None:
        loop, quiet = asyncio.get_running_loop(), 0.0
        seen = dict(scope["headers"]).get(b"last-event-id", b"").decode("latin-1")
        head = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        while not self._ending():
            version, parts = await loop.run_in_executor(self._thread, self._view.look)
            piece = b""
            if str(version) != seen:
                seen, piece = str(version), f"event: view\nid: {version}\ndata: {parts}\n\n".encode()
            elif quiet >= STILL_HERE:
                piece = b": still here\n\n"
            if piece:
                quiet = 0.0
                try:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                except OSError:
                    return
            await asyncio.sleep(PAUSE)
            quiet += PAUSE
        await send({"type": "http.response.body", "body": b""})
