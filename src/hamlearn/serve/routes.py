"""The routes over HTTP. The first line of each docstring is its summary in `/openapi.json`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Literal

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from hamlearn.serve.forms import NAMES, Form, Reader, accepted, encode, form_of
from hamlearn.serve.metrics import CONTENT_TYPE, Metrics
from hamlearn.serve.refusals import BUSY, Refused
from hamlearn.serve.service import Service

HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class Routes:
    """What each route does.

    Args:
        service: The learners and their queue.
        metrics: What `/metrics` returns.
    """

    def __init__(self, service: Service, metrics: Metrics) -> None:
        self._service, self._metrics, self.reader = service, metrics, Reader(service.settings)

    async def predict(self, request: Request) -> Response:
        """Predict samples, and learn from those that have a target."""
        return await self._take(request, "samples")

    async def evaluate(self, request: Request) -> Response:
        """Predict samples from the present state, and compute losses. Nothing moves, nothing is learned."""
        return await self._take(request, "evaluate")

    async def label(self, request: Request) -> Response:
        """Learn targets of earlier samples, by their ids."""
        return await self._take(request, "labels")

    async def state(self, request: Request) -> Response:
        """Position, time, norms, counts, scores, and the newest checkpoint."""
        key = agent_of(request)
        self._service.agents.require(key, make=False)
        found = await self._service.do(lambda agents: agents.get(key).state())
        names = [name for name, _ in self._service.agents.items()]
        return self._answer(request, {"agent": key, **found, "queue": self._service.waiting, "agents": names})

    async def checkpoints(self, request: Request) -> Response:
        """The checkpoints that are kept, oldest first."""
        key = agent_of(request)
        self._service.agents.require(key, make=False)
        known = self._service.agents.get(key).checkpoints.known
        return self._answer(request, [about._asdict() for about in known])

    async def checkpoint(self, request: Request) -> Response:
        """Write a checkpoint now, and keep it."""
        key = agent_of(request)
        self._service.agents.require(key, make=False)
        await self._body(request)
        return self._answer(request, {"agent": key, **(await self._service.save(key))._asdict()})

    async def rollback(self, request: Request) -> Response:
        """Return to checkpoint `?to=NUMBER`; by default to the last one before the learner diverged."""
        key, text = agent_of(request), request.query_params.get("to")
        self._service.agents.require(key, make=False)
        await self._body(request)
        if text is not None and not text.isdecimal():
            raise Refused(422, f"to={text[:80]!r} is not the number of a checkpoint. See GET /checkpoints.")
        about = await self._service.roll_back(key, None if text is None else int(text))
        return self._answer(request, {"agent": key, **about._asdict()})

    async def delete(self, request: Request) -> Response:
        """Delete the agent `?agent=KEY` with its checkpoints."""
        key = agent_of(request)
        await self._service.do(lambda agents: agents.delete(key))
        return self._answer(request, {"agent": key, "deleted": True})

    async def metrics(self, request: Request) -> Response:
        """Counts, times and scores for Prometheus."""
        return Response(self._metrics.text(), headers=HEADERS, media_type=CONTENT_TYPE)

    async def livez(self, request: Request) -> Response:
        """Whether the process answers requests."""
        return JSONResponse({"live": True}, headers=HEADERS)

    async def readyz(self, request: Request) -> Response:
        """Whether checkpoints are loaded and steps are compiled."""
        ready = self._service.ready
        return JSONResponse({"ready": ready}, 200 if ready else 503, headers=HEADERS)

    async def _take(self, request: Request, kind: Literal["samples", "labels", "evaluate"]) -> Response:
        headers = request.headers
        form = form_of(headers.get("content-type", ""))
        coding = headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("identity", ""):
            raise Refused(415, f"the body is packed as {coding[:50]!r}. Send it as it is.")
        body = await self._body(request)
        # Before the learners are ready there is nothing to take it.
        self._service.agents  # noqa: B018 (raises)
        batch = self.reader.read(body, form, kind)
        batch.agent = agent_of(request)
        if kind == "labels" or (kind == "samples" and batch.known.any()):
            require_learning(request.scope)
        await self._service.take(batch)
        return self._answer(request, batch.response(), form)

    def _answer(self, request: Request, value: Any, form: Form = "json") -> Response:
        form = accepted(request.headers.get("accept", ""), form)
        return Response(encode(value, form), headers=HEADERS, media_type=NAMES[form])

    async def _body(self, request: Request) -> bytes:
        """The whole body, counted while it is read."""
        most, timeout = self._service.settings.serve["body"], self._service.settings.serve["timeout"]
        length = request.headers.get("content-length", "0")
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(timeout):
                if length.isdecimal() and int(length) > most:
                    await _drain(request.stream(), 8 * most)
                    reason = f"the body has {int(length)} bytes, and serve.body = {most} allows fewer."
                    raise Refused(413, f"{reason} Send several requests.", headers={"connection": "close"})
                async for part in request.stream():
                    parts.append(part)
                    size += len(part)
        except TimeoutError:
            reason = f"the body did not arrive within {timeout:g} seconds (serve.timeout). Send it faster."
            raise Refused(408, reason, headers={"connection": "close"}) from None
        except ClientDisconnect:
            raise Refused(499, "the client has left before it had sent its body.") from None
        return b"".join(parts)


async def _drain(stream: AsyncIterator[bytes], most: int) -> None:
    """Read and forget the rest of a body: a client that is still sending would not see the answer, but a reset."""
    size = 0
    with contextlib.suppress(ClientDisconnect):
        async for part in stream:
            size += len(part)
            if size > most:
                return


def agent_of(connection: Any) -> str:
    """The key of the agent that a request or a WebSocket names; empty if it names none."""
    query = connection.query_params
    unknown = sorted(set(query) - {"agent", "to"})
    if unknown or len(query.getlist("agent")) > 1:
        what = f"{', '.join(unknown)[:100]!r}" if unknown else "agent twice"
        raise Refused(400, f"the query has {what}. Write ?agent=KEY, or nothing.")
    key: str = query.get("agent", "")
    return key


def require_learning(scope: Any) -> None:
    """Refuse a request whose token does not allow learning."""
    if not scope.get("may_learn", True):
        raise Refused(
            403, "this token allows predictions only. Leave targets out, or use a token of serve.learn_tokens."
        )


__all__ = ["BUSY", "Routes", "agent_of", "require_learning"]
