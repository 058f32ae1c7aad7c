"""What stands between a source that does not wait and a learner that is busy."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

from hamlearn.errors import StreamError
from hamlearn.streams.units import logger

Form = Literal["message", "arrays", "item", "bad"]


@dataclass(slots=True)
class Arrival:
    """One sample or label as it came in.

    Args:
        form: What it is made of. `"message"`: numbers and lists as JSON has them; `"arrays"`: NumPy's, out of
            tensors that have no need to be tensors yet; `"item"`: `u` is what the source gave, of any kind;
            `"bad"`: a message that is left out, in its turn, so that what is acknowledged stays in order.
        u: The input, in that form.
        target: The target, in that form.
        id: What a label that comes later calls it by.
        place: How the source names it, for messages.
        arrived: When it came, by the feed's clock.
        stamp: The time that the source itself says; `None` where it says none.
        tau: Time since the item before it, as the source says; what was dropped in between is added.
        boundary: Whether it ends a sequence.
        owed: Time steps of bad items before it.
        label: Whether it is the label of an earlier item, or bad, and takes no place in the queue.
        token: What a broker's message is acknowledged by; `None` if none is due.
    """

    form: Form
    u: Any
    target: Any
    id: Any
    place: str
    arrived: float
    stamp: float | None = None
    tau: float | None = None
    boundary: bool = False
    owed: float = 0.0
    label: bool = False
    token: str | None = None


LABELS = 10_000
"""How many labels wait at most where samples are dropped: a learner that falls behind must not fill the memory."""


SILENT = 60.0
"""Seconds without an item after which a waiting learner says so."""

NAP, LINGER = 0.0005, 0.004
"""Seconds: how long a learner that takes whole blocks lets a feed go on, and for how long at most, before it takes
what has come. To wake for every sample would cost more than to learn it."""


class Buffer:
    """A queue of at most `n` samples: when full it either makes the source wait or drops the oldest.

    Labels come late as it is. They wait with the samples around them, and are dropped only where there are many.

    `put` and `end` belong to the source's thread, `take` to the learner's, `close` may be called from any thread.

    Attributes:
        handed: What the learner's thread has taken over and not yet made samples of.
        dropped: How many were discarded.
        bad: How many the source's thread left out.
        freed: Tokens of what was discarded, which will not be learned.
    """

    def __init__(self, n: int, block: bool) -> None:
        self._n, self._block = n, block
        self._items: deque[Arrival] = deque()
        # Entering the lock itself takes half as long as entering the condition.
        self._lock = threading.RLock()
        self._change = threading.Condition(self._lock)
        self._ended = self.closed = False
        self._error: BaseException | None = None
        self.handed: list[Arrival] = []
        self.dropped = self.bad = 0
        self.freed: list[str] = []
        self._labels = self._asleep = self._wanted = 0

    @property
    def full(self) -> bool:
        """Whether as many wait as may, so that `put` waits for the learner to take some."""
        return self._block and len(self._items) >= self._n

    def put(self, arrival: Arrival) -> bool:
        """Hand an item over; `False`: the buffer is closed."""
        with self._lock:
            while self.full and not self.closed:
                self._sleep()
            if self.closed:
                return False
            self._items.append(arrival)
            if arrival.label:
                self._labels += 1
            if not self._block:
                self._make_room()
            # The learner seldom waits, and to notify it costs as much as all the rest.
            if self._asleep or 0 < self._wanted <= len(self._items):
                self._wanted = 0
                self._change.notify_all()
            return True

    def end(self, error: BaseException | None = None) -> None:
        """Say that nothing more will come, and why."""
        with self._change:
            self._ended, self._error = True, error
            self._change.notify_all()

    def take(self, most: int) -> None:
        """Move what waits into `handed`, at most so many; what is not there yet is waited for only if nothing is.

        Where many may be taken, and nothing is dropped, a source that is giving may go on for a moment. At the end
        nothing is moved. Raises what ended the source, once all is read.
        """
        with self._change:
            while not (self._items or self._ended or self.closed):
                if not self._sleep(SILENT):
                    logger.warning(
                        "nothing has come from the feed for %.0f seconds. Look whether its sender still runs, and "
                        "whether its broker has dropped what it could not keep",
                        SILENT,
                    )
                    self._sleep()
            if self._block:
                self._linger(min(most, self._n))
            else:
                self._make_room()
            if self._items and not self.closed:
                while self._items and len(self.handed) < most:
                    self.handed.append(self._items.popleft())
                if self._labels:
                    self._labels = sum(item.label for item in self._items)
                self._change.notify_all()
            elif self._error is not None and not self.closed:
                raise self._error

    @property
    def waiting(self) -> bool:
        """Whether there is something to take."""
        return bool(self._items)

    def free(self) -> list[str]:
        """The tokens of what was discarded, each once."""
        with self._change:
            freed, self.freed = self.freed, []
            return freed

    def close(self) -> None:
        """End all waiting; what is still here is forgotten."""
        with self._change:
            self.closed = True
            self._items.clear()
            self.handed = []
            self._labels = 0
            self._change.notify_all()

    def _sleep(self, seconds: float | None = None) -> bool:
        """Wait for a change; `False` if none came within so many seconds."""
        self._asleep += 1
        try:
            return self._change.wait(seconds)
        finally:
            self._asleep -= 1

    def _linger(self, most: int) -> None:
        """Let the source go on while it gives, until there are so many, or for as long as that may take."""
        until = time.monotonic() + LINGER
        before = 0
        while before < len(self._items) < most and not (self._ended or self.closed) and time.monotonic() < until:
            before, self._wanted = len(self._items), most
            # Without being counted among those asleep: only the last one that is wanted wakes the learner.
            self._change.wait(NAP)
        self._wanted = 0

    def _make_room(self) -> None:
        """Drop the oldest until no more wait than may."""
        while len(self._items) - self._labels > self._n:
            self._drop(label=False)
        while self._labels > LABELS:
            self._drop(label=True)

    def _drop(self, *, label: bool) -> None:
        place = next(i for i, item in enumerate(self._items) if item.label is label)
        oldest = self._items[place]
        del self._items[place]
        if oldest.token is not None:
            self.freed.append(oldest.token)
        if oldest.boundary:
            raise StreamError(
                f"{oldest.place} ends a sequence and would have been dropped, so that two sequences would "
                "run into "
                'one. Read sequences with policy="block".'
            )
        if label:
            self._labels -= 1
            self.bad += oldest.form == "bad"
            self.dropped += oldest.form != "bad"
            return
        self.dropped += 1
        heir = next(item for item in self._items if not item.label)
        heir.owed += oldest.owed
        if heir.tau is not None and oldest.tau is not None:
            heir.tau += oldest.tau
