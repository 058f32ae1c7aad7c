"""Messages of a WebSocket, which may be asked to send again what was lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from hamlearn.errors import ConfigError, StreamError, install
from hamlearn.streams.live.source import Source, split
from hamlearn.streams.live.wire import LONGEST, Letter

FORM = "ws://host:port/path, or wss:// for TLS"


def websocket(
    address: str, resume: bool = False, window: int = 10_000, patience: float = 60.0, timeout: float = 10.0
) -> WebSocketSource:
    """Messages of a WebSocket, for `hl.streams.live`; needs `hamlearn[websocket]`.

    Each frame is a JSON object, as a line of `tcp://`. A connection that is lost is made again; the feed ends
    when the server closes it with code 1000. A WebSocket itself has no acknowledgement: what is sent without a
    connection is lost, unless the server supports `resume`.

    Args:
        address: `ws://host:port/path`, `wss://` for TLS.
        resume: The server numbers its messages by a key `seq` that grows. At each connection it is sent
            `{"after": n}`, the number of the last message that it need not send again (`null` at the first), and
            `{"saved": n}` once a checkpoint has all up to `n`. What comes twice is left out.
        window: With `resume`, messages that may wait for a checkpoint: a learner has to be saved at least that
            often; `hamlearn run` sees to it.
        patience: Seconds without a connection after which the feed fails.
        timeout: Seconds that an attempt to connect may take.

    Example:
        >>> websocket("wss://example.org/readings").name
        'wss://example.org/readings'
    """
    return WebSocketSource(address, resume, window, patience, timeout)


class WebSocketSource(Source):
    """What `websocket` returns. A message is known by its number, if it has one."""

    def __init__(self, address: str, resume: bool, window: int, patience: float, timeout: float) -> None:
        parts, name = split(address, ("ws", "wss"), FORM)
        super().__init__(name, "saved", window, patience)
        self._url, self._resume, self._timeout = parts.geturl(), resume, timeout
        self._link: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._after: int | None = None
        self._read = 0

    def open(self, token: str | None) -> None:
        """Begin after this message."""
        self._after = None if token is None else int(token)

    async def __aiter__(self) -> AsyncIterator[Letter]:
        try:
            from tenacity import AsyncRetrying
            from websockets import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
            from websockets.asyncio.client import connect
        except ImportError as error:
            raise ConfigError(f"a feed of ws:// needs websockets: {install('websocket')}") from error
        self._loop = asyncio.get_running_loop()
        limits: dict[str, Any] = {"close_timeout": 1.0, "max_size": LONGEST, "max_queue": 64}
        lost = (ConnectionClosed, InvalidHandshake, OSError, EOFError)
        async for attempt in AsyncRetrying(**self.attempts(lost)):
            with attempt:
                try:
                    async with connect(self._url, open_timeout=self._timeout, **limits) as self._link:
                        if self._resume:
                            await self._link.send(json.dumps({"after": self._after}))
                        while True:
                            letter = self._letter(await self._link.recv())
                            if letter is not None:
                                yield letter
                except ConnectionClosed as error:
                    if error.rcvd is not None and error.rcvd.code == 1000:
                        return
                    raise
                except (InvalidURI, InvalidStatus) as error:
                    # Codes that may be over in a moment are tried again.
                    status = getattr(getattr(error, "response", None), "status_code", 0)
                    if status in (429, 500, 502, 503, 504):
                        raise
                    raise StreamError(
                        f"{self.name} refuses the connection: {error}. Correct the address."
                    ) from error

    def acknowledge(self, tokens: Sequence[str]) -> None:
        """Tell the server, if there is a connection; the next `{"after": …}` says it again."""
        if tokens and self._link is not None and self._loop is not None:
            with contextlib.suppress(RuntimeError):
                asyncio.run_coroutine_threadsafe(self._tell(self._link, int(tokens[-1])), self._loop)

    def discard(self, tokens: Sequence[str]) -> None:
        """Nothing: a number stands for all messages up to it."""

    async def _tell(self, link: Any, last: int) -> None:
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed, OSError):
            await link.send(json.dumps({"saved": last}))

    def stop(self) -> None:
        """Nothing: its task is cancelled, and lets the connection go."""

    def _letter(self, data: str | bytes) -> Letter | None:
        """A message, with its number taken off; `None` if it has come before."""
        self._read += 1
        letter = Letter(data.encode() if isinstance(data, str) else data, f"message {self._read} of {self.name}")
        if not self._resume:
            return letter
        try:
            message = json.loads(letter.data)
            number = message.pop("seq")
            if type(number) is not int or number < 0:
                raise ValueError
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            # It is bad, and the learner's thread will say so.
            return Letter(b"no number seq in " + letter.data[:80], letter.place)
        if self._after is not None and number <= self._after:
            return None
        self._after = number
        return Letter(json.dumps(message).encode(), letter.place, str(number))
