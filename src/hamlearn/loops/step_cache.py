"""Compiled steps, kept for the next block while their guards hold, and audited now and then."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hamlearn.loops.guards import Guards
from hamlearn.loops.values import UnsupportedError

AUDIT_EVERY = 64
"""Blocks from one audit of a compiled step to the next."""
_KEPT = 8
"""How many steps are kept that differ in nothing but what their guards compare."""


@dataclass
class CompiledStep:
    """A compiled step with its guards, or the reason why there is none.

    Attributes:
        guards: What the recording may have read, as it was.
        recorded: The recorded step, and how its results are read.
        loop: The compiled loop over steps.
        failure: Why there is no loop.
        blocks: How many blocks it has run.
        doubted: What differed in the last audit.
    """

    guards: Guards
    recorded: Any = None
    loop: Any = None
    failure: UnsupportedError | None = None
    blocks: int = 0
    doubted: str | None = None


class StepCache:
    """Compiled steps by what they were compiled for: shapes, types, structures."""

    def __init__(self) -> None:
        self._made: dict[Any, deque[CompiledStep]] = {}
        self._used: dict[Any, CompiledStep] = {}
        self._pinned = False

    def pin(self, pinned: bool) -> None:
        """Say whether steps since this was last denied are made once more, by the same recordings in any case."""
        self._pinned = pinned
        if not pinned:
            self._used = {}

    def clear(self) -> None:
        """Forget all steps: the next block records its step again."""
        self._made, self._used = {}, {}

    def get(self, key: Any, make: Callable[[], CompiledStep]) -> CompiledStep:
        """The step for `key`, made if there is none whose guards hold.

        Raises:
            UnsupportedError: If the step could not be compiled.
        """
        if self._pinned and key in self._used:
            return self._used[key]
        made = self._made.setdefault(key, deque(maxlen=_KEPT))
        found = next((step for step in made if step.guards.changed() is None), None)
        if found is None:
            found = make()
            made.appendleft(found)
        if found.failure is not None:
            raise found.failure
        self._used[key] = found
        return found

    def audit_is_due(self, step: CompiledStep) -> bool:
        """Count a block; whether a step of it is to be compared with the eager step."""
        if self._pinned:
            return False  # these steps have been made before
        step.blocks += 1
        return step.doubted is not None or step.blocks % AUDIT_EVERY == 0
