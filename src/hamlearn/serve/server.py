"""`hamlearn serve`: a process that serves until it is stopped, and stops in order."""

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
from hamlearn.experiments.run.opened import torch_as
from hamlearn.serve.app import application
from hamlearn.serve.service import Service
from hamlearn.serve.settings import Settings, load


def serve(
    path: str | Path,
    out: str | Path | None = None,
    ready: Callable[[str, Service], None] | None = None,
    **given: Any,
) -> None:
    """Serve a configuration until SIGTERM or Ctrl-C; then finish what waits, save, and return.

    Args:
        path: A TOML file, or the folder of a finished run.
        out: Folder of checkpoints, instead of `run.out`. A learner that was saved there continues.
        ready: Called once with the address, when checkpoints are loaded, steps are compiled, and the port opens.
        given: Keys of `[serve]` that replace those of the file, such as `host` or `port`.

    Raises:
        ConfigError: For a mistake in the file, an address beyond loopback without a proxy, a folder that another
            process uses or that holds a learner of another configuration, or a port that is taken.
        CheckpointError: A checkpoint in the folder cannot be read, or the last one cannot be written.

    Example:
        >>> serve("nowhere.toml")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        hamlearn.errors.ConfigError: cannot read nowhere.toml: No such file or directory. Give the path of a...
    """
    settings = load(Path(path), None if out is None else Path(out), **given)
    if settings.serve["log"] == "json":
        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter())
        logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    with alone_in(settings.folder), torch_as(settings.config["run"]), _bound(settings) as listener:
        # What a learner draws, as for dropout, comes from the seed, or continues as its checkpoint says.
        torch.manual_seed(settings.config["run"]["seed"])
        service = Service(settings)
        server = uvicorn.Server(config(settings, application(service)))
        # What was made so far stays: to look through it for garbage would take longer than most requests.
        gc.collect()
        gc.freeze()
        with _signals_stop(server):
            # Clients that connect from here on are answered in a moment.
            listener.listen(1024)
            if ready is not None:
                ready(_address(listener), service)
            server.run(sockets=[listener])
        if service.failed is not None:
            raise service.failed


class JsonFormatter(logging.Formatter):
    """Formats log records as JSON, one object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """A record as one line."""
        line = {"time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"), "level": record.levelname.lower()}
        line |= {"logger": record.name, "message": record.getMessage()}
        trace = {"exception": self.formatException(record.exc_info)} if record.exc_info else {}
        return json.dumps(line | trace)


@contextlib.contextmanager
def _signals_stop(server: uvicorn.Server) -> Iterator[None]:
    """Within, SIGTERM and SIGINT stop the server and do not end the process by themselves.

    uvicorn has handlers of its own while it runs, but not yet while it starts. It raises signals again at the end,
    which would end the process before it can return 0.
    """

    def stop(*_: object) -> None:
        server.should_exit = True

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def config(settings: Settings, app: Any) -> uvicorn.Config:
    """The configuration of uvicorn."""
    return uvicorn.Config(
        app,
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(settings.serve["timeout"]) + 1,
    )


def _bound(settings: Settings) -> socket.socket:
    """The port: taken before anything is built, so that one in use is reported at once, and not yet open."""
    host, port = settings.serve["host"], settings.serve["port"]
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            stack.pop_all()
            return listener
    except OSError as error:
        raise ConfigError(
            f"cannot listen at {host}:{port}: {error.strerror or error}. Give another serve.host or serve.port."
        ) from error


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
