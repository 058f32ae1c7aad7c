"""The queue between requests and learners: rounds in order of arrival, bounds, and checkpoints."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hamlearn.errors import HamlearnError
from hamlearn.serve.agents import Agents, require_key
from hamlearn.serve.batch import Batch
from hamlearn.serve.checkpoints import About
from hamlearn.serve.refusals import BUSY, Refused
from hamlearn.serve.settings import Settings

log = logging.getLogger("hamlearn.serve")

ROUND = 1024
"""Samples of a round; what waits beyond them is left to the next one: a bound on how long a round takes."""
MOMENT = 0.01
"""Seconds that a round may take in the event loop. Longer ones, and unknown ones, run in a thread of their own."""

GATHER = 0.002
"""Seconds that a round waits while more and more requests arrive that can be part of it."""


class Job:
    """What waits for the learners: a batch, or a function of the agents.

    Args:
        work: A batch; or a function, which is called after everything that arrived before it.
    """

    def __init__(self, work: Batch | Callable[[Agents], Any]) -> None:
        self.work = work
        self.count = work.count if isinstance(work, Batch) else 1
        self.shape = work.shape if isinstance(work, Batch) else None
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def finish(self, answer: Any, problem: Exception | None) -> None:
        """Settle the future, unless the client has left or the time is over."""
        if self.future.done():
            return
        if problem is None:
            self.future.set_result(answer)
        else:
            self.future.set_exception(problem)


class Service:
    """The learners of a process, as requests see them. All methods belong to one event loop.

    Rounds are short, so they run in the event loop itself: two threads that compute at the same time slow each
    other down in Python. A round that may take long runs in the learners' thread; one at a time, in either place.

    Args:
        settings: What to serve.

    Attributes:
        ready: Whether checkpoints are loaded and steps are compiled.
        failed: Why the service ended, or the last checkpoint could not be written; `None` if all is well.

    Example:
        >>> from hamlearn.serve import check
        >>> service = Service(check({"network": {"inputs": 2, "outputs": 1}}))
        >>> service.ready
        False
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.ready = False
        self.failed: Exception | None = None
        self.waiting = self.dropped = self.failures = 0
        self._agents: Agents | None = None
        self._queue: deque[Job] = deque()
        self._wake, self._closing = asyncio.Event(), False
        self._took: dict[tuple[Any, ...], float] = {}
        """Seconds that the last request of a shape took."""
        self._buckets: dict[str, tuple[float, float]] = {}
        """By agent: when samples were counted last, and how many may be taken at once."""
        self._learners = ThreadPoolExecutor(1, "hamlearn-learner")
        self._disk = ThreadPoolExecutor(1, "hamlearn-disk")
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def agents(self) -> Agents:
        """The learners.

        Raises:
            Refused: They are being loaded.
        """
        if self._agents is None:
            raise Refused(
                503, "the server is loading its checkpoints. Wait until /readyz answers 200.", retry=BUSY
            )
        return self._agents

    async def load(self) -> None:
        """Build the learners, load their checkpoints, and begin to take requests."""
        loop = asyncio.get_running_loop()
        self._agents = await loop.run_in_executor(self._learners, Agents, self.settings)
        self._tasks = [loop.create_task(self._run()), loop.create_task(self._save_now_and_then())]
        self.ready = True

    async def stop(self) -> None:
        """Accept nothing more, finish what waits, and save; `failed` says what could not be saved."""
        self.ready, self._closing = False, True
        self._wake.set()
        if self._tasks:
            await self._tasks[0]
            self._tasks[1].cancel()
            for key, agent in self.agents.items():
                if agent.due(0.0):
                    await self._save(key)
        self._learners.shutdown()
        self._disk.shutdown()

    async def take(self, batch: Batch) -> None:
        """Take the samples or labels of a request; what became of each is noted in the batch."""
        if batch.kind == "samples":
            self.agents.require(batch.agent, make=True)
            self._require_rate(batch)
        else:
            # Their agent may be about to be made by samples that wait before them.
            require_key(batch.agent)
        await self._in_time(self._submit(batch))

    async def do(self, function: Callable[[Agents], Any]) -> Any:
        """Call a function with the learners, after everything that arrived before, and return its result."""
        return await self._in_time(self._submit(function))

    async def save(self, key: str) -> About:
        """Write a checkpoint of an agent, which is kept; other requests are answered while the disk writes."""
        return await self._write(await self.do(lambda agents: agents.get(key).copy(pinned=True)))

    async def roll_back(self, key: str, number: int | None) -> About:
        """Return an agent to one of its checkpoints."""
        return await self._write(await self.do(lambda agents: agents.get(key).roll_back(number)))

    async def room(self, count: int) -> None:
        """Wait until so many samples more may wait, but no longer than a request may take."""
        deadline = time.monotonic() + self.settings.serve["timeout"]
        while self.waiting + count > self.settings.serve["queue"] and time.monotonic() < deadline:
            await asyncio.sleep(0.005)

    def _submit(self, work: Batch | Callable[[Agents], Any]) -> Job:
        job, most = Job(work), self.settings.serve["queue"]
        if self._closing:
            raise Refused(503, "the server is stopping. Send it again to the next one.", retry=BUSY)
        if self.waiting + job.count > most:
            if isinstance(work, Batch):
                self.dropped += job.count
            reason = f"{self.waiting} samples wait, and serve.queue = {most} may. Send this again later."
            raise Refused(429, reason, retry=BUSY)
        self._queue.append(job)
        self.waiting += job.count
        self._wake.set()
        return job

    async def _in_time(self, job: Job) -> Any:
        timeout = self.settings.serve["timeout"]
        try:
            return await asyncio.wait_for(job.future, timeout)
        except TimeoutError:
            # If it still waits, it is passed over when its turn comes.
            reason = f"there was no answer within {timeout:g} seconds (serve.timeout)."
            raise Refused(503, f"{reason} Send it again: an id keeps it from counting twice.", BUSY) from None

    def _require_rate(self, batch: Batch) -> None:
        """Let each agent take `serve.rate` samples per second, and a second's worth or one batch at once."""
        rate, now = self.settings.serve["rate"], time.monotonic()
        if not rate:
            return
        most = max(rate, self.settings.serve["batch"])
        before, left = self._buckets.get(batch.agent, (now, most))
        left = min(most, left + (now - before) * rate)
        if left < batch.count:
            wait = int((batch.count - left) / rate) + 1
            reason = f"more than serve.rate = {rate:g} samples per second were sent. Wait {wait} seconds."
            raise Refused(429, reason, retry=wait)
        self._buckets[batch.agent] = now, left - batch.count

    async def _run(self) -> None:
        """Take rounds until the service stops and nothing waits."""
        loop = asyncio.get_running_loop()
        while self._queue or not self._closing:
            if not self._queue:
                self._wake.clear()
                await self._wake.wait()
                continue
            await self._gather()
            jobs = self._next_round()
            if self._is_short(jobs):
                answers = self._take(jobs)
            else:
                answers = await loop.run_in_executor(self._learners, self._take, jobs)
            for job, answer in zip(jobs, answers, strict=True):
                job.finish(*answer)

    async def _gather(self) -> None:
        """Wait while each turn of the event loop brings more: a small round costs as much as a larger one."""
        began, before = time.monotonic(), 0
        while before < self.waiting < ROUND and time.monotonic() - began < GATHER:
            before = self.waiting
            await asyncio.sleep(0)

    def _next_round(self) -> list[Job]:
        jobs: list[Job] = []
        count = 0
        while self._queue and (not jobs or count + self._queue[0].count <= ROUND):
            job = self._queue.popleft()
            self.waiting -= job.count
            if not job.future.done():
                jobs.append(job)
                count += job.count
        return jobs

    def _is_short(self, jobs: list[Job]) -> bool:
        """Whether all are requests of shapes that were met, and would take a moment together."""
        return sum(math.inf if job.shape is None else self._took.get(job.shape, MOMENT) for job in jobs) < MOMENT

    def _take(self, jobs: list[Job]) -> list[tuple[Any, Exception | None]]:
        """Take a round: all batches of an agent as one block, functions in their place."""
        answers: dict[Job, tuple[Any, Exception | None]] = {}
        groups: dict[str, dict[Job, Batch]] = {}
        for job in jobs:
            if isinstance(job.work, Batch):
                groups.setdefault(job.work.agent, {})[job] = job.work
                continue
            self._take_groups(groups, answers)
            groups = {}
            try:
                answers[job] = job.work(self.agents), None
            except Exception as error:
                answers[job] = None, error
        self._take_groups(groups, answers)
        return [answers[job] for job in jobs]

    def _take_groups(
        self, groups: dict[str, dict[Job, Batch]], answers: dict[Job, tuple[Any, Exception | None]]
    ) -> None:
        for key, batches in groups.items():
            problem, began = None, time.perf_counter()
            try:
                make = any(batch.kind == "samples" for batch in batches.values())
                self.agents.get(key, make=make).take(batches.values())
            except Exception as error:
                if not isinstance(error, Refused):
                    log.exception("a round of %d requests failed", len(batches))
                problem = error
            share = (time.perf_counter() - began) / len(batches)
            for job in batches:
                self._took[job.shape or ()] = share
                answers[job] = None, problem

    async def _save_now_and_then(self) -> None:
        interval = self.settings.serve["checkpoint"]
        while True:
            await asyncio.sleep(min(interval / 10, 1.0))
            for key, agent in self.agents.items():
                if agent.due(interval):
                    await self._save(key)

    async def _save(self, key: str) -> None:
        """Write a checkpoint; a failure is logged and counted, and learning continues."""
        try:
            if self._closing:
                write = self.agents.get(key).copy()
            else:
                write = await self._submit(lambda agents: agents.get(key).copy()).future
            await self._write(write)
        except (HamlearnError, OSError, Refused) as error:
            if self._closing:
                self.failed = error
            self.failures += 1
            log.warning("the checkpoint of agent %r could not be written: %s", key, error)

    async def _write(self, write: Callable[[], About]) -> About:
        return await asyncio.get_running_loop().run_in_executor(self._disk, write)
