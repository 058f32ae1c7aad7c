"""The ids of the last samples, so that one that is sent twice is learned once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

from hamlearn.sample import Id

MOST = 4096
"""Ids that are kept: a broker that came back from an old snapshot sends again what it had at that time."""


class Recent:
    """The last ids, in order, and how many there have been.

    Example:
        >>> recent = Recent(["a", "b"])
        >>> recent.note("c")
        >>> "b" in recent, "d" in recent, recent.until(2)
        (True, False, ['a', 'b'])
    """

    def __init__(self, ids: Iterable[Id] = ()) -> None:
        self._ids = deque(ids, maxlen=MOST)
        self._known = set(self._ids)
        self.count = len(self._ids)

    def __contains__(self, id: object) -> bool:
        return id in self._known

    def note(self, id: Id) -> None:
        """Add one; the oldest is forgotten."""
        if len(self._ids) == MOST:
            self._known.discard(self._ids[0])
        self._ids.append(id)
        self._known.add(id)
        self.count += 1

    def until(self, count: int) -> list[Id]:
        """Those that are kept among the first `count`."""
        return list(islice(self._ids, max(0, len(self._ids) - (self.count - count))))
