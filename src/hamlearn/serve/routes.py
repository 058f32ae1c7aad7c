"""The routes over HTTP: each reads a bounded body within a bounded time, and answers or says why not."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from typing import Any
from urllib.parse import parse_qs

from hamlearn.errors import HamlearnError
from hamlearn.serve.agents import Agents
from hamlearn.serve.answers import send_body, send_refused
from hamlearn.serve.forms import Form, accepted, decode, encode, form_of
from hamlearn.serve.metrics import CONTENT_TYPE
from hamlearn.serve.refusals import BUSY, Refused
from hamlearn.serve.service import Service, answered

log = logging.getLogger("hamlearn.serve")


class Gone(Exception):  # noqa: N818 (nothing went wrong here)
    """The client has gone before it had said all."""


class Route(ABC):
    """One route: what it does is said by `answer`; errors, times and counts are the same for all.

    Args:
        service: What is served.
    """

    name = ""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request; whatever happens, there is an answer."""
        began, status = time.perf_counter(), 500
        headers = dict(scope["headers"])
        try:
            status, body, content_type = await self.answer(scope, headers, receive)
            await send_body(send, status, body, content_type)
        except Gone:
            status = 499
        except Refused as refused:
            status = refused.status
            await send_refused(send, refused, _usual(headers))
        except HamlearnError as error:
            # What was asked for was fine, and this machine could not do it, as where a disk is full.
            status = 503
            await send_refused(send, Refused(503, str(error), retry=BUSY), _usual(headers))
        except Exception:
            log.exception("%s failed", self.name)
            reason = "this is a mistake of the server's, which its log tells more about."
            await send_refused(send, Refused(500, reason), _usual(headers))
        finally:
            self.service.metrics.count(self.name, status, time.perf_counter() - began)

    @abstractmethod
    async def answer(self, scope: Any, headers: dict[bytes, bytes], receive: Any) -> tuple[int, bytes, str]:
        """Status, body and content type."""

    async def body(self, headers: dict[bytes, bytes], receive: Any) -> bytes:
        """The whole body, if it is not too long and does not take too long."""
        most, timeout = self.service.settings.serve["body"], self.service.settings.serve["timeout"]
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > most:
            raise _too_long(f"the body has {int(length)} bytes", most)
        parts: list[bytes] = []
        size, more = 0, True
        try:
            async with asyncio.timeout(timeout):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Gone
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise _too_long(f"the body has more than {most} bytes", most)
                    more = message.get("more_body", False)
        except TimeoutError as error:
            reason = f"the body was not there after {timeout:g} seconds (serve.timeout). Send it faster."
            raise Refused(408, reason, close=True) from error
        return b"".join(parts)


class Take(Route):
    """Samples or labels, one or many, in either form."""

    labels = False

    async def answer(self, scope: Any, headers: dict[bytes, bytes], receive: Any) -> tuple[int, bytes, str]:
        """Take all of them, and answer what became of each."""
        agent = agent_of(scope)
        form = form_of(headers.get(b"content-type", b"").decode("latin-1"))
        coding = headers.get(b"content-encoding", b"identity").strip().lower()
        if coding not in (b"identity", b""):
            raise Refused(415, f"the body is packed as {coding[:50].decode('latin-1')!r}. Send it as it is.")
        wanted = accepted(headers.get(b"accept", b"").decode("latin-1"), form)
        value = decode(await self.body(headers, receive), form)
        reading = self.service.reading
        work = (reading.labels if self.labels else reading.samples)(value, agent)
        await self.service.take(work)
        status, answer = answered(work)
        return status, *encode(answer, wanted)


class Predict(Take):
    """`POST /predict`: samples; those that have a target are learned from."""

    name = "predict"


class Label(Take):
    """`POST /label`: targets of samples that came before."""

    name, labels = "label", True


class State(Route):
    """`GET /state`: where a learner stands."""

    name = "state"

    async def answer(self, scope: Any, headers: dict[bytes, bytes], receive: Any) -> tuple[int, bytes, str]:
        """The state after all that arrived before this request."""
        key, wanted = agent_of(scope), _wanted(headers)
        self.service.agents.require(key, make=False)
        told = await self.service.errand(lambda agents: agents.get(key).state())
        names = [name for name, _ in self.service.agents.items()]
        told = {"agent": key, **told, "queue": self.service.worker.waiting, "agents": names}
        return 200, *encode(told, wanted)


class Checkpoint(Route):
    """`POST /checkpoint`: writes one now, and answers up to which sample it reaches."""

    name = "checkpoint"

    async def answer(self, scope: Any, headers: dict[bytes, bytes], receive: Any) -> tuple[int, bytes, str]:
        """Save after all that arrived before this request."""
        key, wanted = agent_of(scope), _wanted(headers)
        self.service.agents.require(key, make=False)
        # A page of another origin may send a plain form here, and nothing with a header of its own.
        if b"origin" in headers and headers[b"origin"].partition(b"://")[2] != headers.get(b"host", b""):
            raise Refused(403, "a page of another origin may not save here.")
        await self.body(headers, receive)

        def save(agents: Agents) -> Any:
            return agents.get(key).save()

        return 200, *encode({"agent": key, **await self.service.errand(save)}, wanted)


class Scrape(Route):
    """`GET /metrics`: for Prometheus."""

    name = "metrics"

    async def answer(self, scope: Any, headers: dict[bytes, bytes], receive: Any) -> tuple[int, bytes, str]:
        """All counts, without waiting for the learners."""
        return 200, self.service.metrics.text(), CONTENT_TYPE


def agent_of(scope: Any) -> str:
    """The key that a request names; empty where it names none."""
    if not scope["query_string"]:
        return ""
    try:
        query = parse_qs(scope["query_string"].decode("ascii"), keep_blank_values=True, max_num_fields=10)
    except ValueError as error:
        raise Refused(400, f"the query cannot be read ({error}). Write ?agent=KEY, or nothing.") from error
    unknown = sorted(set(query) - {"agent"})
    if unknown or len(query.get("agent", [""])) != 1:
        raise Refused(
            400, f"the query has {', '.join(unknown)[:100] or 'agent twice'}. Write ?agent=KEY, or nothing."
        )
    return query.get("agent", [""])[0]


def _wanted(headers: dict[bytes, bytes]) -> Form:
    return accepted(headers.get(b"accept", b"").decode("latin-1"), "json")


def _usual(headers: dict[bytes, bytes]) -> Form:
    """The form in which a refusal is told, whatever else is wrong with the request."""
    try:
        return _wanted(headers)
    except Refused:
        return "json"


def _too_long(what: str, most: int) -> Refused:
    return Refused(413, f"{what}, and {most} are allowed (serve.body). Send several requests.", close=True)
