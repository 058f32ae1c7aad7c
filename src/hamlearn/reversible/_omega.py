"""ω: the derivatives with respect to the weights and to u, summed along the echo in constant memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hamlearn.errors import ConfigError
from hamlearn.reversible._chain import Chain


class Omega:
    """One sum per weight, and per tensor of u, in memory that does not grow with the number of terms.

    Attributes:
        along_u: the sums for the tensors of u (None where no gradient is wanted).
        along_theta: the sums for the weights, in the order of `chain.weights.tensors`.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        drive = chain.drive
        self.along_u: list[Tensor | None] = [None] * len(drive.places)
        self.u_places = [drive.places.index(i) for i in drive.wanted]
        if drive.sequence:
            for place, i in zip(self.u_places, drive.wanted, strict=True):
                self.along_u[place] = torch.zeros_like(drive.leaves[i])
        self.along_theta: list[Tensor | None] = [None] * len(chain.weights.tensors)
        self.owned: set[int] = set()
        self.first = True

    def leaves(self, module: object, v: Tensor, h: Tensor, u_leaves: Sequence[Tensor]) -> list[Tensor]:
        """What v = module(u, h) is to be differentiated by: h, then u, then the weights of `module`."""
        leaves = [h, *u_leaves, *self.chain.weights.of(module)[0]]
        # One look at each field for good, and at the last one in every backward run, in case its weights
        # were exchanged after the forward run (torch.func.functional_call).
        if self.first or id(module) not in self.chain.trusted:
            _require_known(module, v, leaves)
            self.chain.trusted.add(id(module))
            self.first = False
        return leaves

    def add(self, k: int, module: object, terms: Sequence[Tensor | None]) -> None:
        """Add the terms of step k, in the order of `leaves` without h."""
        n_u = len(self.u_places)
        if n_u and self.chain.drive.sequence:
            for place, term in zip(self.u_places, terms[:n_u], strict=True):
                if term is not None:
                    self.along_u[place][k].add_(term)  # type: ignore[index]
        elif n_u:
            _accumulate(self.along_u, self.u_places, terms[:n_u], self.owned)
        places = self.chain.weights.of(module)[1]
        _accumulate(self.along_theta, places, terms[n_u:], self.owned)
