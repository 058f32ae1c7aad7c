"""A run's report as a page that updates while the run continues, served to this machine."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from hamlearn.errors import ConfigError
from hamlearn.experiments.run import RECORD, RESULT, RESUMED, SPEED, configuration, facts
from hamlearn.record.fields import Row
from hamlearn.record.jsonl import parsed, whole_lines
from hamlearn.record.page import asset, framed, page_data, thinned

__all__ = ["watch"]

LOCAL = ("127.0.0.1", "localhost")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What the page may load: its own style, script and data, and nothing from anywhere else."""
HEAD = '<link rel="stylesheet" href="report.css">\n<script src="report.js" defer></script>'
STATUS = (
    '<span class="status" role="status"><i class="lamp"></i><span id="status"></span><span id="at"></span></span>'
)


@contextmanager
def watch(folder: str | os.PathLike[str], host: str = "127.0.0.1", port: int = 8765) -> Iterator[str]:
    """Serve the live page of a folder to this machine, in a `with` block that is given the address.

    Args:
        folder: That `hamlearn run` writes to, or is about to.
        host: `"127.0.0.1"` or `"localhost"`: the page has no password.
        port: Where; 0 is any that is free.

    Example:
        >>> import tempfile, urllib.request
        >>> with watch(tempfile.mkdtemp(), port=0) as address:
        ...     urllib.request.urlopen(address).status
        200
    """
    if host not in LOCAL:
        raise ConfigError(
            f"host={host!r} must be one of {', '.join(LOCAL)}: the page has no password, and anyone could read "
            "it. Watch from another machine with `ssh -L 8765:127.0.0.1:8765 HOST`."
        )
    if not Path(folder).is_dir():
        raise ConfigError(f"there is no folder {str(folder)!r}. Give the folder that hamlearn run writes to.")
    server = ThreadingHTTPServer((host, port), type("Page", (_Page,), {"folder": Path(folder)}))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="hamlearn-watch", daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Page(BaseHTTPRequestHandler):
    """Answers requests for the page, its style, its script and its data."""

    folder: Path

    def do_GET(self) -> None:
        """Answer a request; other names of this machine could be given to it by a page of another site."""
        if self.headers.get("Host", "").rpartition(":")[0] not in LOCAL:
            self.send_error(400)
            return
        match self.path:
            case "/":
                self._answer(page(self.folder), "text/html")
            case "/report.css":
                self._answer(asset("report.css"), "text/css")
            case "/report.js":
                self._answer(asset("report.js") + asset("watch.js"), "text/javascript")
            case "/data":
                tag = _stamp(self.folder)
                if tag == self.headers.get("If-None-Match"):
                    self.send_response(304)
                    self.end_headers()
                else:
                    self._answer(data(self.folder), "application/json", tag)
            case _:
                self.send_error(404)

    def _answer(self, text: str, kind: str, tag: str = "") -> None:
        body = text.encode()
        self.send_response(200)
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body)), "ETag": tag}
        for name, value in (headers | {"Content-Security-Policy": POLICY, "Cache-Control": "no-store"}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""


def page(folder: Path) -> str:
    """The HTML of the page, with what is being run once that is known; it asks for its data itself."""
    config = None
    with suppress(ConfigError):
        config = configuration(folder)
    title = "Run" if config is None else config["run"]["title"]
    return framed(title, STATUS, facts(config) if config else None, HEAD)


def data(folder: Path) -> str:
    """What the page draws: rows of the record, what the run is at, and when that was."""
    rows, timed, lives = (rows_of(folder / name) for name in (RECORD, SPEED, RESUMED))
    result, status, at = {}, "waiting", ""
    with suppress(OSError, ValueError, TypeError):
        result = dict(json.loads((folder / RESULT).read_bytes()))
    if rows:
        status = "finished" if result.get("steps", -1) >= rows[-1]["step"] else "learning"
        at = f"{datetime.fromtimestamp((folder / RECORD).stat().st_mtime, UTC):%Y-%m-%d %H:%M:%S} UTC"
    shown = result if status == "finished" else {}
    return page_data(rows, timed, resumed=[row["step"] for row in lives], result=shown, status=status, at=at)


def rows_of(path: Path) -> list[Row]:
    """Rows of a file that may still grow, of many only some; what is not a row, or not whole, is passed over."""
    rows = []
    for line in thinned(whole_lines(path)) if path.is_file() else ():
        with suppress(ValueError, RecursionError):
            rows.append(parsed(line))
    return [row for row in rows if "step" in row]


def _stamp(folder: Path) -> str:
    """Changes when the data do."""
    paths = [folder / name for name in (RECORD, SPEED, RESUMED, RESULT)]
    found = [path.stat() for path in paths if path.is_file()]
    return f'"{"-".join(f"{one.st_size}.{one.st_mtime_ns}" for one in found)}"'
