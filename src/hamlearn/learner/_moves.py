"""Weights that move in place, and back to exactly what they were where the step is refused."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from hamlearn._scale import add_
from hamlearn.system import Instant, Outcome, System

LARGE = 1 << 15
"""From this many entries on, passing over a weight costs more than asking whether it can overflow."""


class Late(NamedTuple):
    """A large weight that moves once the step is accepted; its version tells whether it has."""

    weight: Tensor
    version: int
    omega: Tensor
    by: float

    def __call__(self) -> None:
        if self.weight._version == self.version:
            self.weight.add_(self.omega, alpha=self.by)


class Moves:
    """How the weights of a learner move, without passing over their memory more often than SGD does.

    Small weights are copied, then moved, then looked at. For large ones their norm says, at the speed of memory,
    that their numbers are far from overflow: those move last, when nothing can be refused any more.

    Args:
        system: Whose weights.
    """

    def __init__(self, system: System) -> None:
        self.system = system
        theta = system.theta
        self._large = [index for index, weight in enumerate(theta) if weight.numel() >= LARGE]
        self._small = [index for index, weight in enumerate(theta) if weight.numel() < LARGE]
        self._weights = [theta[index] for index in self._small]
        self._copies = [torch.empty_like(weight, requires_grad=False) for weight in self._weights]

    @property
    def any_large(self) -> bool:
        """Whether there are weights for which memory is worth using again."""
        return bool(self._large)

    def late(self, now: Instant, outcome: Outcome) -> dict[int, Late]:
        """The large weights that can wait, by their index."""
        if not self._large or outcome.dtheta is not None or not outcome.moves:
            return {}
        found, betas = {}, self.system.velocity.values(now.t)
        for index in self._large:
            weight, omega, beta = self.system.theta[index], outcome.omega[index], betas[index]
            if isinstance(beta, float | int) and beta:
                by = -(now.rates.stride * beta)
                if abs(by) <= 1.0 and _far_from_overflow(weight, omega):
                    found[index] = Late(weight, weight._version, omega, by)
        return found

    def keep(self, late: dict[int, Late]) -> tuple[list[Tensor], list[Tensor]]:
        """The weights that move at once, and copies of them as they are."""
        torch._foreach_copy_(self._copies, self._weights)
        if len(late) == len(self._large):
            return self._weights, self._copies
        others = [self.system.theta[index] for index in self._large if index not in late]
        return [*self._weights, *others], [*self._copies, *(weight.clone() for weight in others)]

    def move(self, now: Instant, outcome: Outcome, late: dict[int, Late]) -> None:
        """Move those that do not wait: θ ← θ − τβ⊙ω, or along θ̇ where the order gives it."""
        if outcome.dtheta is None:
            self.system.velocity.move(self.system.theta, outcome.omega, now.t, now.rates.stride, late)
        else:
            add_(self.system.theta, outcome.dtheta, now.rates.stride)


def _far_from_overflow(weight: Tensor, omega: Tensor) -> bool:
    """Whether no entry exceeds the root of the largest number: then the sum of squares is finite."""
    if weight.dtype not in (torch.float32, torch.float64):
        return False
    norms = torch.linalg.vector_norm(weight.detach()) + torch.linalg.vector_norm(omega)
    return math.isfinite(norms.item())
