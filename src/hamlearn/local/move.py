"""The weights' step, made once however often it is begun."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from hamlearn._scale import Scale, add_
from hamlearn.local.outer import Outer


@dataclass(slots=True)
class Part:
    """Some weights that move by one call: θ ← θ + scale·ω; only one weight where the scale is a tensor."""

    theta: list[Tensor]
    omega: list[Tensor] | Outer
    scale: Scale
    version: int = field(init=False)

    def __post_init__(self) -> None:
        self.version = self.theta[0]._version

    def make(self) -> None:
        """Move, unless that has been done: a call that has returned has left its mark on the weights' version."""
        if self.theta[0]._version != self.version:
            return
        if isinstance(self.omega, Outer):
            self.omega.add_to_(self.theta[0], self.scale)  # type: ignore[arg-type]
        else:
            add_(self.theta, self.omega, self.scale)


@dataclass(slots=True)
class Move:
    """θ ← θ − τβ⊙ω, in as few calls as the kinds of β allow.

    Weights are moved in place, which an interrupt may cut between two calls. Nothing can be taken back then, but
    everything can be finished.

    Example:
        >>> import torch
        >>> weight = torch.zeros(2)
        >>> move = Move([Part([weight], [torch.ones(2)], -0.5)])
        >>> move.make(), move.make()
        (None, None)
        >>> weight
        tensor([-0.5000, -0.5000])
    """

    parts: list[Part]

    @torch.no_grad()
    def make(self) -> None:
        """Make what has not been made of it."""
        for part in self.parts:
            part.make()
