"""The ASGI application: what each route does, and how errors are answered.

The first line of a route's docstring is its summary in `/openapi.json`.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route

from hamlearn._version import __version__
from hamlearn.errors import HamlearnError
from hamlearn.serve.access import Access, require_learning
from hamlearn.serve.forms import HEADERS, JSON, Kind, Reader, Refusal, RequestError, answer
from hamlearn.serve.metrics import CONTENT_TYPE, Metrics
from hamlearn.serve.service import BUSY, Service

log = logging.getLogger("hamlearn.serve")


class Endpoint(NamedTuple):
    """A route; its body is a `"Sample"`, a `"Label"` or ignored; if it learns, the token has to allow that."""

    method: str
    path: str
    function: Callable[[Request], Awaitable[Any]]
    body: str = ""
    learns: bool = False


def application(service: Service) -> Starlette:
    """An ASGI application that serves the learners of a service.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from hamlearn.serve import check
        >>> settings = check({"network": {"inputs": 2, "outputs": 1}}, Path(tempfile.mkdtemp()))
        >>> callable(application(Service(settings)))  # uvicorn.run(application(...)), or any other ASGI server
        True
    """
    access = Access(service.settings)
    routes = Routes(service, Metrics(service, access))
    app = Starlette(
        routes=[Route(one.path, routes.answering(one), methods=[one.method]) for one in routes.endpoints],
        middleware=[Middleware(AuthenticationMiddleware, backend=access, on_error=_refused)],
        exception_handlers={HTTPException: _not_found},
        lifespan=lambda app: service.running(),
    )
    # Behind a proxy, a redirect to the same path without a slash would send the token once more, without TLS.
    app.router.redirect_slashes = False
    return app


class Routes:
    """What each route does.

    Args:
        service: The learners and their queue.
        metrics: What `/metrics` returns.
    """

    def __init__(self, service: Service, metrics: Metrics) -> None:
        self._service, self._metrics, self._reader = service, metrics, Reader(service.settings)
        self.endpoints = [
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
            Endpoint("GET", "/openapi.json", self.openapi),
        ]

    def answering(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        """An endpoint that is counted, and whose errors are answered with a reason."""

        async def answered(request: Request) -> Response:
            began = time.perf_counter()
            try:
                if endpoint.learns:
                    require_learning(request)
                found = await endpoint.function(request)
                response = found if isinstance(found, Response) else answer(found)
            except Exception as error:
                response = refusal_of(error).response()
            self._metrics.count(endpoint.path, response.status_code, time.perf_counter() - began)
            return response

        return answered

    async def predict(self, request: Request) -> Any:
        """Predict samples, and learn from those that have a target."""
        return await self._take(request, "samples")

    async def evaluate(self, request: Request) -> Any:
        """Predict samples from the present state, and compute losses. Nothing moves, nothing is learned."""
        return await self._take(request, "evaluate")

    async def label(self, request: Request) -> Any:
        """Learn targets of earlier samples, by their ids."""
        return await self._take(request, "labels")

    async def state(self, request: Request) -> Any:
        """Position, time, norms, counts, scores, and the newest checkpoint."""
        key = agent_of(request)
        found = await self._service.do(lambda agents: agents.of(key).state())
        return {"agent": key, **found, "queue": self._service.waiting, "agents": list(self._service.agents)}

    async def checkpoints(self, request: Request) -> Any:
        """The checkpoints that are kept, oldest first."""
        return [about._asdict() for about in self._service.agents.of(agent_of(request)).checkpoints.known]

    async def checkpoint(self, request: Request) -> Any:
        """Write a checkpoint now, and keep it."""
        key = agent_of(request)
        about = await self._service.write(lambda agents: agents.of(key).copy(pinned=True))
        return {"agent": key, **about._asdict()}

    async def rollback(self, request: Request) -> Any:
        """Return to checkpoint `?to=NUMBER`; by default to the last one before the learner diverged."""
        key, text = agent_of(request), request.query_params.get("to")
        if text is not None and not (text.isdecimal() and len(text) < 10):
            raise RequestError(422, f"to={text[:80]!r} is not the number of a checkpoint. See GET /checkpoints.")
        number = None if text is None else int(text)
        about = await self._service.write(lambda agents: agents.of(key).roll_back(number))
        return {"agent": key, **about._asdict()}

    async def delete(self, request: Request) -> Any:
        """Delete the agent `?agent=KEY` with its checkpoints."""
        key = agent_of(request)
        await self._service.do(lambda agents: agents.delete(key))
        return {"agent": key, "deleted": True}

    async def metrics(self, request: Request) -> Any:
        """Counts, times and scores for Prometheus."""
        return Response(self._metrics.text(), headers=HEADERS, media_type=CONTENT_TYPE)

    async def livez(self, request: Request) -> Any:
        """Whether the process answers requests."""
        return {"live": True}

    async def readyz(self, request: Request) -> Any:
        """Whether requests are accepted: from the first answer, when checkpoints are loaded, until the stop."""
        ready = not self._service.stopping
        return answer({"ready": ready}, 200 if ready else 503)

    async def openapi(self, request: Request) -> Any:
        """This description of the routes."""
        models = (self._reader.sample, self._reader.label, Refusal)
        refs, schemas = msgspec.json.schema_components(models, ref_template="#/components/schemas/{name}")
        bodies = {"Sample": [refs[0]], "Label": [refs[1]]}
        if self._reader.fields is not None:
            cell = {"type": ["string", "number", "boolean", "null"]}
            about = f"Named fields: the input columns, and the target columns {self._reader.fields.targets}."
            schemas["Row"] = {"type": "object", "additionalProperties": cell, "description": about}
            bodies["Sample"].append({"$ref": "#/components/schemas/Row"})
        refusal = {"description": "Why not.", "content": {JSON: {"schema": refs[2]}}}
        paths: dict[str, Any] = {}
        for endpoint in self.endpoints:
            operation: dict[str, Any] = {
                "summary": (inspect.getdoc(endpoint.function) or "").partition("\n")[0],
                "parameters": [{"name": "agent", "in": "query", "schema": {"type": "string"}}],
                "responses": {"200": {"description": "As asked."}, "default": refusal},
            }
            if endpoint.body:
                one = bodies[endpoint.body]
                several = {"type": "array", "items": {"anyOf": one}}
                operation["requestBody"] = {"content": {JSON: {"schema": {"anyOf": [*one, several]}}}}
            paths[endpoint.path] = {endpoint.method.lower(): operation}
        settings = self._service.settings
        return {
            "openapi": "3.1.0",
            "info": {"title": settings.config["run"]["title"], "version": __version__},
            "paths": paths,
            "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
            "security": [{"token": []}] if settings.serve["learn_tokens"] is not None else [],
        }

    async def _take(self, request: Request, kind: Kind) -> Any:
        size, most = int(request.headers.get("content-length", 0)), self._service.settings.serve["body"]
        if size > most:
            # uvicorn reads what the client still sends, and forgets it.
            reason = f"the body has {size} bytes, and serve.body = {most} allows fewer. Send several requests."
            raise RequestError(413, reason)
        batch = self._reader.read(await request.body(), kind, agent_of(request))
        if batch.learns:
            require_learning(request)
        await self._service.take(batch)
        return batch.response()


def agent_of(request: Request) -> str:
    """The key of the agent that a request names; empty if it names none."""
    if not request.scope["query_string"]:
        return ""
    query = request.query_params
    unknown = sorted(set(query) - {"agent", "to"})
    if unknown or len(query.getlist("agent")) > 1:
        what = f"{', '.join(unknown)[:100]!r}" if unknown else "agent twice"
        raise RequestError(400, f"the query has {what}. Write ?agent=KEY, or nothing.")
    return query.get("agent", "")


def refusal_of(error: Exception) -> RequestError:
    """The answer to a client about an error."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, ClientDisconnect):
        return RequestError(499, "the client has left before it had sent its body.")
    if isinstance(error, HamlearnError):
        # The request was fine, and this machine could not do it, for example because a disk is full.
        return RequestError(503, str(error), retry=BUSY)
    log.error("a request failed", exc_info=error)
    return RequestError(500, "this is a mistake of the server; its log has the details.")


def _refused(connection: HTTPConnection, error: Exception) -> Response:
    return refusal_of(error).response()


async def _not_found(request: Request, error: Exception) -> Response:
    """No such route, or no such method, in the form of all other errors."""
    assert isinstance(error, HTTPException)
    reason = f"{request.method} {request.url.path[:100]}: {error.detail}. See /openapi.json for the routes."
    return RequestError(error.status_code, reason, headers=dict(error.headers or {})).response()
