"""Rules that carry ∂h/∂θ forward, plainly: exact for dense nets, and what is made of it to make it cheap.

A rule begins with `start`, continues with `step`, and says by `gradient` what a loss with z = ∂L/∂h is owed by the
weights of the state net. All are pure functions of tensors; what is carried is a flat list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks.credit_tasks.nets import Restarting
from hamlearn.cells.columnar import slots

Grads = dict[str, Tensor]


class Rule(Protocol):
    """The tensors carried forward for credit."""

    def start(self, cell: Any, u: Tensor) -> list[Tensor]:
        """The carry before the first sample, sized by the lanes of `u`."""

    def step(
        self, cell: Any, u: Tensor, h: list[Tensor], carried: list[Tensor], noise: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """(h⁺, what is carried to it); `noise` has a random sign for every unit of every lane."""

    def gradient(self, cell: Any, carried: list[Tensor], z: list[Tensor]) -> Grads:
        """z·∂h/∂θ, summed over lanes, as the rule takes it."""


@dataclass(frozen=True)
class Own:
    """Each unit's own part: E⁺ = κ (∂h⁺/∂h)ᵢᵢ E + ∂h⁺/∂θ.

    Exact where units are independent; for a dense net it is SnAp-1 (Menick et al. 2021). κ = 0 reaches one step
    back. With a `leak` the Jacobian is taken to be that number. That is the trace of RFLO and e-prop, but neither
    rule: RFLO sends errors back through random weights, and both are for units that leak by themselves.
    """

    keep: float = 1.0
    leak: float | None = None

    def start(self, cell: Any, u: Tensor) -> list[Tensor]:
        """Zeros, one for each weight, slot and lane."""
        k = len(slots(cell.initial_state(u)))
        weights = [weight for _, weight in cell.named_parameters()]
        return [weight.new_zeros(*u.shape[:-1], *weight.shape) for weight in weights for _ in range(k)]

    def step(
        self, cell: Any, u: Tensor, h: list[Tensor], carried: list[Tensor], noise: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """E⁺ at h⁺."""
        value, J, F = cell.local(u, h)
        k = len(value)
        after = []
        for number, (name, weight) in enumerate(cell.named_parameters()):
            E = carried[number * k : (number + 1) * k]
            for i in range(k):
                if self.leak is None:
                    kept = sum(self.keep * _wide(J[i][j], weight) * E[j] for j in range(k))
                else:
                    kept = self.leak * _like(_flowing(cell, u), E[i]) * E[i]
                after.append(kept + F[name][i])
        return value, after

    def gradient(self, cell: Any, carried: list[Tensor], z: list[Tensor]) -> Grads:
        """Σ z E over slots and lanes."""
        k, grads = len(z), {}
        for number, (name, weight) in enumerate(cell.named_parameters()):
            parts = [(_wide(z[i], weight) * carried[number * k + i]).sum(0) for i in range(k)]
            grads[name] = torch.stack(parts).sum(0)
        return grads


@dataclass(frozen=True)
class Exact:
    """Real-time recurrent learning of a dense net (Williams, Zipser 1989): E⁺ = (∂h⁺/∂h) E + ∂h⁺/∂θ, all of it."""

    def start(self, cell: Any, u: Tensor) -> list[Tensor]:
        """Zeros, one for each unit, weight and lane."""
        return [w.new_zeros(*u.shape[:-1], cell.units, *w.shape) for _, w in cell.named_parameters()]

    def step(
        self, cell: Any, u: Tensor, h: list[Tensor], carried: list[Tensor], noise: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """E⁺ at h⁺."""
        value, J, F = cell.whole(u, h[0])
        eye = torch.eye(cell.units, dtype=value.dtype, device=value.device)
        after = []
        for (name, weight), E in zip(cell.named_parameters(), carried, strict=True):
            direct = _wide(eye, weight) * F[name].unsqueeze(-weight.dim() - 1)
            after.append((J @ E.flatten(-weight.dim())).reshape(E.shape) + direct)
        return [value], after

    def gradient(self, cell: Any, carried: list[Tensor], z: list[Tensor]) -> Grads:
        """Σ z E over units and lanes."""
        grads = {}
        for (name, weight), E in zip(cell.named_parameters(), carried, strict=True):
            grads[name] = (z[0].reshape(1, -1) @ E.reshape(z[0].numel(), -1)).reshape(weight.shape)
        return grads


@dataclass(frozen=True)
class RankOne:
    """UORO (Tallec, Ollivier 2018): ∂h/∂θ as one column times one row, wrong at every step and right on average.

    a⁺ = ρ₀ (∂h⁺/∂h) a + ρ₁ ν, b⁺ = b/ρ₀ + ν·∂h⁺/∂θ/ρ₁ with random signs ν, and ρ that balance the norms.
    """

    eps: float = 1e-7

    def start(self, cell: Any, u: Tensor) -> list[Tensor]:
        """The column, and the row in pieces."""
        rows = [weight.new_zeros(*u.shape[:-1], *weight.shape) for _, weight in cell.named_parameters()]
        return [cell.initial_state(u), *rows]

    def step(
        self, cell: Any, u: Tensor, h: list[Tensor], carried: list[Tensor], noise: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """a⁺ and b⁺ at h⁺."""
        value, J, F = cell.whole(u, h[0])
        a, *b = carried
        # A lane that restarts forgets its column through ∂h⁺/∂h = 0, and its row here.
        b = [_like(_flowing(cell, u), part) * part for part in b]
        weights = dict(cell.named_parameters())
        pushed = (J @ a.unsqueeze(-1)).squeeze(-1)
        direct = [_wide(noise, weight) * F[name] for name, weight in weights.items()]
        rho0 = torch.sqrt((_norm(b) + self.eps) / (_norm([pushed]) + self.eps))
        rho1 = torch.sqrt((_norm(direct) + self.eps) / (_norm([noise]) + self.eps))
        row = [part / _like(rho0, part) + new / _like(rho1, part) for part, new in zip(b, direct, strict=True)]
        return [value], [rho0.unsqueeze(-1) * pushed + rho1.unsqueeze(-1) * noise, *row]

    def gradient(self, cell: Any, carried: list[Tensor], z: list[Tensor]) -> Grads:
        """(z·a) b, summed over lanes."""
        a, *b = carried
        along = (z[0] * a).sum(-1)
        names = [name for name, _ in cell.named_parameters()]
        return {name: (_like(along, part) * part).sum(0) for name, part in zip(names, b, strict=True)}


def _wide(x: Tensor, weight: Tensor) -> Tensor:
    """(…, units) beside a weight (units, …)."""
    return x.reshape(*x.shape, *[1] * (weight.dim() - 1))


def _like(x: Tensor, part: Tensor) -> Tensor:
    return x.reshape(*x.shape, *[1] * (part.dim() - x.dim()))


def _flowing(cell: Any, u: Tensor) -> Tensor:
    """1 for each lane, and 0 where it restarts and nothing may pass."""
    flow = torch.ones_like(u[..., 0])
    return flow - u[..., -1] if isinstance(cell, Restarting) else flow


def _norm(parts: list[Tensor]) -> Tensor:
    """Of each lane, over all units and weights."""
    return torch.sqrt(torch.stack([(part * part).flatten(1).sum(1) for part in parts]).sum(0))
