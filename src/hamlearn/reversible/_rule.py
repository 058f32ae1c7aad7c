"""The midpoint rule, its inverse, and the costate equations along the inverse.

With h_{-1} = h_0 the Euler start is a step like any other, so one rule covers the whole chain:

    state       h_{k+1} = h_{k-1} + [τ f(u_k, h_k, θ)]          [·] rounds to the grid, if there is one
    rebuilt     h_{k-1} = h_{k+1} − [τ f(u_k, h_k, θ)]          f is evaluated at the same point both ways
    costates    z_k ← z_k + τ ∂H/∂h_k,   z_{k-1} = z_{k+1},   ω ← ω + τ ∂H/∂θ,   H = ⟨z_{k+1}, f(u_k, h_k, θ)⟩

Along the echo (k falling) z_k is the derivative of the loss with respect to h_k: the sign s of the costate
equations and the reversed direction of time cancel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hamlearn._base.numbers import as_number
from hamlearn.errors import ConfigError, SampleError
from hamlearn.reversible._grid import Grid


def require_tau(tau: object) -> None:
    """Raise `ConfigError` if `tau` is not a time step."""
    if not 0 < as_number(tau) < math.inf:
        raise ConfigError(f"tau={tau!r} is not a time step: give a positive, finite number.")


def require_rate(k: int, v: object) -> None:
    """Raise `SampleError` if `v` cannot be the rate of change of a state."""
    if not isinstance(v, Tensor) or v.is_complex():
        found = f"a tensor of {v.dtype}" if isinstance(v, Tensor) else f"a value of type {type(v).__name__}"
        raise SampleError(
            f"the field of step {k} returned {found}: a field returns the rate of change of the state, one tensor "
            "of real numbers."
        )


@dataclass(frozen=True)
class Rule:
    """One step of the midpoint rule, forward and back.

    Attributes:
        tau: the time step τ.
        grid: where the states live; None lets them be any float.
        dtype: what the states are held in.
        shown: what the field is given; differs from `dtype` when half-precision fields have float32 states.
    """

    tau: float
    grid: Grid | None
    dtype: torch.dtype
    shown: torch.dtype

    def start(self, h0: Tensor) -> Tensor:
        """h_0 as the chain holds it."""
        h0 = h0.to(self.dtype)
        if self.grid is None:
            return h0
        return self.grid.straight_through(h0)

    def increment(self, k: int, h: Tensor, v: Tensor) -> Tensor:
        """[τ v] for the rate v = f(u_k, h_k, θ), differentiable if v is."""
        require_rate(k, v)
        if v.shape != h.shape:
            raise SampleError(
                f"the field of step {k} returned shape {tuple(v.shape)} for a state of shape {tuple(h.shape)}: "
                "a field returns the rate of change of the state, so the shapes must agree. Change sizes outside "
                "of the chain."
            )
        v = v.to(self.dtype)
        if v.stride() != h.stride():
            # All states lie in memory as the first one does: a kernel may give other bits for another layout.
            v = torch.empty_like(h.detach()).copy_(v)
        if self.grid is None:
            return v * self.tau
        if v.requires_grad:
            return self.grid.straight_through(v * self.tau)
        return self.grid.snap(v, self.tau)

    @staticmethod
    def pullback(v: Tensor, leaves: Sequence[Tensor], z: Tensor) -> Sequence[Tensor | None]:
        """∂⟨z, v⟩/∂x for each leaf x of the graph of v; None where v does not depend on x."""
        if not v.requires_grad:
            return [None] * len(leaves)
        return torch.autograd.grad(v, leaves, z.to(v.dtype), allow_unused=True)
