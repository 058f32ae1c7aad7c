"""JSON lines from a TCP or Unix socket."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from hamlearn.errors import ConfigError, StreamError
from hamlearn.streams.live import messages
from hamlearn.streams.live.messages import Letter

PIECE = 1 << 16
"""Bytes that are read at one time, if so many are there."""


def is_address(source: object) -> bool:
    """Whether a source is the address of a socket."""
    return isinstance(source, str) and source.startswith(("tcp://", "unix://"))


def connect(address: str, timeout: float) -> socket.socket:
    """A connection to `tcp://host:port` or `unix:///path`."""
    try:
        parts = urlsplit(address)
        if parts.scheme == "unix":
            link = _unix(str(PurePosixPath(parts.netloc + parts.path)), timeout)
        else:
            if not parts.hostname or parts.port is None:
                raise ValueError("it names no host and port")
            link = socket.create_connection((parts.hostname, parts.port), timeout)
            # A sender that vanished is noticed: the system asks every minute whether it is still there.
            link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 3)):
                # Not every system has all of them.
                if hasattr(socket, name):
                    link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    except (ValueError, OverflowError, TypeError) as error:
        raise ConfigError(
            f"{address!r} cannot be connected to ({error}). Write it as tcp://host:port or unix:///path."
        ) from error
    except OSError as error:
        raise StreamError(
            f"cannot connect to {address} ({error}). Start the sender first, or correct the address."
        ) from error
    # A feed may be silent for hours: only connecting has a time limit.
    link.settimeout(None)
    return link


def _unix(path: str, timeout: float) -> socket.socket:
    with contextlib.ExitStack() as stack:
        link = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        link.settimeout(timeout)
        link.connect(path)
        stack.pop_all()
        return link


class SocketLines:
    """The lines that a socket sends, but for empty ones."""

    def __init__(self, link: socket.socket, name: str) -> None:
        self._link, self._name = link, name

    def __iter__(self) -> Iterator[Letter]:
        number, most = 0, messages.LONGEST + 1
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
        # The other side may have been faster; then no thread waits any more.
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
