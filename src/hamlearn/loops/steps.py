"""Compiled steps, kept for the next time while what they were recorded from is as it was."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hamlearn.loops.reads import Reads
from hamlearn.loops.values import UnsupportedError


class Steps:
    """Compiled steps by what they were compiled for, and what could not be, with the reason.

    A step is used again only while everything that its recording has read is as it was, or where what was done by
    it is done once more.

    """

    def __init__(self) -> None:
        self._made: dict[Any, deque[Made]] = {}
        self._used: dict[Any, Made] = {}
        self._recalls = False

    def recall(self, again: bool) -> None:
        """Say whether what was done since this was last denied is done once more, whatever has changed since."""
        self._recalls = again
        if not again:
            self._used = {}

    def get(self, key: Any, make: Callable[[], Made]) -> Made:
        """The step for `key`, made if there is none that still holds."""
        if self._recalls and key in self._used:
            return self._used[key]
        made = self._made.setdefault(key, deque(maxlen=_KEPT))
        found = next((step for step in made if step.reads.changed() is None), None)
        if found is None:
            found = make()
            made.appendleft(found)
        if found.failure is not None:
            raise found.failure
        self._used[key] = found
        return found


@dataclass
class Made:
    """A compiled step, or the reason why there is none, and what it depends on."""

    reads: Reads
    recorded: Any = None
    loop: Any = None
    failure: UnsupportedError | None = None


_KEPT = 8
"""How many steps are kept that differ in nothing but the values they have read."""
