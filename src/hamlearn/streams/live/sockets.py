"""JSON lines from a TCP or Unix socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from hamlearn.errors import ConfigError, StreamError
from hamlearn.streams.live import wire
from hamlearn.streams.live.wire import Letter

PIECE = 1 << 16
"""Bytes that are read at one time, where so many are there."""


def is_address(source: object) -> bool:
    """Whether a source is the address of a socket."""
    return isinstance(source, str) and source.startswith(("tcp://", "unix://"))


def connect(address: str, timeout: float) -> socket.socket:
    """A connection to `tcp://host:port` or `unix:///path`."""
    try:
        parts = urlsplit(address)
        path = str(PurePosixPath(parts.netloc + parts.path))
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{address!r} is no address ({error}). {_FORMS}") from error
    try:
        if parts.scheme == "unix":
            link = _unix(path, timeout)
        elif host and port is not None:
            link = socket.create_connection((host, port), timeout)
        else:
            raise ConfigError(f"{address!r} names no host and port. {_FORMS}")
    except (UnicodeError, OverflowError, TypeError) as error:
        raise ConfigError(f"{address!r} cannot be connected to ({error}). {_FORMS}") from error
    except OSError as error:
        raise StreamError(
            f"cannot connect to {address} ({error}). Start the sender first, or mend the address."
        ) from error
    # A feed may be silent for hours: only connecting has a time limit. A sender that vanished is noticed anyway.
    link.settimeout(None)
    if link.family != socket.AF_UNIX:
        keep_alive(link)
    return link


def keep_alive(link: socket.socket) -> None:
    """Let the system ask every minute whether the other side is still there."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 3)):
        # Not every system has all of them.
        if hasattr(socket, name):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _unix(path: str, timeout: float) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.settimeout(timeout)
        link.connect(path)
    except BaseException:
        link.close()
        raise
    return link


_FORMS = "Write it as tcp://host:port or unix:///path."


class SocketLines:
    """The lines that a socket sends, but for empty ones."""

    def __init__(self, link: socket.socket, name: str) -> None:
        self._link, self._name = link, name

    def __iter__(self) -> Iterator[Letter]:
        number, most = 0, wire.LONGEST + 1
        with self._link, self._link.makefile("rb", buffering=PIECE) as file:
            while data := file.readline(most):
                number += 1
                place = f"line {number} of {self._name}"
                if len(data) < most and not data.endswith(b"\n"):
                    place += ", in the middle of which the connection closed,"
                if not data.isspace():
                    yield Letter(data, place)
                # Only now, since a learner that does not skip bad lines must not wait for the end of this one.
                while len(data) == most and not data.endswith(b"\n"):
                    data = file.readline(most)

    def stop(self) -> None:
        """Wake the reader, from any thread."""
        try:
            self._link.shutdown(socket.SHUT_RDWR)
        except OSError:
            # The other side was faster; no thread waits any more.
            return
