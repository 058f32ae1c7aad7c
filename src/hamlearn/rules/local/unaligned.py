"""Plain HL over a whole graph: every node computes from its neighbours' states of the tick before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hamlearn._base.scale import Scale, is_one
from hamlearn.rates import Rates
from hamlearn.rules.local.costates import Increment, add_at
from hamlearn.rules.local.dense import Dense
from hamlearn.rules.local.local_system import Costs
from hamlearn.rules.local.nodes import Cell
from hamlearn.rules.local.rule import Done, LocalRule, Now, Proposal, check_shapes
from hamlearn.sample import Sample
from hamlearn.state.carry import Carry


class Nodes(NamedTuple):
    """State and costate of each cell; none before the first sample of a sequence.

    Attributes:
        h: States.
        z: Costates.
        waiting: Delay-free: ∂L/∂h by output after the last pass, which enters in the step that follows.
        layer: Delay-free: the layer that moves next.
    """

    h: list[Tensor]
    z: list[Tensor]
    waiting: dict[str, Tensor] = {}  # noqa: RUF012 (never written to)
    layer: int = 0


class Unaligned(LocalRule[Nodes]):
    """Parallel order (Algorithm 1 of the paper) or sequential order over all nodes, with f_h = (−h + ĥ)/τ.

    z_p⁺ = z_p − s(τφ ∂L/∂h_p + Σ_c z_c·∂ĥ_c/∂h_p − z_p) − τη_z z_p and ω_c gets −s z_c·∂ĥ_c/∂θ_c: a node's
    update takes its own state and costate and those of its neighbours, nothing else. A running cost R adds τ ∂R/∂h
    and τ ∂R/∂θ, and ∂R/∂ḣ joins z wherever z meets f_h.
    """

    def empty(self) -> Nodes:
        """No states."""
        return Nodes([], [])

    def begin(self, carry: Nodes, u: Any) -> Nodes:
        """First states and zero costates, if there are none yet."""
        if carry.h:
            return carry
        h0 = self.system.wiring.start(u)
        h = [cell.start(h0).clone() for cell in self.system.cells]
        return Nodes(h, [torch.zeros_like(x) for x in h])

    def tick(self, carry: Nodes, sample: Sample | None, now: Now) -> Proposal[Nodes]:
        """One tick of all nodes; with the last tick of the last sample of a sequence states are forgotten."""
        assert sample is not None
        system, cells, rates = self.system, self.system.cells, now.rates
        sequential = system.order == "sequential"
        shown = seen(cells, carry.h)
        over = now.last and sample.boundary
        values = system.wiring.values(sample.u) | shown
        traces = [
            cell.trace(cell.gather(h, [values[s] for s in cell.sources]))
            for cell, h in zip(cells, carry.h, strict=True)
        ]
        h1 = [trace.state() for trace in traces]
        check_shapes(cells, h1, carry.h)
        if sequential:
            shown = seen(cells, h1)
        gain = rates.stride * rates.phi
        grads: list[Increment | None] = [None] * len(system.theta)
        L, dL = system.losses(shown, sample.target, gain, grads)
        incoming = {name: grad if is_one(gain) else gain * grad for name, grad in dL.items()}
        # Loss and costates read the states before the tick, or in sequential order those after it.
        costs = self.costs(sample, carry.h, h1, h1 if sequential else carry.h, now, grads)
        met = carry.z if costs is None else joined(carry.z, costs, rates)
        inner: list[Tensor | None] = []
        for cell, trace, z in zip(cells, traces, met, strict=True):
            if sequential:
                messages = trace.messages(z)
            else:
                messages, increments = trace.both(z)
                add_at(grads, cell.slots, increments)
            inside, outside = cell.scatter(messages)
            inner.append(inside)
            for parent, message in zip(cell.parents, outside, strict=True):
                incoming[parent] = incoming[parent] + message if parent in incoming else message
        z1 = [
            _costate(cell, z, inside, incoming.get(cell.name), rates)
            for cell, z, inside in zip(cells, carry.z, inner, strict=True)
        ]
        if costs is not None:
            z1 = [z - rates.s * own for z, own in zip(z1, own_costs(costs, rates), strict=True)]
        if sequential:
            after = z1 if costs is None else joined(z1, costs, rates)
            for cell, trace, z in zip(cells, traces, after, strict=True):
                add_at(grads, cell.slots, trace.gradients(z))
        coupled = self.coupled(carry, h1, costs, rates.tau)
        done = Done(now.given or sample, now.t, system.read(shown), L, coupled)
        return Proposal(Nodes([], []) if over else Nodes(h1, z1), grads, h1, z1, L, L is not None, done)

    def costs(
        self,
        sample: Sample,
        h0: list[Tensor],
        h1: list[Tensor],
        h: list[Tensor],
        now: Now,
        grads: list[Increment | None],
    ) -> Costs | None:
        """The running cost at states `h` of a tick that leads from `h0` to `h1`."""
        if self.system.running_cost is None:
            return None
        tau = now.rates.tau
        slopes = [(b - a) / tau for a, b in zip(h0, h1, strict=True)]
        return self.system.costs(sample.u, h, slopes, now.rates.t, now.rates.stride, grads)

    def coupled(self, carry: Nodes, h1: list[Tensor], costs: Costs | None, tau: float) -> Callable[[], Tensor]:
        """⟨z, ḣ⟩ + R, worked out when it is asked for."""
        if costs is None:
            return partial(coupling, carry.z, carry.h, h1, tau)
        return lambda: coupling(carry.z, carry.h, h1, tau) + costs.R

    def by_node(self, carry: Nodes) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """States and costates by node."""
        return self.system.named(carry.h), self.system.named(carry.z)

    def flat(self, carry: Nodes, omega: list[Tensor]) -> Carry:
        """States and costates."""
        return Carry(list(carry.h), list(carry.z), omega, None)

    def view_of(self, flat: Carry, stride: Any = None, target: Any = None) -> Nodes:
        """The same."""
        return Nodes(flat.h, flat.z)


def seen(cells: Sequence[Cell | Dense], h: list[Tensor]) -> dict[str, Tensor]:
    """What the nodes show to each other."""
    return {cell.name: cell.last(x) for cell, x in zip(cells, h, strict=True)}


def joined(z: list[Tensor], costs: Costs, rates: Rates) -> list[Tensor]:
    """Costates as they meet f_h: z + ∂R/∂ḣ per unit of τ."""
    per_tau = rates.stride / rates.tau
    return [a + per_tau * p for a, p in zip(z, costs.by_rate, strict=True)]


def own_costs(costs: Costs, rates: Rates) -> list[Tensor]:
    """What R adds to each costate by itself: τ ∂R/∂h, and ∂R/∂ḣ by the −h of f_h."""
    per_tau = rates.stride / rates.tau
    return [rates.stride * a - per_tau * p for a, p in zip(costs.by_h, costs.by_rate, strict=True)]


def _costate(cell: Cell | Dense, z: Tensor, inner: Tensor | None, incoming: Tensor | None, rates: Rates) -> Tensor:
    message = cell.join(inner, torch.zeros_like(cell.last(z)) if incoming is None else incoming)
    keep: Scale = 1 + rates.s - rates.stride * rates.eta_z
    if rates.s == 1:
        message = -message
    return message + keep * z if isinstance(keep, Tensor) or keep else message


def coupling(z: list[Tensor], h: list[Tensor], h1: list[Tensor], tau: float) -> Tensor:
    """⟨z, (−h + ĥ)/τ⟩ over all nodes."""
    first, *others = ((a * (c - b)).sum() for a, b, c in zip(z, h, h1, strict=True))
    total = sum(others, first)
    return total if is_one(tau) else total / tau
