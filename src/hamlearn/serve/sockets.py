"""A WebSocket for streams of samples: one response for each message, in their order."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from hamlearn.errors import HamlearnError
from hamlearn.serve.batch import Batch
from hamlearn.serve.forms import Reader, encode
from hamlearn.serve.metrics import Metrics
from hamlearn.serve.refusals import Refused
from hamlearn.serve.routes import agent_of, require_learning
from hamlearn.serve.service import Service

AHEAD = 64
"""Messages of one connection that may wait for their responses; the client is not read meanwhile."""


class Sockets:
    """`/stream`: each message is a body of `POST /predict` or `POST /label`.

    The response to a bad message is its error, and the stream continues. If too many samples wait, the connection
    is not read until there is room: the client is slowed down, not refused.

    Args:
        service: The learners and their queue.
        metrics: Where messages are counted.
        reader: Turns messages into batches.
    """

    def __init__(self, service: Service, metrics: Metrics, reader: Reader) -> None:
        self._service, self._metrics, self._reader = service, metrics, reader
        self._open = 0

    async def serve(self, socket: WebSocket) -> None:
        """Serve one connection to its end."""
        most = self._service.settings.serve["sockets"]
        try:
            agent = agent_of(socket)
            self._service.agents.require(agent, make=True)
            if self._open >= most:
                raise Refused(503, f"serve.sockets = {most} WebSockets are open. Close one.")
        except Refused as refused:
            # Before the handshake is done, this is a 403.
            await socket.close(1008, refused.reason[:100])
            return
        self._open += 1
        coming: asyncio.Queue[Any] = asyncio.Queue(AHEAD)
        try:
            await socket.accept()
            writer = asyncio.create_task(self._write(coming, socket))
            try:
                while (message := await socket.receive())["type"] != "websocket.disconnect":
                    await coming.put((time.perf_counter(), await self._begin(agent, message, socket)))
            finally:
                await coming.put(None)
                await writer
        finally:
            self._open -= 1

    async def _begin(self, agent: str, message: Any, socket: WebSocket) -> Any:
        """Queue a message before the next one is read, so that they keep their order; an error is returned."""
        try:
            batch = self._read((message.get("text") or "").encode() or message.get("bytes") or b"")
            batch.agent = agent
            if batch.learns:
                require_learning(socket.scope)
            await self._service.room(batch.count)
            return batch, self._service.take(batch)
        except Refused as refused:
            return refused

    def _read(self, body: bytes) -> Batch:
        try:
            return self._reader.read(body, "samples")
        except Refused as refused:
            try:
                return self._reader.read(body, "labels")
            except Refused:
                raise refused from None

    async def _write(self, coming: asyncio.Queue[Any], socket: WebSocket) -> None:
        """Send the responses in their order, as fast as the client reads them."""
        gone = False
        while (item := await coming.get()) is not None:
            began, begun = item
            status, answer = await self._finish(begun)
            self._metrics.count("/stream", status, time.perf_counter() - began)
            try:
                if not gone:
                    await socket.send_text(encode(answer).decode())
            except (OSError, RuntimeError, WebSocketDisconnect):
                # The client has left; what it had sent is still taken.
                gone = True

    async def _finish(self, begun: Any) -> tuple[int, Any]:
        try:
            if isinstance(begun, Refused):
                raise begun
            batch, taken = begun
            await taken
            return 200, batch.response()
        except Refused as refused:
            return refused.status, refused.body()
        except HamlearnError as error:
            return 503, Refused(503, str(error)).body()
