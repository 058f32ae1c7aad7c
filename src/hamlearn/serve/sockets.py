"""A WebSocket for streams of samples: one answer for each message, in their order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, NamedTuple

from hamlearn.errors import HamlearnError
from hamlearn.serve.answers import told
from hamlearn.serve.forms import Form, decode, encode
from hamlearn.serve.refusals import Refused
from hamlearn.serve.routes import agent_of
from hamlearn.serve.service import Service, answered
from hamlearn.serve.work import Work

AHEAD = 64
"""Messages of one connection that are on their way at most; the client waits then."""


class _Message(NamedTuple):
    """One message on its way: the request, when it will have been taken, or why it will not."""

    form: Form
    began: float
    work: Work | None
    taken: Awaitable[None] | None
    refused: Refused | None


class Socket:
    """`/stream`: each message is what `POST /predict` or `POST /label` would take; bytes are MessagePack.

    A message that cannot be taken gets an answer that says why, and the stream goes on. Where too many samples
    wait, the connection is not read until there is room: the client is slowed down, not refused.

    Args:
        service: What is served.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection to its end."""
        await receive()
        try:
            agent = agent_of(scope)
            self._service.agents.require(agent, make=True)
        except Refused as refused:
            await send({"type": "websocket.close", "code": 1008, "reason": refused.reason[:100]})
            return
        await send({"type": "websocket.accept"})
        coming: asyncio.Queue[_Message | None] = asyncio.Queue(AHEAD)
        writer = asyncio.create_task(self._write(coming, send))
        try:
            while (message := await receive())["type"] != "websocket.disconnect":
                await coming.put(await self._begin(agent, message))
        finally:
            await coming.put(None)
            await writer

    async def _begin(self, agent: str, message: Any) -> _Message:
        """Let a message wait for its turn before the next one is read, so that they keep their order."""
        data, began = message.get("bytes"), time.perf_counter()
        form: Form = "json" if data is None else "msgpack"
        work = taken = problem = None
        try:
            value = decode((message.get("text") or "").encode() if data is None else data, form)
            reading = self._service.reading
            work = (reading.labels if reading.is_label(value) else reading.samples)(value, agent)
            await self._service.room(work.count)
            taken = self._service.begin(work)
        except Refused as refused:
            problem = refused
        return _Message(form, began, work, taken, problem)

    async def _write(self, coming: asyncio.Queue[_Message | None], send: Any) -> None:
        """Send the answers in their order, as fast as the client reads them."""
        gone = False
        while (message := await coming.get()) is not None:
            status, answer = await self._finish(message)
            self._service.metrics.count("stream", status, time.perf_counter() - message.began)
            if gone:
                continue
            body, _ = encode(answer, message.form)
            kind = {"text": body.decode()} if message.form == "json" else {"bytes": body}
            try:
                await send({"type": "websocket.send", **kind})
            except (OSError, RuntimeError):
                # Nobody is left to be told; what is on its way is still taken.
                gone = True

    async def _finish(self, message: _Message) -> tuple[int, Any]:
        try:
            if message.refused is not None:
                raise message.refused
            assert message.taken is not None
            assert message.work is not None
            await message.taken
            return answered(message.work)
        except Refused as refused:
            return refused.status, told(refused)
        except HamlearnError as error:
            return 503, told(Refused(503, str(error)))
