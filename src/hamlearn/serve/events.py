"""The live page of a served learner's records at `/`, and its server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response

from hamlearn.serve.refusals import BUSY, Refused
from hamlearn.watch import RunView, Site

PAUSE = 1.0
"""Seconds between two looks for something new."""


class LivePage:
    """The page that `hamlearn watch` shows, of the records in a folder.

    Args:
        folder: Of the records.
        title: Of the page.
        most: How many may read events at the same time.
    """

    def __init__(self, folder: Path, title: str, most: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._view = RunView(folder)
        self._view.title = title
        self._site, self._most, self.open = Site(self._view), most, 0
        # One thread reads files and draws charts for all readers, so that requests are not held up.
        self._thread = ThreadPoolExecutor(1, "hamlearn-page")

    async def page(self, request: Request) -> Response:
        """The live page of the records."""
        answer = await asyncio.get_running_loop().run_in_executor(self._thread, self._site.get, request.url.path)
        assert isinstance(answer.body, bytes)
        return Response(answer.body, answer.status, answer.headers, answer.kind)

    async def events(self, request: Request) -> Response:
        """New views of the live page, as server-sent events."""
        if self.open >= self._most:
            raise Refused(503, f"serve.sockets = {self._most} clients read events. Close one.", retry=BUSY)
        return EventSourceResponse(self._views(request.headers.get("last-event-id")))

    async def _views(self, seen: str | None) -> AsyncIterator[ServerSentEvent]:
        loop = asyncio.get_running_loop()
        self.open += 1
        try:
            while True:
                version, parts = await loop.run_in_executor(self._thread, self._view.look)
                if str(version) != seen:
                    seen = str(version)
                    yield ServerSentEvent(parts, event="view", id=seen)
                await asyncio.sleep(PAUSE)
        finally:
            self.open -= 1
