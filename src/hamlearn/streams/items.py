"""The items of an iterable, from any place on; what a source gave before it failed is not lost."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from hamlearn.errors import StreamError


class Items(Iterator[Any]):
    """The items of a collection, of an iterator, or of what a function without arguments returns.

    Attributes:
        once: Whether they come from an iterator, which gives nothing twice.
        at: The number of the next item.

    Example:
        >>> items = Items(["a", "b", "c"])
        >>> items.seek(1)
        >>> items.peek(1), next(items), items.at
        (['b'], 'b', 2)
    """

    def __init__(self, source: Any) -> None:
        self._source, self.once, self.at = source, isinstance(source, Iterator), 0
        self._coming: Iterator[Any] | None = source if self.once else None

    def __next__(self) -> Any:
        if self._coming is None:
            self._coming = self.fresh()
        item = next(self._coming)
        self.at += 1
        return item

    def fresh(self) -> Iterator[Any]:
        """All items from the beginning, if they do not come from an iterator."""
        return iter(self._source() if callable(self._source) else self._source)

    def seek(self, place: int) -> None:
        """Go to an item; of an iterator, one that was not read yet."""
        if not self.once:
            self._coming, self.at = self.fresh(), 0
        if place < self.at:
            raise StreamError(
                f"an iterator gives nothing twice: it was read up to item {self.at}, and cannot go back to item "
                f"{place}, where the stream had been saved. Give a fresh iterator, or a function that returns one."
            )
        for _ in islice(self, place - self.at):
            pass
        if self.at < place:
            raise StreamError(
                f"the stream ended after {self.at} samples while skipping to sample {place}, where it had been "
                "saved. Give it the same data as when it was saved."
            )

    def peek(self, n: int) -> list[Any]:
        """The next `n` items, which are read later."""
        if self._coming is None:
            self._coming = self.fresh()
        seen, error = read_some(self._coming, n)
        self._coming = chain(seen, self._coming if error is None else raising(error))
        return seen


def read_some(items: Iterator[Any], n: int) -> tuple[list[Any], BaseException | None]:
    """The next `n` items, or those that are left, and what went wrong after them.

    The items before an error, or before Ctrl-C, must be used first: an iterator gives them only once.
    """
    taken: list[Any] = []
    try:
        # Those before an error stay in the list.
        taken.extend(islice(items, n))
    except BaseException as error:
        if not taken:
            raise
        return taken, error
    return taken, None


def raising(error: BaseException) -> Iterator[Any]:
    """An iterator whose next item raises."""
    raise error
    yield
