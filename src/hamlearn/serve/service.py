"""The queue between requests and learners: rounds in order of arrival, bounds, and checkpoints."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

from hamlearn.errors import HamlearnError
from hamlearn.serve.agents import Agents
from hamlearn.serve.checkpoints import About
from hamlearn.serve.forms import Batch, RequestError
from hamlearn.serve.settings import Settings

log = logging.getLogger("hamlearn.serve")

ROUND, SHARE = 1024, 0.25
"""Samples of a round, and the share of `serve.timeout` that it may take; the rest waits for the next one.

All requests of a round are answered at its end: if that were after their timeout, a server under load would
learn everything and answer nothing.
"""
MOMENT = 0.01
"""Seconds of a round that may be taken by the thread that also answers requests."""
BUSY = 1
"""Seconds after which a client may try again if too much is waiting."""

Work = Batch | Callable[[Agents], Any]
"""Samples or labels of a request, or a function of the learners."""


class WaitingWork(NamedTuple):
    """What waits for the learners: its samples, and the future of its result."""

    work: Work
    samples: int
    future: asyncio.Future[Any]


class Service:
    """The learners of a process, as requests see them: one round after another.

    Args:
        settings: What to serve. The learners are built, and continue from their checkpoints, here.

    Attributes:
        agents: The learners.
        waiting: Samples in the queue.
        dropped: How many were rejected because it was full.
        failures: Checkpoints that could not be written.
        stopping: Whether no more requests are accepted.
        failed: Why the last checkpoint could not be written; `None` if all is well.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from hamlearn.serve import check
        >>> service = Service(check({"network": {"inputs": 2, "outputs": 1}}, Path(tempfile.mkdtemp())))
        >>> list(service.agents)
        ['']
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.agents = settings, Agents(settings)
        self.waiting = self.dropped = self.failures = 0
        self.stopping = False
        self.failed: Exception | None = None
        self._queue: deque[WaitingWork] = deque()
        self._wake = asyncio.Event()
        # Seconds that a sample took in the last round.
        self._pace = 0.0
        # By agent: when samples were counted last, and how many may be taken at once.
        self._buckets: dict[str, tuple[float, float]] = {}
        self._learners = ThreadPoolExecutor(1, "hamlearn-learner")
        self._disk = ThreadPoolExecutor(1, "hamlearn-disk")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Within, requests are taken; at the end what waits is finished and saved, or `failed` says why not."""
        rounds, saving = asyncio.create_task(self._run()), asyncio.create_task(self._save_regularly())
        try:
            yield
        finally:
            self.stopping = True
            self._wake.set()
            await rounds
            saving.cancel()
            with suppress(asyncio.CancelledError):
                await saving
            self._learners.shutdown()
            # After the last checkpoint that is being written.
            self._disk.shutdown()
            self.failed = None
            for key, agent in self.agents.items():
                if agent.due(0.0):
                    with self._noting_failure(key):
                        agent.copy()()

    async def take(self, batch: Batch) -> None:
        """Take the samples or labels of a request; what became of each is noted in the batch."""
        if batch.kind == "samples" and self.settings.serve["rate"] and batch.agent in self.agents:
            self._require_rate(batch.agent, len(batch.rows))
        await self._result(batch, len(batch.rows))

    async def do(self, function: Callable[[Agents], Any]) -> Any:
        """Call a function with the learners, after everything that arrived before, and return its result."""
        return await self._result(function, 0)

    async def write(self, function: Callable[[Agents], Callable[[], About]]) -> About:
        """As `do`, for a function that returns what writes a checkpoint; others are answered meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self._disk, await self.do(function))

    async def _result(self, work: Work, count: int) -> Any:
        most, timeout = (self.settings.serve[name] for name in ("queue", "timeout"))
        if self.stopping:
            raise RequestError(503, "the server is stopping. Send it again to the next one.", retry=BUSY)
        if self.waiting + count > most:
            self.dropped += count
            reason = f"{self.waiting} samples wait, and serve.queue = {most} may. Send this again later."
            raise RequestError(429, reason, retry=BUSY)
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._queue.append(WaitingWork(work, count, future))
        self.waiting += count
        self._wake.set()
        timer = loop.call_later(timeout, _give_up, future, timeout)
        try:
            return await future
        finally:
            timer.cancel()

    def _require_rate(self, agent: str, count: int) -> None:
        """Let each agent take `serve.rate` samples per second, and a second's worth or one batch at once."""
        rate, now = self.settings.serve["rate"], time.monotonic()
        most = max(rate, self.settings.serve["batch"])
        before, left = self._buckets.get(agent, (now, most))
        left = min(most, left + (now - before) * rate)
        if left < count:
            wait = int((count - left) / rate) + 1
            reason = f"more than serve.rate = {rate:g} samples per second were sent. Wait {wait} seconds."
            raise RequestError(429, reason, retry=wait)
        self._buckets[agent] = now, left - count

    async def _run(self) -> None:
        """Take rounds until the service stops and nothing waits."""
        loop = asyncio.get_running_loop()
        while self._queue or not self.stopping:
            if not self._queue:
                self._wake.clear()
                await self._wake.wait()
                continue
            jobs = self._next_round()
            if self._over_soon(jobs):
                # Two threads that are busy at once slow each other down in Python: a short round is taken here.
                self._answer(jobs, self._round(jobs))
                await asyncio.sleep(0)
            else:
                self._answer(jobs, await loop.run_in_executor(self._learners, self._round, jobs))

    def _answer(self, jobs: list[WaitingWork], results: list[Any]) -> None:
        """Hand results, or errors in their place, to the requests that still wait for them."""
        for job, result in zip(jobs, results, strict=True):
            if job.future.done():
                continue
            if isinstance(result, Exception):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)

    def _next_round(self) -> list[WaitingWork]:
        """One function, or batches up to the bounds of a round; not those whose client has given up."""
        jobs: list[WaitingWork] = []
        count, most = 0, min(ROUND, SHARE * self.settings.serve["timeout"] / max(self._pace, 1e-9))
        while self._queue and (not jobs or count + self._queue[0].samples <= most):
            if jobs and not (isinstance(jobs[0].work, Batch) and isinstance(self._queue[0].work, Batch)):
                break
            job = self._queue.popleft()
            self.waiting -= job.samples
            if not job.future.done():
                jobs.append(job)
                count += job.samples
        return jobs

    def _over_soon(self, jobs: list[WaitingWork]) -> bool:
        """Whether a round takes a moment, as far as the last one tells: samples, of agents that are there."""
        works = [job.work for job in jobs]
        short = sum(job.samples for job in jobs) * self._pace < MOMENT
        return short and all(
            isinstance(w, Batch) and w.kind == "samples" and w.agent in self.agents for w in works
        )

    def _round(self, jobs: list[WaitingWork]) -> list[Any]:
        """Take a round, all batches of an agent as one block; results, or the errors in their place."""
        groups: dict[str, list[Batch]] = defaultdict(list)
        for job in jobs:
            if not isinstance(job.work, Batch):
                return [self._attempted(job.work)]
            groups[job.work.agent].append(job.work)
        began = time.perf_counter()
        found = {key: self._attempted(partial(_take, key, batches)) for key, batches in groups.items()}
        self._pace = (time.perf_counter() - began) / max(1, sum(job.samples for job in jobs))
        return [found[job.work.agent] for job in jobs if isinstance(job.work, Batch)]

    def _attempted(self, function: Callable[[Agents], Any]) -> Any:
        """The result of a function, or its error, which the request reports."""
        try:
            return function(self.agents)
        except Exception as error:
            return error

    async def _save_regularly(self) -> None:
        interval = self.settings.serve["checkpoint"]
        while True:
            await asyncio.sleep(min(interval / 10, 1.0))
            for key in [key for key, agent in self.agents.items() if agent.due(interval)]:
                with self._noting_failure(key):
                    await asyncio.get_running_loop().run_in_executor(self._disk, await self._copied(key))

    async def _copied(self, key: str) -> Callable[[], About]:
        """What writes a checkpoint of an agent, ahead of the queue: a server under load has to save too."""
        future = asyncio.get_running_loop().create_future()
        self._queue.appendleft(WaitingWork(lambda agents: agents.of(key).copy(), 0, future))
        self._wake.set()
        found: Callable[[], About] = await future
        return found

    @contextmanager
    def _noting_failure(self, key: str) -> Iterator[None]:
        """A checkpoint that cannot be written is logged and counted, and learning continues."""
        try:
            yield
        except (HamlearnError, OSError, RequestError) as error:
            self.failures, self.failed = self.failures + 1, error
            log.warning("the checkpoint of agent %r could not be written: %s", key, error)


def _give_up(future: asyncio.Future[Any], timeout: float) -> None:
    """End a wait. If the job has not begun, it is passed over when its turn comes."""
    if not future.done():
        reason = f"there was no answer within {timeout:g} seconds (serve.timeout)."
        future.set_exception(
            RequestError(503, f"{reason} Send it again: an id keeps it from counting twice.", BUSY)
        )


def _take(key: str, batches: list[Batch], agents: Agents) -> None:
    """Take the batches of one agent, which is made if one of them may make it."""
    agents.of(key, make=any(batch.kind == "samples" for batch in batches)).take(batches)
