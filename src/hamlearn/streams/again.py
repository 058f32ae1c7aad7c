"""An iterator that can go back a little way, though its source gives nothing twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hamlearn.errors import StreamError

MOST = 1 << 16
"""Items that are kept for somebody who asks for blocks and never says that they are done with."""


class Again:
    """The items of an iterator, of which those that nobody has settled can be had again.

    An engine that reads ahead by a block may not use all of it.

    Args:
        items: What gives nothing twice.
        copy: Makes what is kept of an item, since a source may use its memory again.

    Attributes:
        place: Number of the item that comes next.
        keeps: Whether items are kept as they are handed out.

    Example:
        >>> letters = Again(iter("abcdef"), str)
        >>> [next(letters) for _ in range(4)]
        ['a', 'b', 'c', 'd']
        >>> letters.seek(2)
        >>> next(letters)
        'c'
        >>> letters.settle(3)
        >>> letters.seek(1)
        Traceback (most recent call last):
        ...
        hamlearn.errors.StreamError: an iterator gives nothing twice: it was read up to item 3, and cannot go ...
    """

    def __init__(self, items: Iterator[Any], copy: Callable[[Any], Any]) -> None:
        self._items, self._copy = items, copy
        self._kept: list[Any] = []
        self._first = self.place = 0
        self.keeps = True

    def __iter__(self) -> Again:
        return self

    def __next__(self) -> Any:
        at = self.place - self._first
        if at < len(self._kept):
            item = self._kept[at]
        else:
            item = next(self._items)
            self._keep(item)
        self.place += 1
        return item

    def _keep(self, item: Any) -> None:
        if not self.keeps:
            self._kept, self._first = [], self.place + 1
            return
        if len(self._kept) == MOST:
            self.settle(self._first + MOST // 2)
        self._kept.append(self._copy(item))

    @property
    def waiting(self) -> bool:
        """Whether items that were read are still to come."""
        return self.place < self._first + len(self._kept)

    def settle(self, until: int) -> None:
        """Forget the items before number `until` that have been handed out, which nobody needs again."""
        done = max(0, min(until, self.place) - self._first)
        del self._kept[:done]
        self._first += done

    def seek(self, place: int) -> None:
        """Go to the item of this number.

        Raises:
            StreamError: It has been settled, or the items end before it.
        """
        if place < self._first:
            raise StreamError(
                f"an iterator gives nothing twice: it was read up to item {self._first}, and cannot go back to "
                f"item {place}, where the stream had been saved. Give a fresh iterator, or a function that "
                "returns one."
            )
        self.place = min(place, self._first + len(self._kept))
        while self.place < place:
            if next(self, self) is self:
                raise StreamError(
                    f"the stream ended after {self.place} samples while skipping to sample {place}, where it had "
                    "been saved. Give it the same data as when it was saved."
                )
            self.settle(self.place)
