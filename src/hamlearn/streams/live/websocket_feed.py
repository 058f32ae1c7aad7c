"""Messages of a WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from hamlearn.errors import ConfigError, StreamError, install
from hamlearn.streams.live.messages import LONGEST, Letter
from hamlearn.streams.live.source import FIRST_WAIT, Source, split

FORM = "ws://host:port/path, or wss:// for TLS"
MOST = 65_535
"""The largest window that a source may have."""
FOR_NOW = (429, 500, 502, 503, 504)
"""HTTP statuses that may be over in a moment."""


def websocket(address: str, patience: float = 60.0, timeout: float = 10.0) -> WebSocketSource:
    """Messages of a WebSocket, for `hl.streams.live`; needs `hamlearn[websocket]`.

    Each frame is a JSON object, as a line of `tcp://`. A connection that is lost is made again; the feed ends
    when the server closes it with code 1000. A WebSocket has no acknowledgement: what is sent without a connection
    is lost. A server that repeats its last messages at each connection loses none: give them an `id`, and what
    comes twice is left out.

    Args:
        address: `ws://host:port/path`, `wss://` for TLS.
        patience: Seconds without a connection after which the feed fails.
        timeout: Seconds that an attempt to connect may take.

    Example:
        >>> websocket("wss://example.org/readings").name
        'wss://example.org/readings'
    """
    return WebSocketSource(address, patience, timeout)


class WebSocketSource(Source):
    """What `websocket` returns."""

    def __init__(self, address: str, patience: float, timeout: float) -> None:
        parts, name = split(address, ("ws", "wss"), FORM)
        # There is nothing to acknowledge, so that nothing ever fills the window.
        super().__init__(name, "learned", MOST, patience)
        self._url, self._timeout = parts.geturl(), timeout

    async def __aiter__(self) -> AsyncIterator[Letter]:
        try:
            from tenacity import AsyncRetrying
            from websockets import ConnectionClosed, InvalidHandshake
        except ImportError as error:
            raise ConfigError(f"a feed of ws:// needs websockets: {install('websocket')}") from error
        lost, number, code = (ConnectionClosed, InvalidHandshake, OSError, EOFError), 0, None
        while code != 1000:
            link: Any = await AsyncRetrying(**self.attempts(lost))(self._connect)
            if link is None:
                # The feed was stopped meanwhile.
                return
            try:
                while True:
                    data, number = await link.recv(decode=False), number + 1
                    yield Letter(data, f"message {number} of {self.name}")
            except ConnectionClosed:
                code = link.close_code
                await asyncio.sleep(FIRST_WAIT)
            finally:
                await link.close()

    async def _connect(self) -> Any:
        from websockets import InvalidStatus, InvalidURI
        from websockets.asyncio.client import connect

        try:
            return await connect(
                self._url, open_timeout=self._timeout, close_timeout=1.0, max_size=LONGEST, max_queue=64
            )
        except (InvalidURI, InvalidStatus) as error:
            if isinstance(error, InvalidStatus) and error.response.status_code in FOR_NOW:
                raise
            raise StreamError(f"{self.name} rejects the connection: {error}. Correct the address.") from error

    def acknowledge(self, tokens: Sequence[str]) -> None:
        """Nothing: a WebSocket has no acknowledgements."""
