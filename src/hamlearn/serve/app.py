"""The ASGI application: its routes, and how their errors are answered."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute

from hamlearn import watch
from hamlearn.errors import HamlearnError
from hamlearn.serve.access import Access, require_learning
from hamlearn.serve.forms import Reader
from hamlearn.serve.metrics import Metrics
from hamlearn.serve.openapi import document
from hamlearn.serve.refusals import Refused
from hamlearn.serve.routes import Endpoint, Routes
from hamlearn.serve.service import BUSY, Service
from hamlearn.serve.sockets import Sockets

log = logging.getLogger("hamlearn.serve")


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
    endpoints = Routes(service, metrics, reader).endpoints
    about = document(settings, endpoints, reader)

    async def described(request: Request) -> Response:
        """This description of the routes."""
        return JSONResponse(about)

    endpoints.append(Endpoint("GET", "/openapi.json", described))
    page = watch.app(settings.folder, settings.config["run"]["title"])
    return Starlette(
        routes=[
            *(Route(one.path, _answering(one, metrics), methods=[one.method]) for one in endpoints),
            WebSocketRoute("/stream", Sockets(service, metrics, reader).serve),
            *page.routes,
        ],
        middleware=[Middleware(AuthenticationMiddleware, backend=access, on_error=_refused)],
        exception_handlers={HTTPException: _not_found},
        lifespan=lambda app: service.running(),
    )


def _answering(endpoint: Endpoint, metrics: Metrics) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint that is counted, and whose errors are answered with a reason."""

    async def answer(request: Request) -> Response:
        began = time.perf_counter()
        try:
            if endpoint.learns:
                require_learning(request)
            response = await endpoint.function(request)
        except Refused as refused:
            response = refused.response()
        except ClientDisconnect:
            response = Refused(499, "the client has left before it had sent its body.").response()
        except HamlearnError as error:
            # The request was fine, and this machine could not do it, for example because a disk is full.
            response = Refused(503, str(error), retry=BUSY).response()
        except Exception:
            log.exception("%s %s failed", endpoint.method, endpoint.path)
            response = Refused(500, "this is a mistake of the server; its log has the details.").response()
        metrics.count(endpoint.path, response.status_code, time.perf_counter() - began)
        return response

    return answer


def _refused(connection: HTTPConnection, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return error.response()


async def _not_found(request: Request, error: Exception) -> Response:
    """No such route, or no such method, in the form of all other refusals."""
    assert isinstance(error, HTTPException)
    reason = f"{request.method} {request.url.path[:100]}: {error.detail}. See /openapi.json for the routes."
    return Refused(error.status_code, reason, headers=dict(error.headers or {})).response()
