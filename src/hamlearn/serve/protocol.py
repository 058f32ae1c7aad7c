"""Connections that cannot hold a server up: bounds on what uvicorn leaves to proxies."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from hamlearn.serve.answers import send_refused
from hamlearn.serve.refusals import BUSY, Refused

HEAD = 65_536
"""Bytes of the longest request line with all its headers."""

PIPELINED = 16
"""Requests of one connection that wait behind one that is being answered."""


class _Reader:
    """Gives up on a client that does not read its answers.

    Where more is to be sent than the system and the transport hold, the client has so many seconds to read some. A
    connection that is being closed has as long to be read out: the transport itself would wait for ever.
    """

    seconds: float
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _unread: asyncio.TimerHandle | None = None
    _looking: asyncio.TimerHandle | None = None
    _closing = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        self._looking = self.loop.call_later(self.seconds, self._look)

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        self._unread = self.loop.call_later(self.seconds, self.give_up)

    def resume_writing(self) -> None:
        super().resume_writing()  # type: ignore[misc]
        _stop(self._unread)

    def connection_lost(self, exc: Exception | None) -> None:
        self.forget()
        super().connection_lost(exc)  # type: ignore[misc]

    def forget(self) -> None:
        """Stop all timers."""
        _stop(self._unread, self._looking)

    def give_up(self) -> None:
        """End the connection now, and have the system forget what it still holds of it."""
        link = self.transport.get_extra_info("socket")
        # A socket that is closed already, or that is none of the system's, has nothing left to forget.
        with contextlib.suppress(OSError, AttributeError):
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _look(self) -> None:
        if self._closing:
            self.give_up()
            return
        self._closing = self.transport.is_closing()
        self._looking = self.loop.call_later(self.seconds, self._look)


def _stop(*timers: asyncio.TimerHandle | None) -> None:
    for timer in timers:
        if timer is not None:
            timer.cancel()


class Socket(_Reader, WebSocketsSansIOProtocol):
    """A WebSocket, with a bound on the time that its client may leave answers unread."""


class Connection(_Reader, HttpToolsProtocol):
    """A connection over HTTP, with bounds on the time and the size of headers, and on the number of connections.

    Attributes:
        most: How many connections are served; those beyond get a 503, and beyond twice as many they are closed.
    """

    most: int
    _head: float | None = None
    _size = 0

    def connection_made(self, transport: Any) -> None:
        """Serve the connection, if there are not too many."""
        super().connection_made(transport)
        if len(self.connections) > 2 * self.most:
            transport.abort()
            return
        if len(self.connections) > self.most:
            self.app = self._full
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Read on, if this is not more than headers may be."""
        if self._head is None and self.cycle is not None and self.cycle.response_complete:
            # The first bytes of the next request.
            self._await_head()
        super().data_received(data)
        if self._head is not None:
            self._size += len(data)
            if self._size > HEAD:
                self._head = None
                self.send_400_response(f"The headers have more than {HEAD} bytes.")

    def on_headers_complete(self) -> None:
        """Go on to the body, which has bounds of its own, if not too many requests wait for earlier answers."""
        self._head = None
        if len(self.pipeline) >= PIPELINED:
            # The parser takes what is raised here for a bad request, which is answered; the connection is closed.
            raise ValueError(f"more than {PIPELINED} requests wait for the answers to earlier ones")
        super().on_headers_complete()

    def handle_websocket_upgrade(self) -> None:
        """Leave the connection to the protocol of WebSockets, which has timers of its own."""
        self.forget()
        super().handle_websocket_upgrade()

    def _await_head(self) -> None:
        self._size, self._head = 0, self.loop.time()

    def _look(self) -> None:
        # Now and then, since a timer for every request would take longer than the request's other timers.
        if self._head is not None and self.loop.time() - self._head >= 0.9 * self.seconds:
            self.give_up()
        else:
            super()._look()

    async def _full(self, scope: Any, receive: Any, send: Any) -> None:
        reason = (
            f"there are more than {self.most} connections (serve.connections). Close some, or try again later."
        )
        await send_refused(send, Refused(503, reason, retry=BUSY, close=True), "json")


def bounded(seconds: float, connections: int) -> tuple[type[Connection], type[Socket]]:
    """The two kinds of connections with these bounds."""
    http = type("BoundedConnection", (Connection,), {"seconds": seconds, "most": connections})
    return http, type("BoundedSocket", (Socket,), {"seconds": seconds})
