"""What stands between requests and the learners: room, time, and answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from hamlearn.errors import HamlearnError
from hamlearn.serve.agents import Agents
from hamlearn.serve.metrics import Metrics
from hamlearn.serve.reading import Reading
from hamlearn.serve.refusals import BUSY, Refused
from hamlearn.serve.saver import Saver
from hamlearn.serve.settings import Settings
from hamlearn.serve.work import Work
from hamlearn.serve.worker import Errand, Worker

_OFTEN = 0.005
"""Seconds between two looks whether there is room."""
GATHER = 0.002
"""Seconds that a round may wait while more and more requests are being read that can be part of it."""


class Service:
    """The learners of a process, as requests see them.

    Args:
        settings: What to serve.

    Attributes:
        failed: Why the last checkpoint could not be written; `None` where it could.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from hamlearn.serve import check
        >>> service = Service(check({"network": {"inputs": 2, "outputs": 1}}, Path(tempfile.mkdtemp())))
        >>> service.failed is None
        True
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, serve = settings, settings.serve
        network = settings.config["network"]
        self.agents = Agents(settings)
        self.reading = Reading(
            network["inputs"],
            network["outputs"],
            settings.classes,
            settings.config["run"]["dtype"],
            serve["batch"],
        )
        turn = threading.Lock()
        self.worker = Worker(self.agents, serve["queue"], turn, self._send)
        self.saver = Saver(self.agents, turn, serve["checkpoint"])
        self.metrics = Metrics(self.agents, self.worker, self.saver)
        self.failed: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looks: float | None = None
        """When the first of the requests came that have not been looked at; `None` where all have been."""

    def start(self) -> None:
        """Begin to learn; answers are given in the event loop that runs now."""
        self._loop = asyncio.get_running_loop()
        self.worker.start()
        self.saver.start()

    async def stop(self) -> None:
        """Take nothing more, finish what waits, and save."""
        # The event loop goes on meanwhile: those who wait are answered.
        await asyncio.to_thread(self.worker.stop)
        await asyncio.to_thread(self.saver.stop)
        try:
            await asyncio.to_thread(self.agents.close)
        except (HamlearnError, OSError) as error:
            # The server ends all the same, and whoever runs it is told.
            self.failed = error

    async def take(self, work: Work) -> None:
        """Take the samples or labels of a request; what became of each is in its answers then."""
        await self.begin(work)

    def begin(self, work: Work) -> Awaitable[None]:
        """Let a request wait for its turn from now on; what is returned ends when it has been taken.

        Raises:
            Refused: There is no room, or no such agent.
        """
        if work.labels:
            # Their agent may be about to be made for samples that wait before them.
            self.agents.require_key(work.agent)
        else:
            self.agents.require(work.agent, make=True)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def reply(problem: Exception | None) -> None:
            _settle(future, None, problem)

        work.reply = reply
        self._submit(work)
        return self._in_time(future, work)

    async def room(self, count: int) -> None:
        """Wait until so many samples more may wait, but no longer than a request may take."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.serve["timeout"]
        while not self.worker.has_room(count) and loop.time() < deadline:
            await asyncio.sleep(_OFTEN)

    async def errand(self, do: Callable[[Agents], Any]) -> Any:
        """Let the learners' thread do something, in its turn, and answer what it answers."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def reply(answer: Any, problem: Exception | None) -> None:
            _settle(future, answer, problem)

        errand = Errand(do, reply)
        self._submit(errand)
        return await self._in_time(future, errand)

    def _submit(self, item: Work | Errand) -> None:
        samples = isinstance(item, Work)
        try:
            self.worker.submit(item, wake=not samples)
        except Refused:
            if isinstance(item, Work):
                self.agents.count_dropped(item.agent, item.count)
            raise
        if samples and self._looks is None:
            loop = asyncio.get_running_loop()
            self._looks = loop.time()
            loop.call_soon(self._look, loop, 0)

    def _look(self, loop: asyncio.AbstractEventLoop, before: int) -> None:
        """Take what waits, unless more has come in the last turn of the event loop: then the next may bring more.

        A round costs about as much as the reading of two requests, however small it is.
        """
        waiting = self.worker.waiting
        assert self._looks is not None
        if waiting > before and loop.time() - self._looks < GATHER:
            loop.call_soon(self._look, loop, waiting)
            return
        self._looks = None
        self.worker.take_here()

    def _in_time(self, future: asyncio.Future[Any], item: Work | Errand) -> asyncio.Future[Any]:
        """The same future, which is settled in time whatever the learners do."""

        def give_up() -> None:
            if future.done():
                return
            what = "nothing of it was learned" if self.worker.withdraw(item) else "it is being learned right now"
            reason = (
                f"there was no answer within {self.settings.serve['timeout']:g} seconds (serve.timeout); {what}."
            )
            _settle(
                future, None, Refused(503, f"{reason} Send it again: an id keeps it from counting twice.", BUSY)
            )

        timer = asyncio.get_running_loop().call_later(self.settings.serve["timeout"], give_up)
        future.add_done_callback(lambda _: timer.cancel())
        return future

    def _send(self, replies: list[Callable[[], None]]) -> None:
        """Called by the learners' thread, which cannot touch what belongs to the event loop."""

        def all_of_them() -> None:
            for reply in replies:
                reply()

        assert self._loop is not None
        if replies and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(all_of_them)


def _settle(future: asyncio.Future[Any], answer: Any, problem: Exception | None) -> None:
    # Nobody may be waiting any more: the time was over, or the client has gone.
    if future.done():
        return
    if problem is None:
        future.set_result(answer)
    else:
        future.set_exception(problem)


def answered(work: Work) -> tuple[int, Any]:
    """Status and body for a request that was taken: in the layout in which it came.

    Raises:
        Refused: None of it could be taken.
    """
    errors = work.rare.get("error", {})
    if len(errors) == work.count:
        raise Refused(422, errors[0])
    if work.layout == "one":
        return 200, work.row(0)
    if work.layout == "rows":
        return 200, [work.row(index) for index in range(work.count)]
    columns: dict[str, Any] = dict(work.answers)
    for name, values in work.rare.items():
        columns[name] = [values.get(index) for index in range(work.count)]
    if work.packed and not errors:
        columns["y"] = np.array(columns["y"], np.float32 if work.u is None else work.u.dtype)
        columns["loss"] = np.array([np.nan if loss is None else loss for loss in columns["loss"]], np.float64)
    return 200, columns
