"""The live page of a served learner's records at `/`, and its server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from hamlearn.serve.refusals import BUSY, Refused
from hamlearn.watch import RunFolder
from hamlearn.watch.site import POLICY, files, page

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
        self._run, self._files = RunFolder(folder, title), files()
        self._most, self.open = most, 0

    async def page(self, request: Request) -> Response:
        """The live page of the records, its style or its script."""
        name = request.url.path.rpartition("/")[2]
        if name in self._files:
            text, kind = self._files[name]
            return Response(text, media_type=kind)
        headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store"}
        return HTMLResponse(await run_in_threadpool(page, self._run), headers=headers)

    async def events(self, request: Request) -> Response:
        """New views of the live page, as server-sent events."""
        if self.open >= self._most:
            raise Refused(503, f"serve.sockets = {self._most} clients read events. Close one.", retry=BUSY)
        ending = anyio.Event()
        views = self._views(request.headers.get("last-event-id"), ending)
        return EventSourceResponse(views, shutdown_event=ending, shutdown_grace_period=2 * PAUSE)

    async def _views(self, seen: str | None, ending: anyio.Event) -> AsyncIterator[ServerSentEvent]:
        """New views until the client leaves, or the server stops."""
        self.open += 1
        try:
            while not ending.is_set():
                version, data = await run_in_threadpool(self._run.look)
                if str(version) != seen:
                    seen = str(version)
                    yield ServerSentEvent(data, event="data", id=seen)
                with anyio.move_on_after(PAUSE):
                    await ending.wait()
        finally:
            self.open -= 1
