"""Whether a run does worse than before it began to learn, noticed while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hamlearn.errors import ConfigError
from hamlearn.record.moments import Moment, Row
from hamlearn.record.sinks import Sink

FIRST = 10
"""Samples whose loss says how a network does that has hardly learned."""

WORSE, BLOCKS, FAR_WORSE, GROWN = 4.0, 3, 1000.0, 4.0
"""How often the first loss, for how many blocks; how often, at once; how often the first weights."""


class Divergence(Sink):
    """Watches the loss and the weights, and says since when a run diverges.

    The losses are averaged over blocks of `n` samples with a target, and the norm of the weights is read at the
    end of each. A run diverges when

    - three blocks in a row had a mean loss of more than 4 times that of the first ten samples, or one block of
      more than 1000 times, and
    - the weights have grown to more than 4 times their norm at the start (a norm below 1 counts as 1).

    So a network must do clearly worse than before it had learned, and for a while, and by its own weights: neither
    noise, nor a signal that jumps, nor weights that have to be large, are taken for it. It is over when the mean
    of a block is no more than 4 times the first loss.

    Args:
        n: Samples in a block.

    Attributes:
        since: Number of the sample at which it was noticed; `None` while all is well.

    Example:
        >>> Divergence(n=200).since is None
        True
    """

    def __init__(self, n: int = 50) -> None:
        super().__init__(None, ("loss", "theta"))
        if n < 1:
            raise ConfigError(f"n={n} holds no sample. Give 1 or more.")
        self._n = n
        self.since: int | None = None
        self._start: float | None = None
        self._first: list[float] = []
        self._block: list[float] = []
        self._worse = 0

    def take(self, moment: Moment) -> None:
        """Count a loss, and judge at the end of a block."""
        if self._start is None:
            self._start = max(1.0, _norm(moment))
        loss = moment["loss"]
        if loss is None or getattr(moment.report, "skipped", False):
            return
        if len(self._first) < FIRST:
            self._first.append(loss)
        self._block.append(loss)
        if len(self._block) == self._n:
            self._judge(moment, sum(self._block) / self._n, self._start)
            self._block.clear()

    def put(self, row: Row, slot: int | None) -> None:
        """It keeps no rows."""

    def state_dict(self) -> dict[str, Any]:
        """What it has seen, JSON-able."""
        seen = {"since": self.since, "start": self._start, "worse": self._worse}
        return seen | {"first": list(self._first), "block": list(self._block)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what it had seen."""
        self.since, self._start, self._worse = state["since"], state["start"], state["worse"]
        self._first, self._block = list(state["first"]), list(state["block"])

    def _judge(self, moment: Moment, loss: float, start: float) -> None:
        first = sum(self._first) / len(self._first)
        # Each comparison is such that what is not a number counts as worse.
        if loss <= WORSE * first:
            self._worse, self.since = 0, None
            return
        self._worse += 1
        lasting = self._worse >= BLOCKS or not loss <= FAR_WORSE * first
        if self.since is None and lasting and not _norm(moment) <= GROWN * start:
            self.since = moment.step


def _norm(moment: Moment) -> float:
    norm = moment["theta"]
    return 0.0 if norm is None else float(norm)
