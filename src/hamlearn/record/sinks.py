"""Where rows go: the protocol of all sinks, and memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import Any

from hamlearn.evaluate.saved import Saved
from hamlearn.record.fields import DEFAULT, Context, Moment, Row
from hamlearn.record.policies import Every, Policy


class Sink(ABC, Saved):
    """Takes what its policy keeps.

    A sink that remembers something names it in `_state`, or extends `state_dict` and `load_state_dict`; what was
    put before is on the disk when `state_dict` returns.

    Args:
        policy: What is kept; `None` is every step.
        fields: What is measured of it.

    Example:
        >>> class Printed(Sink):
        ...     def put(self, row):
        ...         print(row["step"])
        >>> Printed(Every(2), ("step",)).put({"step": 4})
        4
    """

    _state: tuple[str, ...] = ("policy",)
    kept = True
    """Whether what the sink took is there after the run, so that a resumed run must continue it."""

    def __init__(self, policy: Policy | None = None, fields: Iterable[str] = DEFAULT) -> None:
        self.policy = Every(1) if policy is None else policy
        self.fields = tuple(fields)

    def open(self, context: Context) -> None:
        """Called once, before the first step."""
        context.check((*self.fields, *getattr(self.policy, "over", ())))

    def take(self, moment: Moment) -> None:
        """Called with every step."""
        row = self.policy.offer(moment, self.fields)
        if row is not None:
            self.put(row)

    @abstractmethod
    def put(self, row: Row) -> None:
        """Keep a row."""

    def close(self) -> None:
        """Called once, after the last step; a sink that holds nothing open has nothing to do."""
        return


class Memory(Sink):
    """Rows in memory, in `rows`.

    Args:
        policy: What is kept; `None` is every step.
        fields: What is measured.
        last: How many rows are kept at most, the newest; `None`: all, which fills the memory on an endless stream.

    Example:
        >>> memory = Memory(fields=("step",), last=2)
        >>> for step in (1, 2, 3):
        ...     memory.put({"step": step})
        >>> memory.column("step")
        [2, 3]
    """

    _state = ("policy", "_rows")

    def __init__(
        self, policy: Policy | None = None, fields: Iterable[str] = DEFAULT, last: int | None = None
    ) -> None:
        super().__init__(policy, fields)
        self._rows: deque[Row] = deque(maxlen=last)

    @property
    def rows(self) -> list[Row]:
        """What is kept, oldest first."""
        return list(self._rows)

    def column(self, name: str) -> list[Any]:
        """One field of all rows."""
        return [row.get(name) for row in self._rows]

    def put(self, row: Row) -> None:
        """Keep a row."""
        self._rows.append(row)
