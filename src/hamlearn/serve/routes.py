"""The routes over HTTP. The first line of each docstring is its summary in `/openapi.json`."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from hamlearn.serve.batch import Kind
from hamlearn.serve.forms import CONTENT_TYPES, JSON, Reader, encode
from hamlearn.serve.metrics import CONTENT_TYPE, Metrics
from hamlearn.serve.refusals import Refused
from hamlearn.serve.service import Service

HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class Routes:
    """What each route does.

    Args:
        service: The learners and their queue.
        metrics: What `/metrics` returns.
        reader: Turns bodies into batches.
    """

    def __init__(self, service: Service, metrics: Metrics, reader: Reader) -> None:
        self._service, self._metrics, self._reader = service, metrics, reader

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
        key = self._agent(request)
        found = await self._service.do(lambda agents: agents.get(key).state())
        names = [name for name, _ in self._service.agents.items()]
        return _answer({"agent": key, **found, "queue": self._service.waiting, "agents": names})

    async def checkpoints(self, request: Request) -> Response:
        """The checkpoints that are kept, oldest first."""
        known = self._service.agents.get(self._agent(request)).checkpoints.known
        return _answer([about._asdict() for about in known])

    async def checkpoint(self, request: Request) -> Response:
        """Write a checkpoint now, and keep it."""
        key = self._agent(request)
        return _answer({"agent": key, **(await self._service.save(key))._asdict()})

    async def rollback(self, request: Request) -> Response:
        """Return to checkpoint `?to=NUMBER`; by default to the last one before the learner diverged."""
        key, text = self._agent(request), request.query_params.get("to")
        if text is not None and not (text.isdecimal() and len(text) < 10):
            raise Refused(422, f"to={text[:80]!r} is not the number of a checkpoint. See GET /checkpoints.")
        about = await self._service.roll_back(key, None if text is None else int(text))
        return _answer({"agent": key, **about._asdict()})

    async def delete(self, request: Request) -> Response:
        """Delete the agent `?agent=KEY` with its checkpoints."""
        key = self._agent(request)
        await self._service.do(lambda agents: agents.delete(key))
        return _answer({"agent": key, "deleted": True})

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

    def _agent(self, request: Request) -> str:
        """The key of an agent that exists."""
        key = agent_of(request)
        self._service.agents.require(key, make=False)
        return key

    async def _take(self, request: Request, kind: Kind) -> Response:
        headers = dict(request.scope["headers"])
        for header, known in (("content-type", CONTENT_TYPES), ("content-encoding", ("", "identity"))):
            given = headers.get(header.encode(), b"").decode("latin-1").partition(";")[0].strip().lower()
            if given not in known:
                reason = f"{header} {given[:100]!r} is not known. Add the header 'Content-Type: {JSON}'"
                raise Refused(415, f"{reason}, and send the body as it is.")
        batch = self._reader.read(await self._body(request, headers), kind)
        batch.agent = agent_of(request)
        if batch.learns:
            require_learning(request.scope)
        await self._service.take(batch)
        return _answer(batch.response())

    async def _body(self, request: Request, headers: dict[bytes, bytes]) -> bytes:
        """The whole body, counted while it is read."""
        most, timeout = self._service.settings.serve["body"], self._service.settings.serve["timeout"]
        parts: list[bytes] = []
        size, late = int(headers.get(b"content-length", 0)), False
        if size <= most or b"expect" not in headers:
            read = 0
            try:
                async with asyncio.timeout(timeout):
                    async for part in request.stream():
                        read += len(part)
                        if read <= most:
                            parts.append(part)
                        elif read > 8 * most:
                            break
            except TimeoutError:
                late = True
            except ClientDisconnect:
                raise Refused(499, "the client has left before it had sent its body.") from None
            size = max(size, read)
        if size > most:
            # A client that is still sending would see a reset: somewhat larger bodies are read to their end.
            reason = f"the body has {size} bytes, and serve.body = {most} allows fewer. Send several requests."
            raise Refused(413, reason, headers={"connection": "close"})
        if late:
            reason = f"the body did not arrive within {timeout:g} seconds (serve.timeout). Send it faster."
            raise Refused(408, reason, headers={"connection": "close"})
        return b"".join(parts)


def _answer(value: Any) -> Response:
    return Response(encode(value), headers=HEADERS, media_type=JSON)


def agent_of(connection: Any) -> str:
    """The key of the agent that a request or a WebSocket names; empty if it names none."""
    if not connection.scope["query_string"]:
        return ""
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
        reason = "this token allows predictions only. Leave targets out, or use a token of serve.learn_tokens."
        raise Refused(403, reason)
