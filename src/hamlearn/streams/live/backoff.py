"""How long to wait before a lost connection is tried again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from hamlearn.errors import ConfigError, StreamError

FIRST, MOST = 0.1, 30.0
"""Seconds before the second attempt, and before any."""
STEADY = 5.0
"""Seconds that a connection has to last, so that the next attempt after it counts as the first."""


class Backoff:
    """Waits that double from attempt to attempt, each shortened at random by up to a half.

    At random, so that a thousand agents whose broker was restarted do not all come back in the same moment; from a
    generator of its own, so that the random numbers of a run stay as they are.

    Args:
        name: What is being connected to, for messages.
        patience: Seconds without a connection after which it gives up.
        clock: Seconds.

    Example:
        >>> waits = Backoff("a broker", patience=60.0)
        >>> [0.05 <= waits.failed("no answer") <= 0.1, 0.1 <= waits.failed("no answer") <= 0.2]
        [True, True]
    """

    def __init__(self, name: str, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        if not patience > 0:
            raise ConfigError(f"patience={patience!r} is not allowed. Give a number of seconds above 0.")
        self._name, self._patience, self._clock = name, patience, clock
        self._random = random.Random()
        self._attempts = 0
        self._since: float | None = None
        self._made: float | None = None

    def connected(self) -> None:
        """There is a connection. Whether it is of any use, its end will tell."""
        if self._made is None:
            self._made = self._clock()

    def failed(self, problem: object) -> float:
        """Seconds to wait before the next attempt, after one that failed or a connection that was lost.

        Raises:
            StreamError: There has been no connection that lasted for longer than `patience`.
        """
        now = self._clock()
        lasted = 0.0 if self._made is None else now - self._made
        if self._since is None or lasted >= STEADY:
            self._attempts, self._since = 0, now
        self._made = None
        passed = now - self._since
        if passed > self._patience:
            raise StreamError(
                f"no lasting connection to {self._name} for {passed:.1f} seconds ({problem}). Start the broker, "
                "mend the address, or raise `patience`; a run that is resumed goes on where it was."
            )
        longest = min(MOST, FIRST * 2.0 ** min(self._attempts, 60))
        self._attempts += 1
        return longest * (1 - 0.5 * self._random.random())
