"""What is kept of a stream that never ends: every n-th moment, a reservoir, windows, the last n."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from hamlearn.errors import ConfigError
from hamlearn.record.moments import Moment, Row

Kept = tuple[Row, int | None]
"""A row, and the slot whose former row it takes the place of (`None`: it takes nobody's)."""


class Policy(ABC):
    """Decides which moments are kept; measures nothing of the others.

    Example:
        >>> class Primes(Policy):
        ...     def offer(self, moment, fields):
        ...         return (moment.row(fields), None) if moment.step in (2, 3, 5, 7) else None
        >>> Primes().appends
        True
    """

    appends = True
    """Whether few enough rows are kept for an append-only file to stay small."""

    @abstractmethod
    def offer(self, moment: Moment, fields: tuple[str, ...]) -> Kept | None:
        """What to keep now that this moment has come, if anything."""

    def state_dict(self) -> dict[str, Any]:
        """What to go on from, JSON-able."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`; a policy without memory has nothing to do."""
        return


class Every(Policy):
    """Every n-th moment: the n-th, the 2n-th, and so on.

    Example:
        >>> Every(100)
        Every(100)
    """

    def __init__(self, n: int = 1) -> None:
        self.n = _at_least_one("n", n)

    def offer(self, moment: Moment, fields: tuple[str, ...]) -> Kept | None:
        """Keep it if its number can be divided by `n`."""
        return None if moment.step % self.n else (moment.row(fields), None)

    def __repr__(self) -> str:
        return f"Every({self.n})"


class Last(Policy):
    """The last n moments, for a look back in memory.

    Example:
        >>> Last(1000)
        Last(1000)
    """

    appends = False

    def __init__(self, n: int) -> None:
        self.n = _at_least_one("n", n)

    def offer(self, moment: Moment, fields: tuple[str, ...]) -> Kept | None:
        """Keep it in the place of the one `n` steps ago."""
        return moment.row(fields), (moment.step - 1) % self.n

    def __repr__(self) -> str:
        return f"Last({self.n})"


class Reservoir(Policy):
    """A uniform random sample of k of all moments so far, however many there will be.

    The i-th moment is kept with probability k / i, in the place of a random one of the k. So about
    k + k ln(i / k) rows are ever measured and written.

    Args:
        k: How many are kept.
        seed: Of the draws.

    Example:
        >>> Reservoir(500, seed=1)
        Reservoir(500, seed=1)
    """

    def __init__(self, k: int, seed: int = 0) -> None:
        self.k = _at_least_one("k", k)
        self.seed = seed
        self._draw = random.Random(seed)
        self._seen = 0

    def offer(self, moment: Moment, fields: tuple[str, ...]) -> Kept | None:
        """Draw whether to keep it, and in whose place."""
        self._seen += 1
        slot = self._seen - 1 if self._seen <= self.k else self._draw.randrange(self._seen)
        return (moment.row(fields), slot) if slot < self.k else None

    def state_dict(self) -> dict[str, Any]:
        """The generator and the count."""
        version, numbers, gauss = self._draw.getstate()
        return {"seen": self._seen, "random": [version, list(numbers), gauss]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the same draws."""
        version, numbers, gauss = state["random"]
        self._draw.setstate((version, tuple(numbers), gauss))
        self._seen = int(state["seen"])

    def __repr__(self) -> str:
        return f"Reservoir({self.k}, seed={self.seed})"


class Windows(Policy):
    """One row for each n moments: means, least and largest values over the window, the rest as it ends.

    Args:
        n: Moments in a window.
        over: Fields that are averaged, each at the cost of measuring it at every step. A field `loss` gets
            the columns `loss` (the mean of those that there were), `loss_min` and `loss_max`.

    Example:
        >>> Windows(1000)
        Windows(1000, over=('loss',))
    """

    def __init__(self, n: int, over: Iterable[str] = ("loss",)) -> None:
        self.n = _at_least_one("n", n)
        self.over = tuple(over)
        self._start()

    def _start(self) -> None:
        self._sums: dict[str, list[Any]] = {name: [0.0, 0, None, None] for name in self.over}

    def offer(self, moment: Moment, fields: tuple[str, ...]) -> Kept | None:
        """Add it to the window; keep the window's row if it is the last of it."""
        for name, entry in self._sums.items():
            value = moment[name]
            if value is not None:
                total, count, low, high = entry
                low, high = (value, value) if count == 0 else (min(low, value), max(high, value))
                self._sums[name] = [total + value, count + 1, low, high]
        if moment.step % self.n:
            return None
        row = moment.row(tuple(name for name in fields if name not in self.over))
        for name, (total, count, low, high) in self._sums.items():
            row |= {name: total / count if count else None, f"{name}_min": low, f"{name}_max": high}
        self._start()
        return row, None

    def state_dict(self) -> dict[str, Any]:
        """The sums of the window that is not full yet."""
        return {"sums": {name: list(entry) for name, entry in self._sums.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with these sums."""
        self._sums = {name: list(entry) for name, entry in state["sums"].items()}

    def __repr__(self) -> str:
        return f"Windows({self.n}, over={self.over})"


def _at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"{name}={value} keeps nothing. Give 1 or more.")
    return value
