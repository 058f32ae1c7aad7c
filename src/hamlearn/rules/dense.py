"""Credit forward in time for dense nets: E = ∂h/∂θ whole (RTRL), in part (SnAp-n), or as a product (UORO)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.scale import Scale
from hamlearn.errors import ConfigError
from hamlearn.rules.derivatives import vjp
from hamlearn.rules.reach import jacobians, reach
from hamlearn.rules.sensitivity import Sensitive
from hamlearn.rules.system import Instant, System
from hamlearn.rules.transition import next_state
from hamlearn.state.carry import Carry


class _Whole(Sensitive):
    """What both rules share: the state as one vector of N numbers, batch and all, and no layers."""

    def own(self) -> list[int]:
        """The weights of the state net."""
        own = [index for index, name in enumerate(self.system.names) if name.startswith("state.")]
        if not own:
            raise ConfigError(f"hl.credit.{type(self.credit).__name__}() needs a state net with learnable weights")
        return own

    def _moved_with_graph(
        self, carry: Carry, now: Instant
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor], Tensor]:
        """The state h to differentiate by, h⁺, what the state net returned, and h⁺ as one vector with a graph."""
        with torch.enable_grad():
            h = [leaf.detach().requires_grad_() for leaf in carry.h]
            h_next, _, result = next_state(self.system.network, h, carry.spec, now.sample.u, now.rates)
            flat = torch.cat([leaf.reshape(-1) for leaf in h_next])
        return h, [leaf.detach() for leaf in h_next], [leaf.detach() for leaf in result], flat

    def _downward(self, carry: Carry, h_next: list[Tensor], z: list[Tensor], tau: Scale) -> list[Tensor]:
        return z


class RealTime(_Whole):
    """E⁺ = (∂h⁺/∂h) E + ∂h⁺/∂θ: a row for each number of the state, of the shape of each weight."""

    def first(self, h: list[Tensor], spec: trees.Spec) -> list[Tensor]:
        """E where a sequence begins: 0."""
        count = sum(leaf.numel() for leaf in h)
        return [h[0].new_zeros(count, *self.system.theta[index].shape) for index in self.own()]

    def _forward(self, carry: Carry, now: Instant) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        h, h_next, result, flat = self._moved_with_graph(carry, now)
        J, F = jacobians(flat, h, [self.system.theta[index] for index in self.own()])
        with torch.no_grad():
            E = [(J @ own.flatten(1)).view_as(own) + new for own, new in zip(carry.E, F, strict=True)]
        return h_next, result, E

    def _gather(self, carry: Carry, omega: list[Tensor], z: list[Tensor], E: list[Tensor]) -> None:
        along = torch.cat([leaf.reshape(-1) for leaf in z])
        for index, own in zip(self.own(), E, strict=True):
            omega[index] = omega[index] + (along @ own.flatten(1)).view_as(omega[index])


class Sparse(RealTime):
    """The same, where a weight reaches a number of the state within n steps; elsewhere E stays 0."""

    def __init__(self, system: System, credit: Any, order: str) -> None:
        super().__init__(system, credit, order)
        self._masks: dict[Any, list[Tensor]] = {}

    def _forward(self, carry: Carry, now: Instant) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        h_next, result, E = super()._forward(carry, now)
        with torch.no_grad():
            return h_next, result, [own * mask for own, mask in zip(E, self._mask(carry, now), strict=True)]

    def _mask(self, carry: Carry, now: Instant) -> list[Tensor]:
        """Found at the first step of a shape, which is an eager one."""
        key = str(carry.spec), *(leaf.shape for leaf in carry.h)
        if key not in self._masks:
            given = self.system, self.own(), carry.h, carry.spec, now.sample.u, now.rates
            self._masks[key] = reach(*given, self.credit.n)
        return self._masks[key]


class RankOne(_Whole):
    """E ≈ a b: a⁺ = ρ0 (∂h⁺/∂h) a + ρ1 ν, b⁺ = b/ρ0 + ν·∂h⁺/∂θ/ρ1."""

    def first(self, h: list[Tensor], spec: trees.Spec) -> list[Tensor]:
        """The column and the row where a sequence begins: 0."""
        a = h[0].new_zeros(sum(leaf.numel() for leaf in h))
        return [a, *(torch.zeros_like(self.system.theta[index], requires_grad=False) for index in self.own())]

    def signs(self, like: Tensor) -> Tensor:
        """ν: −1 or 1 for each number of the state, from the random numbers of the program."""
        return torch.randint(2, like.shape, device=like.device).to(like) * 2 - 1

    def _forward(self, carry: Carry, now: Instant) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        h, h_next, result, flat = self._moved_with_graph(carry, now)
        weights, (a, *b) = [self.system.theta[index] for index in self.own()], carry.E
        nu, eps = self.signs(flat.detach()), self.credit.eps
        direct = vjp([flat], [nu], weights, keep=True)
        with torch.enable_grad():
            # (∂h⁺/∂h) a is the derivative by c, at any c, of ⟨c·∂h⁺/∂h, a⟩.
            c = torch.zeros_like(nu, requires_grad=True)
            back = torch.autograd.grad(flat, h, c, create_graph=True)
            along = (torch.cat([part.reshape(-1) for part in back]) * a).sum()
        (pushed,) = vjp([along], [None], [c])
        with torch.no_grad():
            rho0 = ((_norm(b) + eps) / (_norm([pushed]) + eps)).sqrt()
            rho1 = ((_norm(direct) + eps) / (_norm([nu]) + eps)).sqrt()
            row = [own / rho0 + new / rho1 for own, new in zip(b, direct, strict=True)]
            return h_next, result, [rho0 * pushed + rho1 * nu, *row]

    def _gather(self, carry: Carry, omega: list[Tensor], z: list[Tensor], E: list[Tensor]) -> None:
        a, *b = E
        along = (torch.cat([leaf.reshape(-1) for leaf in z]) * a).sum()
        for index, own in zip(self.own(), b, strict=True):
            omega[index] = omega[index] + along * own


def _norm(parts: list[Tensor]) -> Tensor:
    return torch.stack([part.square().sum() for part in parts]).sum().sqrt()
