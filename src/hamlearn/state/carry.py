"""The carry: all that goes from one step to the next, but for the weights."""

from __future__ import annotations

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

    def copy(self) -> Carry:
        """The same, with tensors of its own."""
        parts = (self.h, self.z, self.omega, self.v, self.E)
        h, z, omega, v, E = ([x.detach().clone() for x in part] for part in parts)
        return Carry(h, z, omega, self.spec, v, E, self.memory)

    def restarted(self, h: list[Tensor], spec: trees.Spec, E: list[Tensor]) -> Carry:
        """The same at the start of a sequence, whose first state is `h`."""
        return Carry(h, [torch.zeros_like(leaf) for leaf in h], self.omega, spec, self.v, E)
