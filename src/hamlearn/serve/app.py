"""The ASGI application: its routes, and how their errors are answered."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute

from hamlearn import watch
from hamlearn.errors import HamlearnError
from hamlearn.serve.access import Access
from hamlearn.serve.forms import Reader
from hamlearn.serve.metrics import Counted, Metrics
from hamlearn.serve.openapi import document
from hamlearn.serve.refusals import Refused
from hamlearn.serve.routes import Endpoint, Routes
from hamlearn.serve.service import BUSY, Service

LOOPBACK = ["127.0.0.1", "localhost", "::1", "[::1]"]
"""Names of this machine: without tokens, a page of another site must not reach the server by a name of its own."""


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
    settings, access = service.settings, Access(service.settings)
    metrics, reader = Metrics(service, access), Reader(settings)
    routes = Routes(service, metrics, reader)
    endpoints = routes.endpoints
    about = document(settings, endpoints, reader)

    async def described(request: Request) -> Response:
        """This description of the routes."""
        return JSONResponse(about)

    endpoints.append(Endpoint("GET", "/openapi.json", described))
    page = watch.app(settings.folder, settings.config["run"]["title"])
    hosts = LOOPBACK if settings.serve["learn_tokens"] is None else ["*"]
    return Starlette(
        routes=[
            *(Route(one.path, one.answer, methods=[one.method]) for one in endpoints),
            WebSocketRoute("/stream", routes.stream),
            *page.routes,
        ],
        middleware=[
            Middleware(Counted, metrics=metrics, paths={one.path for one in endpoints}),
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts),
            Middleware(AuthenticationMiddleware, backend=access, on_error=_answered),
        ],
        exception_handlers=dict.fromkeys((Refused, ClientDisconnect, HTTPException, HamlearnError), _answered)
        | {Exception: _answered},
        lifespan=lambda app: service.running(),
    )


def _answered(connection: HTTPConnection, error: Exception) -> Response:
    """An error as a response with its reason."""
    if isinstance(error, HTTPException):
        reason = f"{connection.url.path[:100]}: {error.detail}. See /openapi.json for the routes."
        error = Refused(error.status_code, reason, headers=dict(error.headers or {}))
    elif isinstance(error, ClientDisconnect):
        error = Refused(499, "the client has left before it had sent its body.")
    elif isinstance(error, HamlearnError):
        # The request was fine, and this machine could not do it, for example because a disk is full.
        error = Refused(503, str(error), retry=BUSY)
    elif not isinstance(error, Refused):
        error = Refused(500, "this is a mistake of the server; its log has the details.")
    return error.response()
