"""A WebSocket for streams of samples: one response for each message, in their order."""

from __future__ import annotations

import time
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from hamlearn.errors import HamlearnError
from hamlearn.serve.access import require_learning
from hamlearn.serve.forms import Batch, Reader, encode
from hamlearn.serve.metrics import Metrics
from hamlearn.serve.refusals import Refused
from hamlearn.serve.routes import agent_of
from hamlearn.serve.service import Service


class Sockets:
    """`/stream`: each message is a body of `POST /predict` or `POST /label`.

    The response to a bad message is its error, and the stream continues. A message is read when the one before it
    was answered.

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
        if self._open >= self._service.settings.serve["sockets"]:
            # Before the handshake is done, this is a 403.
            await socket.close(1013, "serve.sockets WebSockets are open. Close one.")
            return
        self._open += 1
        try:
            await socket.accept()
            while True:
                message = await socket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                began = time.perf_counter()
                status, answer = await self._answer(socket, message)
                self._metrics.count("/stream", status, time.perf_counter() - began)
                await socket.send_text(encode(answer).decode())
        except (OSError, RuntimeError, WebSocketDisconnect):
            # The client has left; what it had sent was taken.
            return
        finally:
            self._open -= 1

    async def _answer(self, socket: WebSocket, message: Any) -> tuple[int, Any]:
        try:
            batch = self._read((message.get("text") or "").encode() or message.get("bytes") or b"")
            batch.agent = agent_of(socket)
            if batch.learns:
                require_learning(socket)
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
