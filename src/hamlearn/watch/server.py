"""The live page on loopback, by Python's own server."""

from __future__ import annotations

import ipaddress
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from hamlearn._version import __version__
from hamlearn.errors import ConfigError
from hamlearn.watch.run_view import RunView
from hamlearn.watch.site import HEADERS, Answer, Site

READERS = 64
"""Connections at one time: each is a thread."""
SLOW = 20.0
"""Seconds that a reader or a writer may take for one piece."""


class Server(ThreadingHTTPServer):
    """Serves a site to this machine alone.

    Args:
        site: What is served.
        host: An address of loopback.
        port: Where; 0 is any that is free.

    Attributes:
        address: Where the page is.

    Example:
        >>> import tempfile
        >>> from hamlearn.watch import RunView, Site
        >>> with Server(Site(RunView(tempfile.mkdtemp())), port=0) as server:
        ...     server.address.startswith("http://127.0.0.1:")
        True
    """

    daemon_threads = True
    # A page that is watched never ends: closing must not wait for it.
    block_on_close = False
    request_queue_size = READERS

    def __init__(self, site: Site, host: str = "127.0.0.1", port: int = 8765) -> None:
        require_loopback(host)
        self.site = site
        self._readers = threading.Semaphore(READERS)
        self.ended = threading.Event()
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), Handler)
        name = f"[{host}]" if ":" in host else host
        self.address = f"http://{name}:{self.server_address[1]}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take a connection, or say at once that there are too many."""
        if self._readers.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        request.settimeout(1.0)
        try:
            body = b"Too many connections. Close one of the pages, or try again later.\n"
            head = f"HTTP/1.0 503 Busy\r\nRetry-After: 5\r\nContent-Length: {len(body)}\r\n\r\n"
            request.sendall(head.encode() + body)
        except OSError:
            # It did not wait for the answer.
            return
        finally:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room again."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._readers.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that went away is no error."""

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.1,), name="hamlearn-watch", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    timeout = SLOW
    server_version = f"hamlearn/{__version__}"
    sys_version = ""
    server: Server

    def do_GET(self) -> None:
        """Answer a request."""
        # A page of another site must not reach this one under a name that it has given to this machine.
        if not _is_own(self.headers.get("Host", "")):
            self._send(Answer(403, b"This page is for this machine alone: open it by its address.\n"))
            return
        self._send(self.server.site.get(self.path, self.headers.get("Last-Event-ID")))

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in {**answer.headers, "Content-Type": answer.kind}.items():
            self.send_header(name, value)
        if isinstance(answer.body, bytes):
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)
            return
        self.end_headers()
        for piece in answer.body:
            if self.server.ended.is_set():
                return
            self.wfile.write(piece)
            self.wfile.flush()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse, with the same headers as everything else."""
        self.close_connection = True
        self.send_response(code)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody asked for a log."""


def watch(folder: str | Path, host: str = "127.0.0.1", port: int = 8765) -> Server:
    """The live page of a folder that `hamlearn run` writes; use it in a `with` block.

    Example:
        >>> import tempfile, urllib.request
        >>> with watch(tempfile.mkdtemp(), port=0) as server:
        ...     urllib.request.urlopen(server.address).status
        200
    """
    return Server(Site(RunView(folder)), host, port)


def require_loopback(host: str) -> None:
    """Refuse an address that others can reach."""
    try:
        fits = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        fits = False
    if not fits:
        raise ConfigError(
            f"{host!r} is no address of loopback: the page has no password, and everybody could read it. Watch "
            "from another machine by `ssh -L 8765:127.0.0.1:8765 HOST`, or through a proxy that asks who is there."
        )


def _is_own(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
