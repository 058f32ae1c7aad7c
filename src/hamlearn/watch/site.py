"""The live page of a run: the data of its folder, as a Starlette application, and served to this machine."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from hamlearn.errors import ConfigError, install
from hamlearn.experiments.run import RECORD, RESULT, RESUMED, SPEED, facts
from hamlearn.experiments.run.config import load
from hamlearn.record.jsonl import sampled
from hamlearn.record.page import PLACES, asset, framed, page_data, table

try:
    import anyio
    import uvicorn
    from sse_starlette import EventSourceResponse, ServerSentEvent
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import HTMLResponse, Response
    from starlette.routing import Route
except ImportError as error:
    raise ConfigError(f"the live page needs Starlette, sse-starlette and uvicorn: {install('watch')}") from error

if TYPE_CHECKING:
    from starlette.requests import Request

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What the page may load: its own style, script and events, and nothing from anywhere else."""
HEAD = '<link rel="stylesheet" href="watch.css">\n<script src="watch.js" defer></script>'
STATUS = (
    '<span class="status" role="status"><i class="lamp"></i><span id="status"></span><span id="at"></span></span>'
)
PAUSE = 0.5
"""Seconds between two looks for something new."""
LOCAL = ("127.0.0.1", "localhost")


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
        self._stamps: list[tuple[int, int] | None] = []
        self._version, self._data = 0, ""

    def page(self) -> str:
        """The HTML of the page, with what is being run once that is known; it asks for its data itself."""
        path = self._folder / "config.toml"
        config = load(path) if path.is_file() else None
        title = self._title or ("Run" if config is None else config["run"]["title"])
        return framed(title, STATUS, f"{PLACES}\n{table(facts(config) if config else {})}", head=HEAD)

    def look(self) -> tuple[int, str]:
        """The number of the present data, which grows when they change, and the data as JSON."""
        paths = [self._folder / name for name in (RECORD, SPEED, RESUMED, RESULT)]
        with self._lock:
            found = [path.stat() if path.is_file() else None for path in paths]
            stamps = [None if one is None else (one.st_size, one.st_mtime_ns) for one in found]
            if stamps != self._stamps:
                data = self._read(*paths)
                self._version, self._stamps = self._version + (data != self._data), stamps
                self._data = data
            return self._version, self._data

    def _read(self, record: Path, speed: Path, resumed: Path, ended: Path) -> str:
        rows, timed, lives = ([row for row in sampled(path) if "step" in row] for path in (record, speed, resumed))
        try:
            result = dict(json.loads(ended.read_bytes()))
        except (OSError, ValueError, TypeError):
            result = {}
        status, at = "waiting", ""
        if rows:
            status = "finished" if result.get("steps", -1) >= rows[-1]["step"] else "learning"
            at = f"{datetime.fromtimestamp(record.stat().st_mtime, UTC):%Y-%m-%d %H:%M:%S} UTC"
        shown = result if status == "finished" else {}
        return page_data(rows, timed, [row["step"] for row in lives], shown, status=status, at=at)


def app(folder: str | os.PathLike[str], title: str | None = None, *, hosts: tuple[str, ...] = ("*",)) -> Starlette:
    """The live page of a folder that `hamlearn run` writes, to be mounted in a server.

    Args:
        folder: Where the records are.
        title: Of the page; `None`: that of the run.
        hosts: Names by which the page may be asked for.

    Example:
        >>> import tempfile
        >>> [route.path for route in app(tempfile.mkdtemp()).routes]
        ['/', '/watch.css', '/watch.js', '/events']
    """
    run = RunFolder(folder, title)
    texts = {
        "watch.css": (asset("report.css") + asset("watch.css", "hamlearn.watch"), "text/css"),
        "watch.js": (asset("report.js") + asset("watch.js", "hamlearn.watch"), "text/javascript"),
    }

    def page(request: Request) -> Response:
        return HTMLResponse(run.page(), headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-store"})

    def file(request: Request) -> Response:
        text, kind = texts[request.url.path.rpartition("/")[2]]
        return Response(text, media_type=kind)

    async def events(request: Request) -> Response:
        ending = anyio.Event()
        views = _events(run, request.headers.get("last-event-id", ""), ending)
        return EventSourceResponse(views, shutdown_event=ending, shutdown_grace_period=2 * PAUSE)

    routes = [Route("/", page), *(Route(f"/{name}", file) for name in texts), Route("/events", events)]
    return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))])


async def _events(run: RunFolder, seen: str, ending: anyio.Event) -> AsyncIterator[ServerSentEvent]:
    """The data as they are, and again whenever they change, until the reader leaves or the server stops."""
    while not ending.is_set():
        version, data = await run_in_threadpool(run.look)
        if str(version) != seen:
            seen = str(version)
            yield ServerSentEvent(data, event="data", id=seen)
        with anyio.move_on_after(PAUSE):
            await ending.wait()


@dataclass(frozen=True)
class Watching:
    """A page that is being served.

    Attributes:
        address: Where the page is.
        ended: Set when it ends.
    """

    address: str
    ended: threading.Event = field(default_factory=threading.Event)


@contextmanager
def watch(folder: str | os.PathLike[str], host: str = "127.0.0.1", port: int = 8765) -> Iterator[Watching]:
    """Serve the live page of a folder to this machine, in a `with` block.

    Args:
        folder: That `hamlearn run` writes to.
        host: `"127.0.0.1"` or `"localhost"`: the page has no password.
        port: Where; 0 is any that is free.

    Example:
        >>> import tempfile, urllib.request
        >>> with watch(tempfile.mkdtemp(), port=0) as page:
        ...     urllib.request.urlopen(page.address).status
        200
    """
    if host not in LOCAL:
        raise ConfigError(
            f"host={host!r} must be one of {', '.join(LOCAL)}: the page has no password, and everybody could read "
            "it. Watch from another machine by `ssh -L 8765:127.0.0.1:8765 HOST`, or mount hamlearn.watch.app in "
            "a server of yours."
        )
    # Other names could be given to this machine by a page of another site.
    served = app(folder, hosts=LOCAL)
    server = uvicorn.Server(
        uvicorn.Config(served, log_level="warning", timeout_graceful_shutdown=1, lifespan="off")
    )
    # uvicorn closes it.
    listening = socket.create_server((host, port))
    watching = Watching(f"http://{host}:{listening.getsockname()[1]}/")
    thread = threading.Thread(target=server.run, args=([listening],), name="hamlearn-watch", daemon=True)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield watching
    finally:
        watching.ended.set()
        server.should_exit = True
        thread.join()
