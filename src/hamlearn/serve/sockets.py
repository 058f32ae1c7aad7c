"""A WebSocket for streams of samples: one response for each message, in their order."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from hamlearn.errors import HamlearnError
from hamlearn.serve.batch import Batch
from hamlearn.serve.forms import Form, Reader, encode
from hamlearn.serve.metrics import Metrics
from hamlearn.serve.refusals import BUSY, Refused
from hamlearn.serve.routes import agent_of, require_learning
from hamlearn.serve.service import Service

AHEAD = 64
"""Messages of one connection that may wait for their responses; the client is not read meanwhile."""


class Sockets:
    """`/stream`: each message is a body of `POST /predict` or `POST /label`; bytes are MessagePack.

    The response to a bad message is its error, and the stream continues. If too many samples wait, the connection
    is not read until there is room: the client is slowed down, not refused.

    Args:
        service: The learners and their queue.
        reader: Turns messages into batches.
        metrics: Where messages are counted.
    """

    def __init__(self, service: Service, reader: Reader, metrics: Metrics) -> None:
        self._service, self._reader, self._metrics = service, reader, metrics
        self._open = 0

    async def serve(self, socket: WebSocket) -> None:
        """Serve one connection to its end."""
        try:
            agent = agent_of(socket)
            self._service.agents.require(agent, make=True)
            if self._open >= self._service.settings.serve["sockets"]:
                raise Refused(503, f"serve.sockets = {self._open} WebSockets are open. Close one.", retry=BUSY)
        except Refused as refused:
            # Before the handshake is done, this is a 403.
            await socket.close(1008, refused.reason[:100])
            return
        self._open += 1
        coming: asyncio.Queue[tuple[Form, float, Batch | None, Any] | None] = asyncio.Queue(AHEAD)
        try:
            await socket.accept()
            writer = asyncio.create_task(self._write(coming, socket))
            try:
                while True:
                    message = await socket.receive()
                    if message["type"] == "websocket.disconnect":
                        break
                    await coming.put(await self._begin(agent, message, socket))
            finally:
                await coming.put(None)
                await writer
        finally:
            self._open -= 1

    async def _begin(self, agent: str, message: Any, socket: WebSocket) -> tuple[Form, float, Batch | None, Any]:
        """Queue a message before the next one is read, so that they keep their order."""
        data, began = message.get("bytes"), time.perf_counter()
        form: Form = "json" if data is None else "msgpack"
        body = (message.get("text") or "").encode() if data is None else data
        try:
            batch = self._read(body, form)
            batch.agent = agent
            if batch.kind == "labels" or batch.known.any():
                require_learning(socket.scope)
            await self._service.room(batch.count)
            return form, began, batch, self._service.take(batch)
        except Refused as refused:
            return form, began, None, refused

    def _read(self, body: bytes, form: Form) -> Batch:
        try:
            return self._reader.read(body, form, "samples")
        except Refused as refused:
            if refused.status != 422:
                raise
            try:
                return self._reader.read(body, form, "labels")
            except Refused:
                raise refused from None

    async def _write(self, coming: Any, socket: WebSocket) -> None:
        """Send the responses in their order, as fast as the client reads them."""
        gone = False
        while (message := await coming.get()) is not None:
            form, began, batch, taken = message
            status, answer = await self._finish(batch, taken)
            self._metrics.count("/stream", status, time.perf_counter() - began)
            if gone:
                continue
            try:
                body = encode(answer, form)
                await (socket.send_text(body.decode()) if form == "json" else socket.send_bytes(body))
            except (OSError, RuntimeError, WebSocketDisconnect):
                # The client has left; what it had sent is still taken.
                gone = True

    async def _finish(self, batch: Batch | None, taken: Any) -> tuple[int, Any]:
        try:
            if batch is None:
                raise taken
            await taken
            return 200, batch.response()
        except Refused as refused:
            return refused.status, refused.body()
        except HamlearnError as error:
            return 503, Refused(503, str(error)).body()
