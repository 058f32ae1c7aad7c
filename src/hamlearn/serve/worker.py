"""Who learns: takes what waits in order of arrival, as one round.

A separate thread does it, so that a long round keeps nobody from being answered. But two threads that are busy at
once slow each other down in Python, so rounds known to be short run in the thread that reads the requests.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from hamlearn.serve.agents import Agents
from hamlearn.serve.refusals import BUSY, Refused
from hamlearn.serve.work import Work

log = logging.getLogger("hamlearn.serve")

ROUND = 1024
"""Samples of a round, beyond which what waits is left to the next: a bound on how long a round takes."""
MOMENT = 0.005
"""Seconds that a round may take, as far as is known beforehand, if those who ask have to stand still meanwhile."""


class Errand:
    """Something else than samples to be done with the learners, in its turn.

    Args:
        do: What; it is given the agents.
        reply: Called with what it answered, or with the error that it raised.
    """

    count = 1

    def __init__(self, do: Callable[[Agents], Any], reply: Callable[[Any, Exception | None], None]) -> None:
        self.do, self.answer = do, reply
        self.done = False


class Worker:
    """Owns the learners: nobody else touches them while it runs, and one thread at a time.

    Args:
        agents: The learners.
        queue: How many samples may wait.
        turn: Held by whoever uses the learners; only its holder takes anything out of the queue.
        sent: Called after each round with what is to be called in turn, from the worker's thread.

    Attributes:
        waiting: How many samples wait.
        rounds: How many rounds were taken.
    """

    def __init__(
        self, agents: Agents, queue: int, turn: threading.Lock, sent: Callable[[list[Callable[[], None]]], None]
    ) -> None:
        self._agents, self._most, self._turn, self._sent = agents, queue, turn, sent
        self._queue: deque[Work | Errand] = deque()
        self._change = threading.Condition()
        self._took: dict[tuple[int, int], float] = {}
        """Seconds that the last round of about so many samples took (1, 2 to 3, 4 to 7, …), by how many singly."""
        self._met: set[tuple[Any, ...]] = set()
        """Kinds of requests that were taken before; the first of a kind may have to wait for a compiler."""
        self._closing = False
        self.waiting = self.rounds = 0
        self._thread = threading.Thread(target=self._run, name="hamlearn-learner", daemon=True)

    def start(self) -> None:
        """Begin to learn."""
        self._thread.start()

    def has_room(self, count: int) -> bool:
        """Whether so many samples more may wait."""
        return self.waiting + count <= self._most

    def submit(self, item: Work | Errand, *, wake: bool = True) -> None:
        """Let it wait for its turn; refuse it where too much waits, or nothing is taken any more.

        Args:
            item: What waits.
            wake: Whether the thread is told; whoever does not let it be told calls `take_here` soon.
        """
        with self._change:
            if self._closing:
                raise Refused(
                    503, "the server is stopping. Send it again to the next one.", retry=BUSY, close=True
                )
            if not self.has_room(item.count):
                raise Refused(
                    429,
                    f"{self.waiting} samples wait, and {self._most} may (serve.queue). Send this again later.",
                    retry=BUSY,
                )
            self._queue.append(item)
            self.waiting += item.count
            if wake:
                self._change.notify()

    def take_here(self) -> None:
        """Take what waits in the calling thread, if that is over in a moment; else let the worker's own do it."""
        if not self._turn.acquire(blocking=False):
            # Whoever has the learners now may be done with what it took out of the queue.
            self._wake()
            return
        try:
            if not self._over_soon():
                self._wake()
                return
            for reply in self._round(self._waiting()):
                reply()
        finally:
            self._turn.release()

    def _over_soon(self) -> bool:
        """Whether all that waits are samples of kinds that were met, and as many took a moment the last time."""
        with self._change:
            works = [item for item in self._queue if isinstance(item, Work)]
            if self.waiting > ROUND or len(works) < len(self._queue):
                return False
        # Only this thread adds to the queue, and only who holds the turn takes out of it.
        known = all(self._agents.has(work.agent) and work.kind in self._met for work in works)
        return known and self._took.get(_size(works), MOMENT) < MOMENT

    def _wake(self) -> None:
        with self._change:
            self._change.notify()

    def withdraw(self, item: Work | Errand) -> bool:
        """Take back what waits; whether it still did."""
        with self._change:
            if item.done:
                return False
            item.done = True
            self._queue.remove(item)
            self.waiting -= item.count
            return True

    def stop(self) -> None:
        """Take nothing more, finish what waits, save, and return."""
        with self._change:
            self._closing = True
            self._change.notify()
        self._thread.join()

    def _run(self) -> None:
        while self._wait():
            with self._turn:
                replies = self._round(self._waiting())
            self._sent(replies)

    def _wait(self) -> bool:
        """Wait until there is something to do, and tell whether there will be more."""
        with self._change:
            if not self._queue and not self._closing:
                self._change.wait()
            return bool(self._queue) or not self._closing

    def _waiting(self) -> list[Work | Errand]:
        """What waits, as far as one round may go."""
        with self._change:
            items: list[Work | Errand] = []
            count = 0
            while self._queue and (not items or count + self._queue[0].count <= ROUND):
                item = self._queue.popleft()
                item.done = True
                count += item.count
                items.append(item)
            self.waiting -= count
            return items

    def _round(self, items: list[Work | Errand]) -> list[Callable[[], None]]:
        """Take all of them; what is to be called then, so that whoever asked is answered."""
        replies: list[Callable[[], None]] = []
        if items:
            began, works = time.perf_counter(), [item for item in items if isinstance(item, Work)]
            self._take(items, replies)
            if len(works) == len(items):
                self._took[_size(works)] = time.perf_counter() - began
            self._met |= {work.kind for work in works}
            self.rounds += 1
        return replies

    def _take(self, items: list[Work | Errand], replies: list[Callable[[], None]]) -> None:
        """All that was taken out of the queue; samples of one agent that wait behind each other at once."""
        groups: dict[str, list[Work]] = {}
        for item in items:
            if isinstance(item, Work):
                groups.setdefault(item.agent, []).append(item)
                continue
            # An errand comes after all that arrived before it.
            self._take_groups(groups, replies)
            groups = {}
            self._do(item, replies)
        self._take_groups(groups, replies)

    def _take_groups(self, groups: dict[str, list[Work]], replies: list[Callable[[], None]]) -> None:
        for key, works in groups.items():
            problem: Exception | None = None
            try:
                make = not all(work.labels for work in works)
                self._agents.get(key, make=make).take(works)
            except Exception as error:
                # The learner is whole, whatever happened; whoever asked is told.
                if not isinstance(error, Refused):
                    log.exception("a round of %d requests failed", len(works))
                problem = error
            replies += [_bound(work.reply, problem) for work in works if work.reply is not None]

    def _do(self, errand: Errand, replies: list[Callable[[], None]]) -> None:
        answer, problem = None, None
        try:
            answer = errand.do(self._agents)
        except Exception as error:
            problem = error
        replies.append(lambda: errand.answer(answer, problem))


def _size(works: list[Work]) -> tuple[int, int]:
    """How many samples there are, and how many of them are taken one by one; each to within a factor of two."""
    return sum(work.count for work in works).bit_length(), sum(work.single for work in works).bit_length()


def _bound(reply: Callable[[Exception | None], None], problem: Exception | None) -> Callable[[], None]:
    return lambda: reply(problem)
