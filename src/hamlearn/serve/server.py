"""`hamlearn serve CONFIG.toml`: a process that serves until it is told to stop, and stops in order."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import uvicorn

from hamlearn.errors import ConfigError
from hamlearn.experiments.folder import alone_in
from hamlearn.record._whole import write_text
from hamlearn.serve.agent import CHECKPOINT
from hamlearn.serve.app import application
from hamlearn.serve.home import live_page
from hamlearn.serve.protocol import bounded
from hamlearn.serve.service import Service
from hamlearn.serve.settings import Settings, load

KEPT = "serve.json"
"""The configuration that the checkpoints of a folder were learned with."""

_FREE = {"run.title", "run.out", "run.threads", "learner.engine", "learner.chunk", "records.every"}
"""What may change from start to start, beside all of `[serve]`: none of it changes what a learner is."""

log = logging.getLogger("hamlearn.serve")


def serve(
    path: str | Path,
    host: str | None = None,
    port: int | None = None,
    out: str | Path | None = None,
    ready: Callable[[str, Service], None] | None = None,
) -> None:
    """Serve a configuration until SIGTERM or Ctrl-C; then finish what waits, save, and return.

    Args:
        path: The TOML file.
        host: Address to listen at, instead of `serve.host`.
        port: Port, instead of `serve.port`; 0 takes one that is free.
        out: Folder for checkpoints and records, instead of `run.out`. What was saved there is taken up.
        ready: Called once with the address, when the port is open.

    Raises:
        ConfigError: For a mistake in the file, an address beyond loopback without a token, a folder that another
            process uses or that holds a learner of another configuration, or a port that is taken.
        CheckpointError: The checkpoint in the folder cannot be read, or the last one cannot be written.

    Example:
        >>> serve("nowhere.toml")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        hamlearn.errors.ConfigError: cannot read nowhere.toml: No such file or directory. Give the path of a...
    """
    settings = load(Path(path), host, port, None if out is None else Path(out))
    with alone_in(settings.folder):
        _require_same(settings)
        torch.set_default_dtype(settings.dtype)
        if settings.config["run"]["threads"]:
            torch.set_num_threads(settings.config["run"]["threads"])
        listener = _listener(settings)
        with contextlib.closing(listener):
            service = Service(settings)
            write_text(settings.folder / KEPT, json.dumps(_fixed(settings), indent=1) + "\n")
            reason = service.agents.get("").reason
            if reason is not None:
                log.warning("%s", reason)
            if ready is not None:
                ready(_address(settings, listener), service)
            home = live_page(settings.folder, settings.config["run"]["title"], lambda: server.should_exit)
            server = _Server(_config(settings, application(service, home)))
            # What is there by now stays: nobody has to wait while it is searched for garbage again and again.
            gc.collect()
            gc.freeze()
            server.run(sockets=[listener])
            if service.failed is not None:
                raise service.failed


class _Server(uvicorn.Server):
    """Ends in order on a signal, and does not pass the signal on: the process ends with 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _config(settings: Settings, app: Any) -> uvicorn.Config:
    serve = settings.serve
    http, ws = bounded(serve["timeout"], serve["connections"])
    return uvicorn.Config(
        app,
        http=http,
        ws=ws,
        ws_max_size=serve["body"],
        # A small message that unpacks into a large one would pass by the bound.
        ws_per_message_deflate=False,
        # What the bounds are tested with; another loop might treat a connection that is broken off another way.
        loop="asyncio",
        lifespan="on",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(serve["timeout"]) + 1,
        ssl_certfile=serve["tls_cert"],
        ssl_keyfile=serve["tls_key"],
    )


def _listener(settings: Settings) -> socket.socket:
    """The open port: taken before anything is built, so that a mistake is told at once."""
    host, port = settings.serve["host"], settings.serve["port"]
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise ConfigError(
            f"cannot listen at {host}:{port}: {error.strerror or error}. Give another serve.host or serve.port."
        ) from error
    # Head and body of an answer are two writes: without this, the body waits until the client has acknowledged the
    # head. (asyncio sets it by itself only on sockets that were opened with the protocol's number.)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _address(settings: Settings, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    scheme = "https" if settings.serve["tls_cert"] else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _fixed(settings: Settings) -> dict[str, Any]:
    """What a learner of this configuration is, as JSON."""
    return {
        f"{section}.{name}": value if isinstance(value, int | float | str | list | dict | None) else repr(value)
        for section, keys in settings.config.items()
        for name, value in keys.items()
        if section != "serve" and f"{section}.{name}" not in _FREE
    }


def _require_same(settings: Settings) -> None:
    """Refuse a folder whose learner would go on in another way."""
    kept, folder = settings.folder / KEPT, settings.folder
    if not (folder / CHECKPOINT).exists():
        return
    if not kept.exists():
        raise ConfigError(f"{folder} has a checkpoint of hamlearn run. Give another folder by --out or run.out.")
    before, now = json.loads(kept.read_text("utf-8")), json.loads(json.dumps(_fixed(settings)))
    for key in now:
        if before.get(key) != now[key]:
            raise ConfigError(
                f"{folder} was served with {key} = {before.get(key)!r}, now it is {now[key]!r}. Put it back to "
                "go on, or begin anew in another folder by --out. Free to change are "
                f"{', '.join(sorted(_FREE))} and all of [serve]."
            )
