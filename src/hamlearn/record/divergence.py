"""Whether a run does worse than before it began to learn, noticed while it runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hamlearn.errors import ConfigError
from hamlearn.record.guesses import MeanGuess
from hamlearn.record.moments import Context, Moment, Row
from hamlearn.record.sinks import Sink

FIRST = 10
"""Samples whose loss says how a network does that has hardly learned."""

WORSE, BLOCKS, FAR_WORSE, GROWN = 4.0, 3, 1000.0, 4.0
"""How often the first loss, for how many blocks; how often, at once; how often the first weights."""

GUESSING = 1.5
"""How often the loss of knowing nothing is clearly worse than knowing nothing."""


class Divergence(Sink):
    """Watches the loss and the weights, and says since when a run diverges.

    The losses are averaged over blocks of `n` samples with a target, and the norm of the weights is read at the
    end of each. A run diverges when

    - three blocks in a row had a mean loss of more than 4 times the loss at the start, or one block of more than
      1000 times; or three blocks in a row were clearly worse than knowing nothing: where the loss is cross-entropy
      over C classes, above 1.5 ln C, as whoever gives each class the same probability has ln C; where it is the
      squared error, above the loss at the start and above 1.5 times what guessing the mean of all targets so far
      would have scored on that block; and
    - the weights have grown to more than 4 times their norm before the first sample (a norm below 1 counts as 1).

    The loss at the start is that of the first sample, which no update has touched, as far as it lies between half
    the mean of the first ten samples and all of it. A rate that is much too high blows up those ten already, so
    their mean alone says little; and a first loss may be tiny by chance, so it alone says little too.

    So a network must do clearly worse than before it had learned, and for a while, and by its own weights: neither
    noise, nor a signal that jumps, nor weights that have to be large, are taken for it. It is over when two of the
    last three blocks are below the threshold.

    Args:
        n: Samples in a block.
        chance: The loss of a learner that knows nothing; `None` is ln C where the learner's loss is
            `torch.nn.functional.cross_entropy` or `torch.nn.CrossEntropyLoss` with its mean, that of guessing the
            mean where it is `mse_loss` or `MSELoss`, and unknown for other losses.

    Attributes:
        since: Number of the sample at which it was noticed; `None` while all is well.
        ended: `(last, level)` where the last three blocks were all above the threshold `level`, whether or not the
            weights have grown, and `last` is the mean loss of the last one; `None` otherwise.

    Example:
        >>> Divergence(n=200).since is None
        True
    """

    def __init__(self, n: int = 50, chance: float | None = None) -> None:
        super().__init__(None, ("loss", "theta"))
        if n < 1:
            raise ConfigError(f"n={n} holds no sample. Give 1 or more.")
        if chance is not None and not 0 < chance < math.inf:
            raise ConfigError(f"chance={chance} is no loss to compare with. Give a number above 0, or None.")
        self._n, self._chance = n, chance
        self.since: int | None = None
        self.ended: tuple[float, float] | None = None
        self._loss: Any = None
        self._start: float | None = None
        self._guess = MeanGuess()
        self._first: list[float] = []
        self._block: list[float] = []
        self._worse: list[bool] = []

    def open(self, context: Context) -> None:
        """Measure the weights before anything is learned."""
        super().open(context)
        self._loss = getattr(context.learner, "loss", None)
        if self._start is None:
            weights = context.tensors("theta", None)
            self.begin(math.hypot(*(float(torch.linalg.vector_norm(weight)) for weight in weights)))

    def begin(self, theta: float) -> None:
        """Say what norm the weights have before the first sample."""
        self._start = max(1.0, theta)

    def take(self, moment: Moment) -> None:
        """Count a loss, and judge at the end of a block."""
        loss = moment["loss"]
        if loss is None or getattr(moment.report, "skipped", False):
            return
        if len(self._first) < FIRST:
            if not self._first and self._chance is None:
                self._chance = _chance(self._loss, moment)
            self._first.append(loss)
        if self._chance is None and _is_squared_error(self._loss):
            self._guess.take(getattr(getattr(moment.report, "sample", None), "target", None))
        self._block.append(loss)
        if len(self._block) == self._n:
            self._judge(moment, sum(self._block) / self._n, self._start or 1.0)
            self._block.clear()

    def put(self, row: Row, slot: int | None) -> None:
        """It keeps no rows."""

    def state_dict(self) -> dict[str, Any]:
        """What it has seen, JSON-able."""
        seen = {"since": self.since, "ended": self.ended, "start": self._start, "chance": self._chance}
        lists = {"first": list(self._first), "block": list(self._block), "worse": list(self._worse)}
        return seen | lists | {"guess": self._guess.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what it had seen."""
        self.since, self._start, self._chance = state["since"], state["start"], state["chance"]
        self.ended = None if state["ended"] is None else tuple(state["ended"])
        self._first, self._block = list(state["first"]), list(state["block"])
        self._worse = list(state["worse"])
        self._guess.load_state_dict(state["guess"])

    def _judge(self, moment: Moment, loss: float, start: float) -> None:
        mean = sum(self._first) / len(self._first)
        first = min(mean, max(self._first[0], mean / 2))
        level, guess = WORSE * first, self._guess.block()
        if self._chance is not None:
            level = min(level, GUESSING * self._chance)
        elif guess is not None:
            level = min(level, max(first, GUESSING * guess))
        # Each comparison is such that what is not a number counts as worse.
        self._worse = [*self._worse[1 - BLOCKS :], not loss <= level]
        lasting = sum(self._worse) == BLOCKS
        self.ended = (loss, level) if lasting else None
        if lasting or not loss <= FAR_WORSE * first:
            if self.since is None and not _norm(moment) <= GROWN * start:
                self.since = moment.step
        elif self._worse.count(False) >= 2:
            self.since = None


def _chance(loss: Any, moment: Moment) -> float | None:
    """The loss of giving each class the same probability; `None` where the loss is not known to be of classes."""
    mean = isinstance(loss, nn.CrossEntropyLoss) and loss.reduction == "mean"
    if not (mean or loss is nn.functional.cross_entropy):
        return None
    y = moment.report.y
    classes = y.shape[min(1, y.dim() - 1)] if isinstance(y, Tensor) and y.dim() else 0
    return math.log(classes) if classes > 1 else None


def _is_squared_error(loss: Any) -> bool:
    return loss is nn.functional.mse_loss or (isinstance(loss, nn.MSELoss) and loss.reduction == "mean")


def _norm(moment: Moment) -> float:
    norm = moment["theta"]
    return 0.0 if norm is None else float(norm)
