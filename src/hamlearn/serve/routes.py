"""The routes over HTTP. The first line of each docstring is its summary in `/openapi.json`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from hamlearn.serve.access import require_learning
from hamlearn.serve.forms import JSON, Kind, Reader, encode
from hamlearn.serve.metrics import CONTENT_TYPE, Metrics
from hamlearn.serve.refusals import Refused
from hamlearn.serve.service import Service

HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class Endpoint(NamedTuple):
    """One route over HTTP.

    Attributes:
        method: `"GET"`, `"POST"` or `"DELETE"`.
        path: Of the route.
        function: Answers a request; the first line of its docstring describes the route.
        body: Name of the model that the body has; empty if the body is ignored.
        learns: Whether it needs a token that allows learning.
    """

    method: str
    path: str
    function: Callable[[Request], Awaitable[Response]]
    body: str = ""
    learns: bool = False


class Routes:
    """What each route does.

    Args:
        service: The learners and their queue.
        metrics: What `/metrics` returns.
        reader: Turns bodies into batches.
    """

    def __init__(self, service: Service, metrics: Metrics, reader: Reader) -> None:
        self._service, self._metrics, self._reader = service, metrics, reader

    @property
    def endpoints(self) -> list[Endpoint]:
        """All of them."""
        return [
            Endpoint("POST", "/predict", self.predict, "Sample"),
            Endpoint("POST", "/evaluate", self.evaluate, "Sample"),
            Endpoint("POST", "/label", self.label, "Label", learns=True),
            Endpoint("GET", "/state", self.state),
            Endpoint("GET", "/checkpoints", self.checkpoints),
            Endpoint("POST", "/checkpoint", self.checkpoint, learns=True),
            Endpoint("POST", "/rollback", self.rollback, learns=True),
            Endpoint("DELETE", "/agent", self.delete, learns=True),
            Endpoint("GET", "/metrics", self.metrics),
            Endpoint("GET", "/livez", self.livez),
            Endpoint("GET", "/readyz", self.readyz),
        ]

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
        found = await self._service.do(lambda agents: agents.get(key).state())
        names = [name for name, _ in self._service.agents.items()]
        return _answer({"agent": key, **found, "queue": self._service.waiting, "agents": names})

    async def checkpoints(self, request: Request) -> Response:
        """The checkpoints that are kept, oldest first."""
        return _answer(
            [about._asdict() for about in self._service.agents.get(agent_of(request)).checkpoints.known]
        )

    async def checkpoint(self, request: Request) -> Response:
        """Write a checkpoint now, and keep it."""
        key = agent_of(request)
        about = await self._service.write(lambda agents: agents.get(key).copy(pinned=True))
        return _answer({"agent": key, **about._asdict()})

    async def rollback(self, request: Request) -> Response:
        """Return to checkpoint `?to=NUMBER`; by default to the last one before the learner diverged."""
        key, text = agent_of(request), request.query_params.get("to")
        if text is not None and not (text.isdecimal() and len(text) < 10):
            raise Refused(422, f"to={text[:80]!r} is not the number of a checkpoint. See GET /checkpoints.")
        number = None if text is None else int(text)
        about = await self._service.write(lambda agents: agents.get(key).roll_back(number))
        return _answer({"agent": key, **about._asdict()})

    async def delete(self, request: Request) -> Response:
        """Delete the agent `?agent=KEY` with its checkpoints."""
        key = agent_of(request)
        await self._service.do(lambda agents: agents.delete(key))
        return _answer({"agent": key, "deleted": True})

    async def metrics(self, request: Request) -> Response:
        """Counts, times and scores for Prometheus."""
        return Response(self._metrics.text(), headers=HEADERS, media_type=CONTENT_TYPE)

    async def livez(self, request: Request) -> Response:
        """Whether the process answers requests."""
        return _answer({"live": True})

    async def readyz(self, request: Request) -> Response:
        """Whether requests are accepted: from the first answer, when checkpoints are loaded, until the stop."""
        ready = not self._service.stopping
        return _answer({"ready": ready}, 200 if ready else 503)

    async def _take(self, request: Request, kind: Kind) -> Response:
        size, most = int(request.headers.get("content-length", 0)), self._service.settings.serve["body"]
        if size > most:
            # uvicorn reads what the client still sends, and forgets it.
            reason = f"the body has {size} bytes, and serve.body = {most} allows fewer. Send several requests."
            raise Refused(413, reason)
        batch = self._reader.read(await request.body(), kind)
        batch.agent = agent_of(request)
        if batch.learns:
            require_learning(request)
        await self._service.take(batch)
        return _answer(batch.response())


def _answer(value: Any, status: int = 200) -> Response:
    return Response(encode(value), status, HEADERS, JSON)


def agent_of(connection: HTTPConnection) -> str:
    """The key of the agent that a request or a WebSocket names; empty if it names none."""
    query = connection.query_params
    unknown = sorted(set(query) - {"agent", "to"})
    if unknown or len(query.getlist("agent")) > 1:
        what = f"{', '.join(unknown)[:100]!r}" if unknown else "agent twice"
        raise Refused(400, f"the query has {what}. Write ?agent=KEY, or nothing.")
    return query.get("agent", "")
