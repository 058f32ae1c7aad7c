"""The thread that reads a source into a buffer: an iterator, a socket, a broker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from hamlearn.errors import HamlearnError, StreamError
from hamlearn.streams.live.buffer import Buffer
from hamlearn.streams.live.messages import Letter, Parser
from hamlearn.streams.live.sockets import SocketLines
from hamlearn.streams.live.source import Source


class Feeder:
    """Reads a source in a thread of its own until it ends, fails, or the buffer is closed.

    Args:
        source: The source that is read.
        buffer: Where it goes.
        parser: Makes arrivals of what the source gives.
        clock: Seconds.
    """

    def __init__(self, source: Iterable[Any], buffer: Buffer, parser: Parser, clock: Callable[[], float]) -> None:
        self._source, self._buffer, self._parser, self._clock = source, buffer, parser, clock
        self._read = 0
        # A daemon: a source that hangs for ever must not keep the program from ending.
        self._thread = threading.Thread(target=self._work, name="hamlearn-live", daemon=True)
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Stop reading and wait for the thread; a source that hangs is left alone after so many seconds."""
        self._buffer.end()
        if isinstance(self._source, SocketLines | Source):
            self._source.stop()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _work(self) -> None:
        error: BaseException | None = None
        try:
            self._follow()
        except HamlearnError as problem:
            error = problem
        except BaseException as problem:
            error = StreamError(
                f"the live source failed after {self._read} items with {type(problem).__name__}: {problem}. "
                "What it had given before was read; the learner is as it was after the last of them."
            )
            error.__cause__ = problem
        self._buffer.end(error)

    def _follow(self) -> None:
        iterator = iter(self._source)
        try:
            for item in iterator:
                self._read += 1
                place = item.place if type(item) is Letter else f"item {self._read} of the feed"
                if not self._buffer.put(self._parser.arrival(item, place, self._clock())):
                    return
                if self._buffer.freed and isinstance(self._source, Source):
                    # A broker that waits for what was dropped would send old values; the learner is busy.
                    freed, self._buffer.freed = self._buffer.freed, []
                    self._source.discard(freed)
        finally:
            # A generator's own clean-up runs here, in the thread that it lives in.
            close = getattr(iterator, "close", None)
            if close is not None:
                close()
