"""The application: routes, and who may ask for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute

from hamlearn.serve import routes
from hamlearn.serve.guard import Guard
from hamlearn.serve.openapi import document, page
from hamlearn.serve.service import Service
from hamlearn.serve.sockets import Socket

_STRICT = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'"}


def application(service: Service, home: Any = None) -> Any:
    """An ASGI application that serves the learners of a service.

    Args:
        service: The learners.
        home: An ASGI application for `/` and all below it that has no route here, such as a live page of the
            records in the service's folder; `None`: the description of the routes.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from hamlearn.serve import check
        >>> settings = check({"network": {"inputs": 2, "outputs": 1}}, Path(tempfile.mkdtemp()))
        >>> callable(application(Service(settings)))  # uvicorn.run(application(...)), or any other ASGI server
        True
    """
    about = document(service.settings)

    async def described(request: Request) -> Response:
        return JSONResponse(about)

    async def shown(request: Request) -> Response:
        return HTMLResponse(page(about), headers=_STRICT)

    predict, label = routes.Predict(service), routes.Label(service)
    table: list[BaseRoute] = [
        Route("/predict", predict, methods=["POST"]),
        Route("/label", label, methods=["POST"]),
        Route("/state", routes.State(service), methods=["GET"]),
        Route("/checkpoint", routes.Checkpoint(service), methods=["POST"]),
        Route("/metrics", routes.Scrape(service), methods=["GET"]),
        WebSocketRoute("/stream", Socket(service)),
        Route("/openapi.json", described, methods=["GET"]),
        Route("/docs", shown, methods=["GET"]),
        Route("/", shown, methods=["GET"]) if home is None else Mount("/", home),
    ]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            await service.stop()

    app = Starlette(routes=table, lifespan=lifespan, exception_handlers={HTTPException: _refused})
    often = {("POST", "/predict"): predict, ("POST", "/label"): label}

    async def dispatch(scope: Any, receive: Any, send: Any) -> None:
        # What is asked for thousands of times a second does not go through the table of routes.
        route = often.get((scope["method"], scope["path"]), app) if scope["type"] == "http" else app
        await route(scope, receive, send)

    return Guard(dispatch, service.settings.token)


async def _refused(request: Request, error: Exception) -> Response:
    """Say no in the same form as everywhere: no such route, or no such method."""
    assert isinstance(error, HTTPException)
    ways = "See /docs for the routes."
    told = {
        "error": f"{request.method} {request.scope['path'][:100]}: {error.detail}. {ways}",
        "status": error.status_code,
    }
    return JSONResponse(told, error.status_code, headers=dict(error.headers or {}))
