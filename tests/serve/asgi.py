"""A service and its application in this process, asked without any network."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from hamlearn.serve import Service, application, check
from hamlearn.serve.forms import JSON, MSGPACK

NET = {"kind": "mlp", "inputs": 2, "outputs": 1, "hidden": 3}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        if self.headers["content-type"] == MSGPACK:
            return msgpack.unpackb(self.body)
        return json.loads(self.body)


class Served:
    """A server without a server; `with Served(tmp_path) as served: served.ask("/state")`."""

    def __init__(self, folder: Path, **sections: Any) -> None:
        sections = {"network": NET, **sections}
        # Eager unless a test is about the engine: nothing has to be compiled then.
        sections["learner"] = {"engine": "eager", **sections.get("learner", {})}
        # A busy machine takes long to compile, and most tests are not about that.
        sections["serve"] = {"timeout": 120.0, **sections.get("serve", {})}
        self.settings = check(sections, folder)

    def __enter__(self) -> Served:
        self.service = Service(self.settings)
        self.loop = asyncio.new_event_loop()
        self.app = application(self.service)
        self._started = self.loop.create_future()
        self._life = self.loop.create_task(self._live())
        self.loop.run_until_complete(self._started)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.loop.close()

    def stop(self) -> None:
        if not self._life.done():
            self._stopping.set()
            self.loop.run_until_complete(self._life)

    async def _live(self) -> None:
        self._stopping = asyncio.Event()
        first = True

        async def receive() -> Any:
            nonlocal first
            if first:
                first = False
                return {"type": "lifespan.startup"}
            self._started.set_result(None)
            await self._stopping.wait()
            return {"type": "lifespan.shutdown"}

        async def send(message: Any) -> None:
            assert message["type"].endswith(".complete"), message

        await self.app({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send)

    @property
    def agent(self) -> Any:
        return self.service.agents.get("")

    @property
    def learner(self) -> Any:
        return self.agent.learner

    def ask(self, path: str, value: Any = None, form: str = "json", **more: Any) -> Answer:
        return self.loop.run_until_complete(self.asking(path, value, form, **more))

    def ask_all(self, requests: list[tuple[str, Any]]) -> list[Answer]:
        async def all_of_them() -> list[Answer]:
            return await asyncio.gather(*(self.asking(path, value) for path, value in requests))

        return self.loop.run_until_complete(all_of_them())

    async def asking(
        self,
        path: str,
        value: Any = None,
        form: str = "json",
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        method: str | None = None,
        parts: list[bytes] | None = None,
    ) -> Answer:
        """Ask for a path, and send a value in a form, or a body as it is, or parts of one that never ends."""
        sent = {"host": "127.0.0.1", "content-type": JSON if form == "json" else MSGPACK, **(headers or {})}
        if value is not None:
            body = json.dumps(value).encode() if form == "json" else msgpack.packb(value)
        has_body = body is not None or parts is not None or path.partition("?")[0] == "/checkpoint"
        if body is not None:
            sent.setdefault("content-length", str(len(body)))
        pieces = iter([(body or b"", False)] if parts is None else [(part, True) for part in parts])
        route, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method or ("POST" if has_body else "GET"),
            "scheme": "http",
            "path": route,
            "raw_path": route.encode(),
            "query_string": query.encode("utf-8", "surrogateescape"),
            "root_path": "",
            "headers": [
                (name.encode(), text.encode("latin-1")) for name, text in sent.items() if text is not None
            ],
        }
        got: list[Any] = []

        async def receive() -> Any:
            piece, more = next(pieces, (None, False))
            if piece is None:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": piece, "more_body": more}

        async def send(message: Any) -> None:
            got.append(message)

        await self.app(scope, receive, send)
        told = {name.decode(): text.decode() for name, text in got[0]["headers"]}
        return Answer(got[0]["status"], told, b"".join(message.get("body", b"") for message in got[1:]))
