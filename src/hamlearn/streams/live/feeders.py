"""Threads that read a source into a buffer: an iterator, an asynchronous generator, a socket, a broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

from hamlearn.errors import SampleError, StreamError
from hamlearn.streams.live.arrivals import of_item, of_message
from hamlearn.streams.live.buffer import Arrival, Buffer
from hamlearn.streams.live.sockets import SocketLines
from hamlearn.streams.live.source import Source
from hamlearn.streams.live.wire import Letter, tau_of


class Feeder:
    """Reads a source in a thread of its own until it ends, fails, or has no listener.

    Args:
        source: What is read.
        buffer: Where it goes.
        clock: Seconds.
        skip_bad: Whether items that are no samples are counted and left out; otherwise the first is the end.
    """

    def __init__(self, source: Any, buffer: Buffer, clock: Callable[[], float], skip_bad: bool) -> None:
        self._source, self._buffer, self._clock, self._skip_bad = source, buffer, clock, skip_bad
        self._read = 0
        self._owed = 0.0
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # A daemon: a source that hangs for ever must not keep the program from ending.
        self._thread = threading.Thread(target=self._work, name="hamlearn-live", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """Stop reading and wait for the thread; `False` says that the source hangs and was left alone."""
        self._buffer.close()
        if isinstance(self._source, SocketLines | Source):
            self._source.stop()
        loop, task = self._loop, self._task
        if loop is not None and task is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:
                # The loop was closed between the question and the call: it has ended by itself.
                return self._wait(timeout)
        return self._wait(timeout)

    def _wait(self, timeout: float) -> bool:
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            if isinstance(self._source, AsyncIterable):
                asyncio.run(self._follow_async(self._source))
            else:
                self._follow(self._source)
        except asyncio.CancelledError:
            self._buffer.end()
        except BaseException as error:
            self._buffer.end(_explained(error, self._read))
        else:
            self._buffer.end()

    def _follow(self, source: Iterable[Any]) -> None:
        iterator = iter(source)
        try:
            for item in iterator:
                arrival = self._arrival(item)
                if arrival is not None and not self._buffer.put(arrival):
                    return
                self._let_go(source)
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
                arrival = self._arrival(item)
                if arrival is None:
                    continue
                # Waiting for the learner must not stop whatever else the source's loop runs.
                put = partial(self._buffer.put, arrival)
                if not (await asyncio.to_thread(put) if self._buffer.full else put()):
                    return
                self._let_go(source)
        finally:
            close = getattr(iterator, "aclose", None)
            if close is not None:
                await close()

    def _let_go(self, source: Any) -> None:
        """Acknowledge what was dropped, though the learner is busy: a broker that waits would send old values."""
        if self._buffer.freed and isinstance(source, Source):
            source.acknowledge(self._buffer.free())

    def _arrival(self, item: Any) -> Arrival | None:
        """What goes into the buffer; `None` for a bad item that is left out, whose time is not forgotten."""
        self._read += 1
        token = item.token if type(item) is Letter else None
        try:
            if type(item) is Letter:
                place, item = item.place, item.message()
                arrival = of_message(item, place, self._clock())
                arrival.token = token
            else:
                arrival = of_item(item, f"item {self._read} of the feed", self._clock())
        except (SampleError, StreamError, RecursionError):
            if not self._skip_bad:
                raise
            if token is not None:
                return Arrival("bad", None, None, None, "", 0.0, tau=_legible_tau(item), label=True, token=token)
            self._buffer.bad += 1
            self._owed += _legible_tau(item)
            return None
        if self._owed and not arrival.label:
            arrival.owed, self._owed = self._owed, 0.0
        return arrival


def _legible_tau(item: Any) -> float:
    """The time step of a bad item, as far as it can be read."""
    try:
        tau = item.get("tau") if isinstance(item, Mapping) else getattr(item, "tau", None)
        return tau_of(tau, "") or 0.0
    except SampleError:
        return 0.0


def _explained(error: BaseException, read: int) -> BaseException:
    if isinstance(error, StreamError):
        return error
    if isinstance(error, SampleError):
        return StreamError(str(error))
    explained = StreamError(
        f"the live source failed after {read} items with {type(error).__name__}: {error}. "
        "What it had given before was read; the learner is as it was after the last of them."
    )
    explained.__cause__ = error
    return explained
