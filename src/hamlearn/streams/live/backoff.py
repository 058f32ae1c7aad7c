"""How long to wait before a lost connection is tried again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from hamlearn.errors import ConfigError, StreamError

FIRST, MOST = 0.1, 30.0
"""Seconds before the second attempt, and before any."""


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
        self._attempts, self._since = 0, clock()

    def connected(self) -> None:
        """There is a connection: the next wait is a short one again."""
        self._attempts, self._since = 0, self._clock()

    def lost(self) -> None:
        """There was a connection up to now."""
        if self._attempts == 0:
            self._since = self._clock()

    def failed(self, problem: object) -> float:
        """Seconds to wait before the next attempt.

        Raises:
            StreamError: There has been no connection for longer than `patience`.
        """
        passed = self._clock() - self._since
        if passed > self._patience:
            raise StreamError(
                f"no connection to {self._name} for {passed:.0f} seconds ({problem}). Start the broker, mend the "
                "address, or raise `patience`; a run that is resumed goes on where it was."
            )
        longest = min(MOST, FIRST * 2.0 ** min(self._attempts, 60))
        self._attempts += 1
        return longest * (1 - 0.5 * self._random.random())
