"""A WebSocket for streams of samples: one response for each message, in their order."""

from __future__ import annotations

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


class Sockets:
    """`/stream`: each message is a body of `POST /predict` or `POST /label`.

    The response to a bad message is its error, and the stream continues. A message is read when the one before it
    was answered, and when there is room in the queue: a fast client is slowed down, not refused.

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
        try:
            await socket.accept()
            while (message := await socket.receive())["type"] != "websocket.disconnect":
                began = time.perf_counter()
                status, answer = await self._answer(agent, message, socket)
                self._metrics.count("/stream", status, time.perf_counter() - began)
                await socket.send_text(encode(answer).decode())
        except (OSError, RuntimeError, WebSocketDisconnect):
            # The client has left; what it had sent was taken.
            return
        finally:
            self._open -= 1

    async def _answer(self, agent: str, message: Any, socket: WebSocket) -> tuple[int, Any]:
        try:
            batch = self._read((message.get("text") or "").encode() or message.get("bytes") or b"")
            batch.agent = agent
            if batch.learns:
                require_learning(socket.scope)
            await self._service.room(batch.count)
            await self._service.take(batch)
            return 200, batch.response()
        except Refused as refused:
            return refused.status, refused.body()
        except HamlearnError as error:
            return 503, Refused(503, str(error)).body()

    def _read(self, body: bytes) -> Batch:
        try:
            return self._reader.read(body, "samples")
        except Refused as refused:
            try:
                return self._reader.read(body, "labels")
            except Refused:
                raise refused from None
