"""What stands between a source that does not wait and a learner that is busy."""

from __future__ import annotations

import threading
import time
from collections import deque

from hamlearn.errors import StreamError
from hamlearn.streams.clock import logger
from hamlearn.streams.live.messages import Arrival

LABELS = 10_000
"""How many labels and bad items wait at most if samples are dropped."""
SILENT = 60.0
"""Seconds without an item after which a waiting learner says so."""
NAP, LINGER = 0.0005, 0.004
"""Seconds: how long a learner that takes whole blocks lets a feed continue, and for how long at most, before it
takes what has come. To wake for every sample would cost more than to learn it."""


class Buffer:
    """A queue of at most `n` samples: when full it either makes the source wait or drops the oldest.

    Labels and bad items wait in their turn. They are dropped only if there are very many.

    `put` belongs to the source's thread, `wait` and `pop` to the learner's; `end` and `close` may be called from
    any thread.

    Attributes:
        dropped: How many were discarded.
        freed: Tokens of what was discarded, for the source's thread to acknowledge.
    """

    def __init__(self, n: int, block: bool) -> None:
        self._n, self._block = n, block
        self._items: deque[Arrival] = deque()
        # Entering the lock itself takes half as long as entering the condition.
        self._lock = threading.RLock()
        self._change = threading.Condition(self._lock)
        self._error: BaseException | None = None
        self._ended = self.closed = False
        # How many of the items are labels or bad, which have no u.
        self._extras = self._asleep = self._wanted = self.dropped = 0
        self.freed: list[str] = []

    def put(self, arrival: Arrival) -> bool:
        """Hand an item over; `False`: the buffer takes no more."""
        with self._lock:
            while self._block and len(self._items) >= self._n and not self._ended:
                self._sleep()
            if self._ended:
                return False
            self._items.append(arrival)
            self._extras += arrival.u is None
            if not self._block:
                self._make_room()
            # The learner seldom waits, and to notify it costs as much as all the rest.
            if self._asleep or 0 < self._wanted <= len(self._items):
                self._wanted = 0
                self._change.notify_all()
            return True

    def end(self, error: BaseException | None = None) -> None:
        """Take no more; what is here is still handed out, and then the error is raised."""
        with self._change:
            self._error = None if self._ended else error
            self._ended = True
            self._change.notify_all()

    def close(self) -> None:
        """End all waiting; what is still here is forgotten."""
        with self._change:
            self.closed = True
            self._items.clear()
            self._extras = 0
            self.end()

    def wait(self, most: int) -> None:
        """Wait until something is there, or the end. Raises what ended the source, once all is read.

        If nothing is dropped, a source that is giving may continue for a moment, until there are so many.
        """
        with self._change:
            silent_for = SILENT
            while not (self._items or self._ended):
                if not self._sleep(silent_for):
                    # Once is enough.
                    silent_for = threading.TIMEOUT_MAX
                    logger.warning(
                        "nothing has come from the feed for %.0f seconds. Look whether its sender still runs, and "
                        "whether its broker has dropped what it could not keep",
                        SILENT,
                    )
            if self._block:
                self._linger(min(most, self._n))
            if self._error is not None and not self._items:
                raise self._error

    def pop(self, most: int) -> list[Arrival]:
        """What waits, at most so many."""
        with self._change:
            popped = [self._items.popleft() for _ in range(min(most, len(self._items)))]
            self._extras -= sum([item.u is None for item in popped])
            self._change.notify_all()
            return popped

    def push_back(self, items: list[Arrival]) -> None:
        """Put back what was popped and not looked at, because something before it was bad."""
        if items and not self.closed:
            with self._change:
                self._items.extendleft(reversed(items))
                self._extras += sum([item.u is None for item in items])

    def _sleep(self, seconds: float | None = None) -> bool:
        """Wait for a change; `False` if none came within so many seconds."""
        self._asleep += 1
        try:
            return self._change.wait(seconds)
        finally:
            self._asleep -= 1

    def _linger(self, most: int) -> None:
        """Let the source continue while it gives, until there are so many, or for as long as that may take."""
        until, before = time.monotonic() + LINGER, 0
        while before < len(self._items) < most and not self._ended and time.monotonic() < until:
            before, self._wanted = len(self._items), most
            # Without being counted among those asleep: only the last one that is wanted wakes the learner.
            self._change.wait(NAP)
        self._wanted = 0

    def _make_room(self) -> None:
        """Drop the oldest sample if more wait than may, and the oldest label if very many do."""
        if len(self._items) - self._extras > self._n:
            self._drop(extra=False)
        elif self._extras > LABELS:
            self._drop(extra=True)

    def _drop(self, *, extra: bool) -> None:
        place = next(i for i, item in enumerate(self._items) if (item.u is None) is extra)
        oldest = self._items[place]
        if oldest.boundary:
            raise StreamError(
                f"{oldest.place} ends a sequence and would have been dropped, so that two sequences would "
                'run into one. Read sequences with policy="block".'
            )
        del self._items[place]
        self._extras -= extra
        self.dropped += 1
        if oldest.token is not None:
            self.freed.append(oldest.token)
        # The next sample follows the one before the dropped one.
        heir = None if extra else next(item for item in self._items if item.u is not None)
        if heir is not None and heir.tau is not None and oldest.tau is not None:
            heir.tau += oldest.tau
