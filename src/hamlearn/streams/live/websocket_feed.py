"""Messages of a WebSocket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hamlearn.errors import ConfigError, StreamError, install
from hamlearn.streams.live.messages import LONGEST, Letter
from hamlearn.streams.live.source import FIRST_WAIT, MOST, Source, split

FORM = "ws://host:port/path, or wss:// for TLS"
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
        self._link: Any = None

    def __iter__(self) -> Iterator[Letter]:
        try:
            from websockets import ConnectionClosed, InvalidHandshake
        except ImportError as error:
            raise ConfigError(f"a feed of ws:// needs websockets: {install('websocket')}") from error
        connect = self.attempts((ConnectionClosed, InvalidHandshake, OSError, EOFError))
        number, code = 0, None
        while code != 1000 and not self._stopped.is_set():
            link: Any = connect(self._connect)
            if link is None:
                # The feed was stopped meanwhile.
                return
            with link:
                try:
                    while not self._stopped.is_set():
                        data, number = link.recv(decode=False), number + 1
                        yield Letter(data, f"message {number} of {self.name}")
                except ConnectionClosed:
                    code = link.close_code
                    self._stopped.wait(FIRST_WAIT)

    def _connect(self) -> Any:
        from websockets import InvalidStatus, InvalidURI
        from websockets.sync.client import connect

        try:
            self._link = connect(
                self._url, open_timeout=self._timeout, close_timeout=1.0, max_size=LONGEST, max_queue=64
            )
        except (InvalidURI, InvalidStatus) as error:
            if isinstance(error, InvalidStatus) and error.response.status_code in FOR_NOW:
                raise
            raise StreamError(f"{self.name} rejects the connection: {error}. Correct the address.") from error
        return self._link

    def acknowledge(self, tokens: Sequence[str]) -> None:
        """Nothing: a WebSocket has no acknowledgements."""

    def stop(self) -> None:
        """Close the connection, which wakes the reader."""
        super().stop()
        if self._link is not None:
            self._link.close()
