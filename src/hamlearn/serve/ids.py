"""A bounded memory of ids: what was seen twice is learned once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from hamlearn.sample import Id

LONGEST = 200
"""Bytes of the longest id, so that a bounded number of them is bounded in memory."""


class Ids:
    """The last ids that were taken, oldest first.

    Args:
        most: How many are remembered; the oldest are forgotten.

    Example:
        >>> ids = Ids(2)
        >>> for id in ("a", 1, "b"):
        ...     ids.add(id)
        >>> "a" in ids, 1 in ids, "1" in ids, list(ids)
        (False, True, False, [1, 'b'])
    """

    def __init__(self, most: int, known: Iterable[Id] = ()) -> None:
        self._most = most
        # An ordinary dict takes long to find its oldest key once many have been removed.
        self._known: OrderedDict[Id, None] = OrderedDict()
        for id in known:
            self.add(id)

    def add(self, id: Id) -> None:
        """Remember an id."""
        self._known[id] = None
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def __contains__(self, id: object) -> bool:
        return id in self._known

    def __iter__(self) -> Iterator[Id]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def problem_with(id: object) -> str | None:
    """What is wrong with an id out of a request; `None` where nothing is."""
    if type(id) is int:
        return None if abs(id) < 1 << 63 else "is a whole number of more than 64 bits"
    if type(id) is not str:
        return f"is a {type(id).__name__}, neither a text nor a whole number of at most 64 bits"
    try:
        size = len(id.encode())
    except UnicodeEncodeError:
        return "holds half of a letter, which cannot be written as UTF-8"
    if not size:
        return "is empty"
    return None if size <= LONGEST else f"has {size} bytes, and {LONGEST} are allowed"
