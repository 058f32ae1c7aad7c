"""Whether a run does worse than before it began to learn, noticed while it runs."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from torch import Tensor, nn

from hamlearn.errors import ConfigError
from hamlearn.record.fields import Moment, Row, norms
from hamlearn.record.recorder import Recorder
from hamlearn.record.sinks import Sink

FIRST = 10
"""Samples whose loss says how a network does that has hardly learned."""
WORSE, BLOCKS, FAR_WORSE, GROWN, GUESSING = 4.0, 3, 1000.0, 4.0, 1.5
"""How often the first loss, for how many blocks; how often, at once; how often the first weights; how often the
loss of giving each class the same probability."""


class Divergence(Sink):
    """Watches the loss and the weights, and says since when a run diverges.

    Losses are averaged over blocks of `n` samples with a target. A run diverges when three blocks in a row had a
    mean loss of more than 4 times the loss at the start (or one block of more than 1000 times), and the weights
    have grown to more than 4 times their norm before the first sample (a norm below 1 counts as 1). With
    cross-entropy over C classes a loss above 1.5 ln C counts too: guessing costs ln C. It is over when two of the
    last three blocks are below the threshold.

    The loss at the start is that of the first sample, which no update has touched, but at least half the mean of
    the first ten and at most all of it: a rate that is much too high blows up those ten already.

    Args:
        n: Samples in a block.

    Attributes:
        since: Number of the sample at which it was noticed; `None` while all is well.
        ended: `(last, level)` if the last three blocks were all above the threshold `level`, whether or not the
            weights have grown; `last` is the mean loss of the last one.

    Example:
        >>> Divergence(n=200).since is None
        True
    """

    _state = ("since", "ended", "_start", "_chance", "_first", "_block", "_worse")

    def __init__(self, n: int = 50) -> None:
        super().__init__(None, ("loss", "theta"))
        if n < 1:
            raise ConfigError(f"n={n} must be at least 1 sample.")
        self._n = n
        self.since: int | None = None
        self.ended: tuple[float, float] | None = None
        self._start: float | None = None
        self._loss: Any = None
        # The loss of a learner that knows nothing; `None`: not known.
        self._chance: float | None = None
        self._first: list[float] = []
        self._block: list[float] = []
        self._worse: list[bool] = []

    def open(self, recorder: Recorder) -> None:
        """Measure the weights before anything is learned."""
        super().open(recorder)
        self._loss = getattr(recorder.learner, "loss", None)
        if self._start is None:
            self._start = max(1.0, norms(recorder.learner, ("theta",))["theta"] or 0.0)

    def take(self, moment: Moment) -> None:
        """Count a loss, and judge at the end of a block."""
        loss = moment["loss"]
        if loss is None or getattr(moment.report, "skipped", False):
            return
        if not self._first:
            self._chance = _chance(self._loss, moment.report.y)
        if len(self._first) < FIRST:
            self._first.append(loss)
        self._block.append(loss)
        if len(self._block) == self._n:
            self._judge(moment, sum(self._block) / self._n)
            self._block.clear()

    def put(self, row: Row) -> None:
        """It keeps no rows."""

    def _judge(self, moment: Moment, loss: float) -> None:
        mean = sum(self._first) / len(self._first)
        first = min(mean, max(self._first[0], mean / 2))
        level = WORSE * first if self._chance is None else min(WORSE * first, GUESSING * self._chance)
        # Each comparison is such that what is not a number counts as worse.
        self._worse = [*self._worse[1 - BLOCKS :], not loss <= level]
        lasting = sum(self._worse) == BLOCKS
        self.ended = (loss, level) if lasting else None
        if lasting or not loss <= FAR_WORSE * first:
            if self.since is None and not (moment["theta"] or 0.0) <= GROWN * (self._start or 1.0):
                self.since = moment.step
        elif self._worse.count(False) >= 2:
            self.since = None


def _chance(loss: Any, y: Any) -> float | None:
    """The loss of giving each class the same probability; `None` if the loss is not known to be of classes."""
    while isinstance(loss, partial):
        loss = loss.func
    mean = isinstance(loss, nn.CrossEntropyLoss) and loss.reduction == "mean"
    if not (mean or loss is nn.functional.cross_entropy) or not isinstance(y, Tensor) or not y.dim():
        return None
    classes = y.shape[min(1, y.dim() - 1)]
    return math.log(classes) if classes > 1 else None
