"""The weights' step, made once however often it is begun."""

from __future__ import annotations

from torch import Tensor

from hamlearn._base.scale import Scale, add_
from hamlearn.orders.local.outer import Outer


class Move:
    """Some weights that move by one call: θ ← θ + scale·ω; only one weight where the scale is a tensor.

    Weights are moved in place, which an interrupt may cut between two calls. Nothing can be taken back then, but
    everything can be finished: a call that has returned has left its mark on the weights' version.

    Example:
        >>> import torch
        >>> weight = torch.zeros(2)
        >>> move = Move([weight], [torch.ones(2)], -0.5)
        >>> move.make(), move.make()
        (None, None)
        >>> weight
        tensor([-0.5000, -0.5000])
    """

    __slots__ = ("omega", "scale", "theta", "version")

    def __init__(self, theta: list[Tensor], omega: list[Tensor] | Outer, scale: Scale) -> None:
        self.theta, self.omega, self.scale = theta, omega, scale
        self.version: int | None = None

    def make(self) -> None:
        """Move, unless that has been done."""
        if self.version is None:
            # Not before: weights that share memory share its version, and those before this one have moved it.
            self.version = self.theta[0]._version
        if self.theta[0]._version != self.version:
            return
        if isinstance(self.omega, Outer):
            self.omega.add_to_(self.theta[0], self.scale)  # type: ignore[arg-type]
        else:
            add_(self.theta, self.omega, self.scale)
