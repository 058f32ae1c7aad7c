"""What stands between a source that does not wait and a learner that is busy."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from hamlearn.errors import StreamError


@dataclass(slots=True)
class Arrival:
    """One item as it came in.

    Args:
        item: What the source gave.
        place: How the source names it, for messages.
        arrived: When it came, by the feed's clock.
        stamp: The time that the source itself says; `None` where it says none.
        tau: Time since the item before it, as the source says; what was dropped in between is added.
        boundary: Whether it ends a sequence.
        owed: Time steps of bad items before it.
        label: Whether it is the label of an earlier item, which takes no time and no place in the queue.
    """

    item: Any
    place: str
    arrived: float
    stamp: float | None
    tau: float | None
    boundary: bool
    owed: float = 0.0
    label: bool = False


LABELS = 10_000
"""How many labels wait at most where samples are dropped: a learner that falls behind must not fill the memory."""


class Buffer:
    """A queue of at most `n` samples: when full it either makes the source wait or drops the oldest.

    Labels come late as it is. They wait with the samples around them, and are dropped only where there are many.

    `dropped` counts what was discarded, `bad` what the source's thread left out. `put` and `end` belong to that
    thread, `get` to the learner's, `close` to anybody.
    """

    def __init__(self, n: int, block: bool) -> None:
        self._n, self._block = n, block
        self._items: deque[Arrival] = deque()
        self._change = threading.Condition()
        self._ended = self.closed = False
        self._error: BaseException | None = None
        self.dropped = self.bad = 0
        self._labels = 0

    @property
    def full(self) -> bool:
        """Whether `put` would wait."""
        return self._block and len(self._items) >= self._n

    def put(self, arrival: Arrival) -> bool:
        """Hand an item over; `False` says that nobody listens any more."""
        with self._change:
            while self.full and not self.closed:
                self._change.wait()
            if self.closed:
                return False
            self._items.append(arrival)
            self._labels += arrival.label
            if not self._block and len(self._items) - self._labels > self._n:
                self._drop(label=False)
            if not self._block and self._labels > LABELS:
                self._drop(label=True)
            self._change.notify_all()
            return True

    def _drop(self, *, label: bool) -> None:
        place = next(i for i, item in enumerate(self._items) if item.label is label)
        oldest = self._items[place]
        del self._items[place]
        if oldest.boundary:
            raise StreamError(
                f"{oldest.place} ends a sequence and would have been dropped, so that two sequences would "
                "run into "
                'one. Read sequences with policy="block".'
            )
        self.dropped += 1
        if label:
            self._labels -= 1
            return
        heir = next(item for item in self._items if not item.label)
        heir.owed += oldest.owed
        if heir.tau is not None and oldest.tau is not None:
            heir.tau += oldest.tau

    def end(self, error: BaseException | None = None) -> None:
        """Say that nothing more will come, and why."""
        with self._change:
            self._ended, self._error = True, error
            self._change.notify_all()

    def get(self) -> Arrival | None:
        """The next item, waited for; `None` at the end. Raises what ended the source, once all is read."""
        with self._change:
            while not (self._items or self._ended or self.closed):
                self._change.wait()
            if self._items and not self.closed:
                arrival = self._items.popleft()
                self._labels -= arrival.label
                self._change.notify_all()
                return arrival
            if self._error is not None and not self.closed:
                raise self._error
            return None

    def close(self) -> None:
        """Let go of everybody who waits; what is still here is forgotten."""
        with self._change:
            self.closed = True
            self._items.clear()
            self._labels = 0
            self._change.notify_all()
