"""A client that loads a server over keep-alive connections: as fast as it answers, or at a rate that is given.

It runs in a process of its own, and does next to nothing with an answer but to look at its status and length.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import deque
from typing import Any

END = b"\r\n\r\n"


class Link(asyncio.Protocol):
    """One connection, with one request on its way at a time."""

    def __init__(self, load: Load) -> None:
        self.load, self.data, self.began = load, b"", 0.0
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def ask(self, began: float) -> None:
        self.began, self.data = began, b""
        self.transport.write(next(self.load.requests))

    def data_received(self, data: bytes) -> None:
        self.data += data
        head = self.data.find(END)
        if head < 0:
            return
        lower = self.data[:head].lower()
        size = int(lower.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(self.data) < head + len(END) + size:
            return
        self.load.answered(self, self.data[9:12] == b"200")

    def connection_lost(self, exc: Exception | None) -> None:
        self.load.lost()


class Load:
    """Sends the same requests again and again.

    Args:
        host: Of the server.
        port: Of the server.
        requests: Heads and bodies, to be sent in turn.
        links: How many connections.
        rate: Requests a second; `None`: each connection asks as soon as it was answered.
    """

    def __init__(self, host: str, port: int, requests: list[bytes], links: int, rate: float | None) -> None:
        self.host, self.port, self.count, self.rate = host, port, links, rate
        self.requests = itertools.cycle(requests)
        self.seconds: list[float] = []
        self.bad = 0
        self._left = 0
        self._idle: deque[Link] = deque()
        self._due: deque[float] = deque()

    async def run(self, requests: int) -> dict[str, Any]:
        """Send so many requests, and tell how it went."""
        loop = asyncio.get_running_loop()
        self._left, self._unasked, self._done = requests, requests, loop.create_future()
        links = [
            (await loop.create_connection(lambda: Link(self), self.host, self.port))[1] for _ in range(self.count)
        ]
        began = time.perf_counter()
        if self.rate is None:
            for link in links:
                self._ask(link, time.perf_counter())
        else:
            self._idle.extend(links)
            pacer = asyncio.create_task(self._pace(began))
        await self._done
        took = time.perf_counter() - began
        if self.rate is not None:
            await pacer
        for link in links:
            link.transport.abort()
        times = sorted(self.seconds)
        at = {name: times[min(int(share * len(times)), len(times) - 1)] for name, share in _SHARES.items()}
        return {"requests": requests, "seconds": took, "bad": self.bad, **at}

    def answered(self, link: Link, good: bool) -> None:
        """Note an answer, and continue."""
        now = time.perf_counter()
        self.seconds.append(now - link.began)
        self.bad += not good
        self._left -= 1
        if self._left <= 0:
            if not self._done.done():
                self._done.set_result(None)
        elif self.rate is None:
            self._ask(link, now)
        elif self._due:
            link.ask(self._due.popleft())
        else:
            self._idle.append(link)

    def lost(self) -> None:
        """A connection that ends before all is done is an error of the measurement."""
        if not self._done.done():
            self._done.set_exception(ConnectionError("the server closed a connection"))

    def _ask(self, link: Link, now: float) -> None:
        if self._unasked:
            self._unasked -= 1
            link.ask(now)

    async def _pace(self, began: float) -> None:
        """Let requests fall due at even times, whether or not those before were answered."""
        assert self.rate is not None
        sent = 0
        while self._unasked:
            due = began + sent / self.rate
            wait = due - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            sent, self._unasked = sent + 1, self._unasked - 1
            if self._idle:
                self._idle.popleft().ask(due)
            else:
                self._due.append(due)


_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "worst": 1.0}


def request(path: str, body: bytes, content_type: str) -> bytes:
    """A whole request."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}"
    )
    return head.encode() + END + body


def main() -> None:
    """Read one job as JSON from standard input, and print what came of it."""
    import sys

    job = json.loads(sys.stdin.readline())
    body = bytes.fromhex(job["body"])
    requests = [request(path, body, job["type"]) for path in job["paths"]]
    load = Load("127.0.0.1", job["port"], requests, job["links"], job["rate"])
    print(json.dumps(asyncio.run(load.run(job["requests"]))))


if __name__ == "__main__":
    main()
