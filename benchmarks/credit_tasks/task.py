"""What a supervised task is: lanes of one length side by side, targets that may be missing, restarts, a score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from hamlearn.sample import Sample

Metric = Literal["NMSE", "accuracy", "cross-entropy"]
LANES = 8
"""Streams that one network learns from at a time, along a leading axis; an update takes their mean loss."""


@dataclass(frozen=True)
class Task:
    """Lanes to learn from, time first.

    Attributes:
        name: Of the task.
        u: Inputs (steps, lanes, inputs).
        target: Targets (steps, lanes, …); rows that have none are never looked at.
        has: Which steps have a target (steps,).
        outputs: Size of y.
        loss: Of y and target, the mean over lanes.
        metric: The score.
        last: Share of the targets, counted from the end, that it is taken over.
        restart: Which lanes begin an episode at a step (steps, lanes): h, and all that is carried for credit, is
            zero before the input is taken. `None`: never.
        units: Of the recurrent net.
        span: Steps over which something is to be remembered, for cells that take it as an argument.
    """

    name: str
    u: Tensor
    target: Tensor
    has: Tensor
    outputs: int
    loss: Callable[[Tensor, Tensor], Tensor]
    metric: Metric
    last: float
    restart: Tensor | None = None
    units: int = 64
    span: int = 2

    @property
    def together(self) -> bool:
        """Whether all lanes restart at the same steps, so that a boundary of the stream says it."""
        return self.restart is None or bool((self.restart == self.restart[:, :1]).all())

    def flagged(self) -> Tensor:
        """Inputs with a last column that is 1 where a lane restarts, for `Restarting` cells."""
        flag = torch.zeros_like(self.u[..., :1])
        return torch.cat([self.u, flag if self.restart is None else self.restart.unsqueeze(-1).to(flag)], -1)

    def samples(self) -> list[Sample]:
        """The stream: with boundaries where all lanes restart together, else with flagged inputs."""
        u = self.u if self.together else self.flagged()
        has = self.has.tolist()
        ends = [False] * len(has)
        if self.restart is not None and self.together:
            ends = [*self.restart[1:, 0].tolist(), True]
        rows = zip(u, self.target, has, ends, strict=True)
        return [Sample(x, target if given else None, boundary=end) for x, target, given, end in rows]

    def score(self, y: Tensor) -> float:
        """The metric of outputs (steps, lanes, outputs), each given before it was learned from."""
        y, target = self._answered(y)
        scored = max(1, int(self.last * len(y)))
        return self.measured(y[-scored:], target[-scored:])

    def curve(self, y: Tensor, points: int = 40) -> list[float]:
        """The metric over time, in `points` stretches of equal length."""
        y, target = self._answered(y)
        length = max(1, len(y) // points)
        stretches = zip(y.split(length), target.split(length), strict=True)
        return [self.measured(a, b) for a, b in stretches if len(a) == length]

    def _answered(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and targets of the steps that have one; a rule of windows may leave out the last few steps."""
        has = self.has[: len(y)]
        return y[has], self.target[: len(y)][has]

    def measured(self, y: Tensor, target: Tensor) -> float:
        """The metric of outputs and targets (…, lanes, outputs)."""
        if self.metric == "accuracy":
            return (y.argmax(-1) == target).double().mean().item()
        return self.loss(y.double(), target.double()).item()


def cross_entropy(y: Tensor, target: Tensor) -> Tensor:
    """The mean over lanes, of class indices."""
    return nn.functional.cross_entropy(y, target)
