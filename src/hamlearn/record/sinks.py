"""Where rows go: the protocol of all sinks, which steps they keep, and memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hamlearn.errors import ConfigError
from hamlearn.evaluate.saved import Saved
from hamlearn.record.fields import DEFAULT, Moment, Row

if TYPE_CHECKING:
    from hamlearn.record.recorder import Recorder


class Every(Saved):
    """Every n-th step: the n-th, the 2n-th, and so on.

    Example:
        >>> Every(100).n
        100
    """

    over: tuple[str, ...] = ()

    def __init__(self, n: int = 1) -> None:
        if n < 1:
            raise ConfigError(f"n={n} keeps nothing. Give 1 or more.")
        self.n = n

    def offer(self, moment: Moment, fields: Iterable[str]) -> Row | None:
        """What to keep of a step, if anything; nothing else is measured."""
        return None if moment.step % self.n else moment.row(fields)


class Windows(Every):
    """One row for each n steps: mean, least and largest value over them, and the rest as of the last.

    Args:
        n: Steps in a window.
        over: Fields that are averaged, each at the cost of measuring it at every step. A field `loss` gets
            the columns `loss` (the mean of those that there were), `loss_min` and `loss_max`.

    Example:
        >>> Windows(1000).over
        ('loss',)
    """

    _state = ("_values",)

    def __init__(self, n: int, over: Iterable[str] = ("loss",)) -> None:
        super().__init__(n)
        self.over = tuple(over)
        self._values: dict[str, list[float]] = {name: [] for name in self.over}

    def offer(self, moment: Moment, fields: Iterable[str]) -> Row | None:
        """Add a step to the window; keep the row of the window if it is the last of it."""
        for name, values in self._values.items():
            if moment[name] is not None:
                values.append(moment[name])
        row = super().offer(moment, [name for name in fields if name not in self.over])
        if row is None:
            return None
        for name, values in self._values.items():
            mean = sum(values) / len(values) if values else None
            row |= {name: mean, f"{name}_min": min(values, default=None), f"{name}_max": max(values, default=None)}
            values.clear()
        return row


class Sink(ABC, Saved):
    """Takes what its policy keeps.

    A sink that remembers something names it in `_state`, or extends `state_dict` and `load_state_dict`; what was
    put before is on the disk when `state_dict` returns.

    Args:
        policy: Which steps are kept, `Every` or `Windows`; `None` is every step.
        fields: The values that are measured for them.

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

    def __init__(self, policy: Every | None = None, fields: Iterable[str] = DEFAULT) -> None:
        self.policy = Every(1) if policy is None else policy
        self.fields = tuple(fields)

    def open(self, recorder: Recorder) -> None:
        """Called once, before the first step."""
        recorder.check((*self.fields, *self.policy.over))

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
        policy: Which steps are kept; `None` is every step.
        fields: The measured values.
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
        self, policy: Every | None = None, fields: Iterable[str] = DEFAULT, last: int | None = None
    ) -> None:
        super().__init__(policy, fields)
        self._rows: deque[Row] = deque(maxlen=last)

    @property
    def rows(self) -> list[Row]:
        """The rows that are kept, oldest first."""
        return list(self._rows)

    def column(self, name: str) -> list[Any]:
        """One field of all rows."""
        return [row.get(name) for row in self._rows]

    def put(self, row: Row) -> None:
        """Keep a row."""
        self._rows.append(row)
