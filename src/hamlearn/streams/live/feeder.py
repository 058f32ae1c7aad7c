"""The thread that reads a source into a buffer: an iterator, an asynchronous generator, a socket, a broker."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

from hamlearn.errors import HamlearnError, SampleError, StreamError
from hamlearn.streams.live.buffer import Buffer
from hamlearn.streams.live.messages import Arrival, Letter, Parser, tau_of
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

    def __init__(self, source: Any, buffer: Buffer, parser: Parser, clock: Callable[[], float]) -> None:
        self._source, self._buffer, self._parser, self._clock = source, buffer, parser, clock
        self._read = 0
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # A daemon: a source that hangs for ever must not keep the program from ending.
        self._thread = threading.Thread(target=self._work, name="hamlearn-live", daemon=True)
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Stop reading and wait for the thread; a source that hangs is left alone after so many seconds."""
        self._buffer.end()
        if isinstance(self._source, SocketLines | Source):
            self._source.stop()
        if self._loop is not None and self._task is not None:
            # A loop that has ended by itself in the meantime raises.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._task.cancel)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _work(self) -> None:
        error: BaseException | None = None
        try:
            if isinstance(self._source, AsyncIterable):
                asyncio.run(self._follow_async(self._source))
            else:
                self._follow(self._source)
        except asyncio.CancelledError:
            error = None
        except HamlearnError as problem:
            error = problem
        except BaseException as problem:
            error = StreamError(
                f"the live source failed after {self._read} items with {type(problem).__name__}: {problem}. "
                "What it had given before was read; the learner is as it was after the last of them."
            )
            error.__cause__ = problem
        self._buffer.end(error)

    def _follow(self, source: Iterable[Any]) -> None:
        iterator = iter(source)
        try:
            for item in iterator:
                if not self._buffer.put(self._arrival(item)):
                    return
                self._acknowledge_dropped()
        finally:
            # A generator's own clean-up runs here, in the thread that it lives in.
            close = getattr(iterator, "close", None)
            if close is not None:
                close()

    async def _follow_async(self, source: AsyncIterable[Any]) -> None:
        self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        iterator = aiter(source)
        try:
            async for item in iterator:
                # Waiting for the learner must not stop whatever else the source's loop runs.
                put = partial(self._buffer.put, self._arrival(item))
                if not (await asyncio.to_thread(put) if self._buffer.full else put()):
                    return
                self._acknowledge_dropped()
        finally:
            close = getattr(iterator, "aclose", None)
            if close is not None:
                await close()

    def _acknowledge_dropped(self) -> None:
        """A broker that waits for what was dropped would send old values; the learner is busy."""
        freed = self._buffer.freed
        if freed and isinstance(self._source, Source):
            self._buffer.freed = []
            self._source.discard(freed)

    def _arrival(self, item: Any) -> Arrival:
        """What goes into the buffer: a bad item too, so that the learner's thread comes to it in its turn."""
        self._read += 1
        letter = item if type(item) is Letter else None
        place = f"item {self._read} of the feed" if letter is None else letter.place
        try:
            arrival = self._parser.parse(item, place, self._clock())
        except SampleError as error:
            arrival = Arrival(place, 0.0, tau=_legible_tau(item), error=error)
        if letter is not None:
            arrival.token = letter.token
        return arrival


def _legible_tau(item: Any) -> float:
    """The time step of a bad item, if it has one that can be read."""
    try:
        item = item.message() if type(item) is Letter else item
        return tau_of(item.get("tau") if isinstance(item, Mapping) else getattr(item, "tau", None), "") or 0.0
    except SampleError:
        return 0.0
