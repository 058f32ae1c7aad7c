"""JSON lines from a TCP or Unix socket."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from hamlearn.errors import ConfigError, StreamError

MAX_LINE = 1 << 20
"""Bytes in the longest line that is read: a feed without line ends must not fill the memory."""

KEYS = ("u", "target", "t", "tau", "boundary")


def is_address(source: object) -> bool:
    """Whether a source is the address of a socket."""
    return isinstance(source, str) and source.startswith(("tcp://", "unix://"))


def connect(address: str, timeout: float) -> socket.socket:
    """A connection to `tcp://host:port` or `unix:///path`."""
    parts = urlsplit(address)
    try:
        if parts.scheme == "unix":
            path = PurePosixPath(parts.netloc + parts.path)
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            link.settimeout(timeout)
            try:
                link.connect(str(path))
            except BaseException:
                link.close()
                raise
        else:
            if not parts.hostname or parts.port is None:
                raise ConfigError(
                    f"{address!r} names no host and port. Write it as tcp://host:port or unix:///path."
                )
            link = socket.create_connection((parts.hostname, parts.port), timeout)
    except OSError as error:
        raise StreamError(
            f"cannot connect to {address} ({error}). Start the sender first, or mend the address."
        ) from error
    # A feed may be silent for hours: only connecting has a time limit.
    link.settimeout(None)
    return link


class JsonLines:
    """The objects that a socket sends, one a line. `bad` counts lines that were left out."""

    def __init__(self, link: socket.socket, name: str, skip_bad: bool) -> None:
        self._link, self._name, self._skip_bad = link, name, skip_bad
        self.line = 0
        self.bad = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self._link, self._link.makefile("rb") as file:
            while True:
                data = file.readline(MAX_LINE + 1)
                if not data:
                    return
                self.line += 1
                if len(data) > MAX_LINE:
                    raise StreamError(
                        f"{self.place} is longer than {MAX_LINE} bytes. End each JSON object with a line feed."
                    )
                if data.isspace():
                    continue
                item = self._parse(data, whole=data.endswith(b"\n"))
                if item is not None:
                    yield item

    @property
    def place(self) -> str:
        """Where the reading is, for messages."""
        return f"line {self.line} of {self._name}"

    def stop(self) -> None:
        """Wake the reader, from any thread."""
        try:
            self._link.shutdown(socket.SHUT_RDWR)
        except OSError:
            # The other side was faster; there is nobody left to wake.
            return

    def _parse(self, data: bytes, whole: bool) -> dict[str, Any] | None:
        shown = data[:80].decode("utf-8", "replace").rstrip("\n")
        try:
            item = json.loads(data)
            problem = _problem(item)
        except ValueError as error:
            if not whole:
                raise StreamError(
                    f"the connection to {self._name} closed in the middle of line {self.line}, after "
                    f"{shown!r}. "
                    f"The {self.line - 1} lines before it were read; start the sender again."
                ) from error
            problem = str(error)
        if not problem:
            return dict(item)
        if self._skip_bad:
            self.bad += 1
            return None
        raise StreamError(
            f"{self.place} is no sample: {problem}, in {shown!r}. Send objects like "
            '{"u": [0.1], "target": [1.0], "t": 0.5}, or leave bad lines out with bad="skip".'
        )


def _problem(item: Any) -> str | None:
    if not isinstance(item, dict):
        return f"it is a {type(item).__name__}, not an object"
    if "u" not in item:
        return "it has no u"
    unknown = sorted(set(item) - set(KEYS))
    if unknown:
        return f"it has the unknown key {unknown[0]!r} (known are {', '.join(KEYS)})"
    return None
