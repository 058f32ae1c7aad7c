"""A place on the loopback to download from, with the failings of real ones, that counts what it sends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@dataclass
class Place:
    """What it holds, how it fails, and what it has been asked for and has sent."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)  # bytes after which each of the next answers breaks off
    always_cut: int | None = None
    statuses: list[int] = field(default_factory=list)  # of the next answers, in place of a file
    headers: dict[str, str] = field(default_factory=dict)
    shift: int = 0  # answers a Range that begins elsewhere
    lengths: bool = True  # says how long its answers are
    asked: list[str | None] = field(default_factory=list)  # the Range of each request
    sent: int = 0
    root: str = ""

    def url(self, name: str) -> str:
        return f"{self.root}/{name}"


@contextmanager
def serve() -> Iterator[Place]:
    place = Place()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            place.asked.append(wanted)
            if self.path.startswith("/moved/"):
                self.send_response(302)
                self.send_header("Location", place.url(self.path.removeprefix("/moved/")))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            content = place.files.get(self.path[1:])
            if place.statuses or content is None:
                self.send_error(place.statuses.pop(0) if place.statuses else 404)
                return
            start = 0
            if wanted and place.ranges:
                start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) + place.shift
                if start >= len(content):
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            else:
                self.send_response(200)
            if place.lengths:
                self.send_header("Content-Length", str(len(content) - start))
            for name, value in place.headers.items():
                self.send_header(name, value)
            self.end_headers()
            body = content[start:]
            cut = place.cuts.pop(0) if place.cuts else place.always_cut
            if cut is not None:
                body, self.close_connection = body[:cut], True
            # Before a client can have all of it, and look.
            place.sent += len(body)
            # A client may go away in the middle.
            with suppress(ConnectionError):
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    place.root = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield place
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
