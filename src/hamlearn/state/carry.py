"""What a step starts from, and the next one after it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from hamlearn._base import trees


@dataclass(slots=True)
class Carry:
    """What a step starts from: h and z as flat lists (empty without a state net), and ω.

    Attributes:
        own: Whether nobody else holds the memory of ω, so that large costates may move in place.
        v: What an adaptive β follows, one tensor per weight; empty where β does not adapt. It lives as long as ω.
        E: Sensitivities ∂h/∂θh as the order lays them out; empty for credits without. They live as long as h.
    """

    h: list[Tensor]
    z: list[Tensor]
    omega: list[Tensor]
    spec: trees.Spec
    own: bool = False
    v: list[Tensor] = field(default_factory=list)
    E: list[Tensor] = field(default_factory=list)

    def copy(self) -> Carry:
        """The same, in memory of its own: whoever has been shown a state may write to it."""
        h, z, omega, v, E = ([x.clone() for x in part] for part in (self.h, self.z, self.omega, self.v, self.E))
        return Carry(h, z, omega, self.spec, False, v, E)

    def anew(self, h: list[Tensor], spec: trees.Spec, E: list[Tensor]) -> Carry:
        """The same, where a sequence begins with the state `h`."""
        return Carry(h, [torch.zeros_like(leaf) for leaf in h], self.omega, spec, False, self.v, E)
