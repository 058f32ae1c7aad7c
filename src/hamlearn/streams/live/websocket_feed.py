"""Messages of a WebSocket, which may say from where they are to be sent again."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hamlearn.errors import ConfigError, StreamError, install
from hamlearn.streams.live.backoff import Backoff
from hamlearn.streams.live.source import LONGEST, Letter, Source, split
from hamlearn.streams.live.tls import shared_context
from hamlearn.streams.live.wire import parse

FORM = "ws://host:port/path, or wss:// for TLS"


def websocket(
    address: str, resume: bool = False, window: int = 10_000, patience: float = 60.0, timeout: float = 10.0
) -> WebSocketSource:
    """Messages of a WebSocket, for `hl.streams.live`; needs `hamlearn[websocket]`.

    Each frame is a JSON object, as a line of `tcp://`. A connection that is lost is made again; the feed ends
    where the server closes it with code 1000. A WebSocket itself knows no acknowledgement: what is sent while
    nobody is connected is lost, unless the server takes part by `resume`.

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
    """What `websocket` returns. A message is known by its number, where it has one."""

    def __init__(self, address: str, resume: bool, window: int, patience: float, timeout: float) -> None:
        parts, name = split(address, ("ws", "wss"), FORM)
        super().__init__(name, "saved", window)
        self._url, self._resume, self._timeout = parts.geturl(), resume, timeout
        self._backoff = Backoff(self.name, patience)
        self._wake = threading.Event()
        self._link: Any = None
        self._after: int | None = None
        self._saved: int | None = None
        self._read = 0

    def open(self, known: Sequence[str]) -> None:
        """Begin after the last of these."""
        if known:
            self._after = self._saved = max(int(token) for token in known)

    def __iter__(self) -> Iterator[Letter]:
        try:
            from websockets import exceptions
            from websockets.sync.client import connect
        except ImportError as error:
            raise ConfigError(f"a feed of ws:// needs websockets: {install('websocket')}") from error
        tls = shared_context() if self._url.startswith("wss:") else None
        limits: dict[str, Any] = {"close_timeout": 1.0, "max_size": LONGEST, "max_queue": 64}
        while not self._wake.is_set():
            problem: object
            try:
                with connect(self._url, ssl=tls, open_timeout=self._timeout, **limits) as self._link:
                    if self._resume:
                        self._link.send(json.dumps({"after": self._after}))
                    while True:
                        letter = self._letter(self._link.recv())
                        self._backoff.connected()
                        if letter is not None:
                            yield letter
            except exceptions.ConnectionClosed as error:
                if error.rcvd is not None and error.rcvd.code == 1000:
                    return
                problem = error
            except (exceptions.InvalidURI, exceptions.InvalidStatus) as error:
                if not _is_over_soon(error):
                    raise StreamError(f"{self.name} refuses the connection: {error}. Mend the address.") from error
                problem = error
            except (OSError, TimeoutError, exceptions.InvalidHandshake, EOFError) as error:
                problem = error
            self._wake.wait(self._backoff.failed(problem))

    def acknowledge(self, tokens: Iterable[str]) -> None:
        """Tell the server, where there is a connection; the next `{"after": …}` says it again."""
        from websockets.exceptions import ConnectionClosed

        numbers = [int(token) for token in tokens]
        if not numbers or (self._saved is not None and max(numbers) <= self._saved):
            return
        self._saved = max(numbers)
        try:
            self._link.send(json.dumps({"saved": self._saved}))
        except (ConnectionClosed, OSError):
            # It will be asked for what comes after, and so hears it then.
            return

    def unconfirmed(self) -> list[str]:
        """The last that a checkpoint has: where to begin after a restart."""
        return [] if self._saved is None else [str(self._saved)]

    def holds(self, token: str) -> bool:
        """Whether it is in no checkpoint yet."""
        return self._saved is None or int(token) > self._saved

    def stop(self) -> None:
        """Wake the reader."""
        self._wake.set()
        link = self._link
        if link is not None:
            link.close()

    def _letter(self, data: str | bytes) -> Letter | None:
        """A message, with its number taken off; `None` where it has come before."""
        self._read += 1
        letter = Letter(data.encode() if isinstance(data, str) else data, f"message {self._read} of {self.name}")
        if not self._resume:
            return letter
        try:
            message = parse(letter.data, letter.place)
        except StreamError:
            # It is bad with or without a number; whoever reads it will say so.
            return letter
        number = message.pop("seq", None)
        if type(number) is not int or number < 0:
            return Letter(b"no number seq in " + letter.data[:80], letter.place)
        if self._after is not None and number <= self._after:
            return None
        self._after = number
        return Letter(json.dumps(message).encode(), letter.place, str(number))


def _is_over_soon(error: Exception) -> bool:
    """Whether a server that refuses may think otherwise in a moment."""
    status = getattr(getattr(error, "response", None), "status_code", 0)
    return status in (429, 500, 502, 503, 504)
