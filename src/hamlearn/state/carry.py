"""The carry: all that goes from one step to the next, but for the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hamlearn._base import trees


@dataclass(slots=True)
class Carry:
    """What a step starts from: h and z as flat lists (empty without a state net), and ω.

    A step makes a new one and leaves the old one as it is, but for large costates, which move in place.

    Attributes:
        v: What an adaptive β follows, one tensor per weight; empty where β does not adapt. It lives as long as ω.
        E: Sensitivities ∂h/∂θh as the order lays them out; empty for credits without. They live as long as h.
        memory: What else the order remembers of a sequence, as a value; `None` if there is nothing.
    """

    h: list[Tensor]
    z: list[Tensor]
    omega: list[Tensor]
    spec: trees.Spec
    v: list[Tensor] = field(default_factory=list)
    E: list[Tensor] = field(default_factory=list)
    memory: Any = None

    def tensors(self) -> list[Tensor]:
        """All of its tensors, in the order of `mapped`."""
        return [*self.h, *self.z, *self.omega, *self.v, *self.E]

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Carry:
        """The same, with each tensor changed."""
        parts = (self.h, self.z, self.omega, self.v, self.E)
        h, z, omega, v, E = ([change(leaf) for leaf in part] for part in parts)
        return Carry(h, z, omega, self.spec, v, E, self.memory)

    def copy(self) -> Carry:
        """The same, with tensors of its own."""
        return self.mapped(_copied)

    def restarted(self, h: list[Tensor], spec: trees.Spec, E: list[Tensor]) -> Carry:
        """The same at the start of a sequence, whose first state is `h`."""
        return Carry(h, [torch.zeros_like(leaf) for leaf in h], self.omega, spec, self.v, E)


def _copied(leaf: Tensor) -> Tensor:
    return leaf.detach().clone()
