"""The live page as a Starlette application, and served to this machine."""

from __future__ import annotations

import html
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from string import Template
from typing import TYPE_CHECKING

from hamlearn.errors import ConfigError, install
from hamlearn.record.page import PLACES, asset
from hamlearn.watch.folder import RunFolder

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
PAUSE = 0.5
"""Seconds between two looks for something new."""
LOCAL = ("127.0.0.1", "localhost")


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
    run, own = RunFolder(folder, title), files()

    def shown(request: Request) -> Response:
        return HTMLResponse(page(run), headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-store"})

    def file(request: Request) -> Response:
        text, kind = own[request.url.path.rpartition("/")[2]]
        return Response(text, media_type=kind)

    async def events(request: Request) -> Response:
        ending = anyio.Event()
        views = _events(run, request.headers.get("last-event-id", ""), ending)
        return EventSourceResponse(views, shutdown_event=ending, shutdown_grace_period=2 * PAUSE)

    routes = [Route("/", shown), *(Route(f"/{name}", file) for name in own), Route("/events", events)]
    return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))])


def page(run: RunFolder) -> str:
    """The HTML of the page; it asks for its files, and for `events`, beside itself."""
    name, facts = run.about()
    return Template(_own("page.html")).substitute(title=html.escape(name), facts=facts, places=PLACES)


def files() -> dict[str, tuple[str, str]]:
    """The style and the script of the page, each with its media type."""
    return {
        "watch.css": (asset("report.css") + _own("watch.css"), "text/css"),
        "watch.js": (asset("report.js") + _own("watch.js"), "text/javascript"),
    }


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
    config = uvicorn.Config(served, log_level="warning", timeout_graceful_shutdown=1, lifespan="off")
    server = uvicorn.Server(config)
    # uvicorn closes it.
    listening = socket.create_server((host, port))
    address = f"http://{host}:{listening.getsockname()[1]}/"
    thread = threading.Thread(target=server.run, args=([listening],), name="hamlearn-watch", daemon=True)
    thread.start()
    watching = Watching(address)
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield watching
    finally:
        watching.ended.set()
        server.should_exit = True
        thread.join()


def _own(name: str) -> str:
    return resources.files("hamlearn.watch").joinpath(name).read_text("utf-8")
