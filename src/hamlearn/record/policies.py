"""What is kept of a stream that never ends: every n-th step, or one row for each n steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from hamlearn.errors import ConfigError
from hamlearn.evaluate.saved import Saved
from hamlearn.record.fields import Moment, Row


class Policy(ABC, Saved):
    """Decides which steps are kept; measures nothing of the others.

    One that remembers something names it in `_state`, or has `state_dict` and `load_state_dict`.

    Example:
        >>> class Primes(Policy):
        ...     def offer(self, moment, fields):
        ...         return moment.row(fields) if moment.step in (2, 3, 5, 7) else None
    """

    @abstractmethod
    def offer(self, moment: Moment, fields: Iterable[str]) -> Row | None:
        """What to keep of this step, if anything."""


class Every(Policy):
    """Every n-th step: the n-th, the 2n-th, and so on.

    Example:
        >>> Every(100).n
        100
    """

    def __init__(self, n: int = 1) -> None:
        self.n = _at_least_one(n)

    def offer(self, moment: Moment, fields: Iterable[str]) -> Row | None:
        """Keep it if its number can be divided by `n`."""
        return None if moment.step % self.n else moment.row(fields)


class Windows(Policy):
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
        self.n, self.over = _at_least_one(n), tuple(over)
        self._values: dict[str, list[float]] = {name: [] for name in self.over}

    def offer(self, moment: Moment, fields: Iterable[str]) -> Row | None:
        """Add it to the window; keep the row of the window if it is the last of it."""
        for name, values in self._values.items():
            if moment[name] is not None:
                values.append(moment[name])
        if moment.step % self.n:
            return None
        row = moment.row(name for name in fields if name not in self.over)
        for name, values in self._values.items():
            mean = sum(values) / len(values) if values else None
            row |= {name: mean, f"{name}_min": min(values, default=None), f"{name}_max": max(values, default=None)}
            values.clear()
        return row


def _at_least_one(n: int) -> int:
    if n < 1:
        raise ConfigError(f"n={n} keeps nothing. Give 1 or more.")
    return n
