"""A server in this process, and plain clients that ask it over loopback."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn

from hamlearn.serve import Service, application, check
from hamlearn.serve.server import _bound, config

NET = {"kind": "mlp", "inputs": 2, "outputs": 1, "hidden": 3}
ONE = {"u": [1.0, 2.0], "target": [0.5]}


class Answer(NamedTuple):
    status: int
    headers: Any
    body: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.body)


class Server:
    """`with Server(tmp_path) as server: server.ask("/state")`; sections are those of the configuration."""

    def __init__(self, folder: Path, **sections: Any) -> None:
        sections = {"network": NET, **sections}
        # A busy machine takes long to compile, and most tests are not about that.
        sections["serve"] = {"port": 0, "timeout": 60.0, **sections.get("serve", {})}
        self.settings = check(sections, folder, folder)

    def __enter__(self) -> Server:
        self.service = Service(self.settings)
        self._uvicorn = uvicorn.Server(config(self.settings, application(self.service)))
        listener = _bound(self.settings)
        listener.listen()
        self.port = listener.getsockname()[1]

        async def main() -> None:
            self.loop = asyncio.get_running_loop()
            await self._uvicorn.serve(sockets=[listener])

        self._thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
        self._thread.start()
        assert self.ask("/readyz").status == 200
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._uvicorn.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive()

    def agent(self, key: str = "") -> Any:
        return self.service.agents.of(key)

    def learner(self, key: str = "") -> Any:
        return self.agent(key).learner

    def ask(
        self,
        path: str,
        value: Any = None,
        method: str | None = None,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Send a value, or a body as it is, on a connection of its own."""
        if value is not None:
            body = json.dumps(value).encode()
        sent = {"content-type": "application/json", **(headers or {})}
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            link.request(method or ("GET" if body is None else "POST"), path, body, sent)
            answer = link.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            link.close()

    def ask_all(self, requests: list[tuple[str, Any]]) -> list[Answer]:
        """Ask at the same time."""
        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(lambda request: self.ask(*request), requests))

    def dial(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def say(self, data: bytes) -> bytes:
        """Send bytes as they are; all that the server says until it closes the connection or is silent."""
        with self.dial() as link:
            link.sendall(data)
            return heard(link)


def heard(link: socket.socket) -> bytes:
    said = b""
    try:
        while data := link.recv(65536):
            said += data
    except OSError:
        pass
    return said
