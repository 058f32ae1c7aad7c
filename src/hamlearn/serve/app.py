"""The ASGI application: its routes, and how their errors are answered."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute

from hamlearn.errors import HamlearnError
from hamlearn.serve.access import Access, refuse
from hamlearn.serve.events import LivePage
from hamlearn.serve.forms import Reader
from hamlearn.serve.metrics import Metrics
from hamlearn.serve.openapi import document
from hamlearn.serve.refusals import BUSY, Refused
from hamlearn.serve.routes import Routes, require_learning
from hamlearn.serve.service import Service
from hamlearn.serve.sockets import Sockets

log = logging.getLogger("hamlearn.serve")


class Endpoint(NamedTuple):
    """One route over HTTP.

    Attributes:
        method: `"GET"`, `"POST"` or `"DELETE"`.
        path: Of the route.
        function: Answers a request; the first line of its docstring describes the route.
        body: Names of the models that the body may be; empty if the body is ignored.
        learns: Whether it needs a token that allows learning.
    """

    method: str
    path: str
    function: Callable[[Request], Awaitable[Response]]
    body: tuple[str, ...] = ()
    learns: bool = False


def application(service: Service, loaded: Callable[[Exception | None], None] | None = None) -> Any:
    """An ASGI application that serves the learners of a service.

    Args:
        service: The learners and their queue. They are built once the application has started.
        loaded: Called once they are built, or with the error if they cannot be.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from hamlearn.serve import check
        >>> settings = check({"network": {"inputs": 2, "outputs": 1}}, Path(tempfile.mkdtemp()))
        >>> callable(application(Service(settings)))  # uvicorn.run(application(...)), or any other ASGI server
        True
    """
    settings = service.settings
    app = Starlette()
    access = Access(app, settings)
    metrics = Metrics(service, lambda: access.failed)
    reader = Reader(settings)
    routes = Routes(service, metrics, reader)
    page = LivePage(settings.folder, settings.config["run"]["title"], settings.serve["sockets"])
    endpoints = [
        Endpoint("POST", "/predict", routes.predict, ("Sample", "Samples")),
        Endpoint("POST", "/evaluate", routes.evaluate, ("Sample", "Samples")),
        Endpoint("POST", "/label", routes.label, ("Label",), learns=True),
        Endpoint("GET", "/state", routes.state),
        Endpoint("GET", "/checkpoints", routes.checkpoints),
        Endpoint("POST", "/checkpoint", routes.checkpoint, learns=True),
        Endpoint("POST", "/rollback", routes.rollback, learns=True),
        Endpoint("DELETE", "/agent", routes.delete, learns=True),
        Endpoint("GET", "/metrics", routes.metrics),
        Endpoint("GET", "/livez", routes.livez),
        Endpoint("GET", "/readyz", routes.readyz),
        Endpoint("GET", "/events", page.events),
        Endpoint("GET", "/", page.page),
    ]
    about = document(settings, endpoints, reader)

    async def described(request: Request) -> Response:
        """This description of the routes."""
        return JSONResponse(about)

    endpoints.append(Endpoint("GET", "/openapi.json", described))
    for endpoint in endpoints:
        app.router.routes.append(Route(endpoint.path, _answering(endpoint, metrics), methods=[endpoint.method]))
    for path in ("/watch.css", "/watch.js"):
        app.router.routes.append(Route(path, page.page))
    app.router.routes.append(WebSocketRoute("/stream", Sockets(service, metrics, reader).serve))
    app.add_exception_handler(HTTPException, _not_found)
    app.router.lifespan_context = _lifespan(service, loaded)
    return access


def _answering(endpoint: Endpoint, metrics: Metrics) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint that is counted, and whose errors are answered with a reason."""

    async def answer(request: Request) -> Response:
        began = time.perf_counter()
        try:
            if endpoint.learns:
                require_learning(request.scope)
            response = await endpoint.function(request)
        except Refused as refused:
            response = refuse(refused)
        except HamlearnError as error:
            # The request was fine, and this machine could not do it, for example because a disk is full.
            response = refuse(Refused(503, str(error), retry=BUSY))
        except Exception:
            log.exception("%s %s failed", endpoint.method, endpoint.path)
            response = refuse(Refused(500, "this is a mistake of the server; its log has the details."))
        metrics.count(endpoint.path, response.status_code, time.perf_counter() - began)
        return response

    return answer


def _lifespan(service: Service, loaded: Callable[[Exception | None], None] | None) -> Any:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async def load() -> None:
            try:
                await service.load()
            except Exception as error:
                service.failed = error
            if loaded is not None:
                loaded(service.failed)

        # The port is open meanwhile: /livez answers 200, and everything else 503.
        loading = asyncio.create_task(load())
        try:
            yield
        finally:
            await loading
            await service.stop()

    return lifespan


async def _not_found(request: Request, error: Exception) -> Response:
    """No such route, or no such method, in the form of all other refusals."""
    assert isinstance(error, HTTPException)
    reason = f"{request.method} {request.url.path[:100]}: {error.detail}. See /openapi.json for the routes."
    return refuse(Refused(error.status_code, reason, headers=dict(error.headers or {})))
