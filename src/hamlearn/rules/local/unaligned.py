"""Plain HL over a whole graph: every node computes from its neighbours' states of the tick before."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hamlearn._base.scale import is_one
from hamlearn.rates import Rates
from hamlearn.rules.local.costates import Increment, add_at
from hamlearn.rules.local.nodes import Cell
from hamlearn.rules.local.rule import Done, LocalRule, Now, Proposal, check_shapes, named
from hamlearn.rules.local.stacked import LayerStack
from hamlearn.sample import Sample
from hamlearn.state.carry import Carry


class Nodes(NamedTuple):
    """State and costate of each cell; none before the first sample of a sequence.

    Attributes:
        h: States.
        z: Costates.
        waiting: Delay-free: ∂L/∂h of each output after the last pass, which enters in the step that follows.
        entering: Delay-free: whether there is one; else they are zeros.
        layer: Delay-free: the layer that moves next.
    """

    h: list[Tensor]
    z: list[Tensor]
    waiting: Sequence[Tensor] = ()
    entering: bool = False
    layer: int = 0


class Unaligned(LocalRule[Nodes]):
    """Parallel order (Algorithm 1 of the paper) or sequential order over all nodes, with f_h = (−h + ĥ)/τ.

    z_p⁺ = z_p − s(τφ ∂L/∂h_p + Σ_c z_c·∂ĥ_c/∂h_p − z_p) − τη_z z_p and ω_c gets −s z_c·∂ĥ_c/∂θ_c: a node's
    update takes its own state and costate and those of its neighbours, nothing else.
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
        values = self.inputs(sample) | shown
        traces = [
            cell.trace(cell.gather(h, [values[s] for s in cell.sources]))
            for cell, h in zip(cells, carry.h, strict=True)
        ]
        h1 = [trace.state() for trace in traces]
        check_shapes(cells, h1, carry.h)
        self.states_leave(h1, over=over)
        if sequential:
            shown = seen(cells, h1)
        gain = rates.stride * rates.phi
        grads: list[Increment | None] = [None] * len(system.theta)
        L, dL = system.losses(shown, sample.target, gain, grads)
        incoming = {name: grad if is_one(gain) else gain * grad for name, grad in dL.items()}
        inner: list[Tensor | None] = []
        for cell, trace, z in zip(cells, traces, carry.z, strict=True):
            if sequential:
                messages = trace.messages(z)
            else:
                messages, increments = trace.both(z)
                add_at(grads, cell.slots, increments)
            inside, outside = cell.scatter(messages)
            inner.append(inside)
            for parent, message in zip(cell.parents, outside, strict=True):
                incoming[parent] = incoming[parent] + message if parent in incoming else message
        self.costates_meet(carry, incoming)
        z1 = [
            _costate(cell, z, inside, incoming.get(cell.name), rates)
            for cell, z, inside in zip(cells, carry.z, inner, strict=True)
        ]
        if sequential:
            for cell, trace, z in zip(cells, traces, z1, strict=True):
                add_at(grads, cell.slots, trace.gradients(z))
        coupled = partial(coupling, carry.z, carry.h, h1, rates.tau)
        done = Done(now.given or sample, now.t, system.read(shown), L, coupled)
        after = Nodes([], []) if over else Nodes(h1, z1)
        return Proposal(after, grads, h1, z1, L, L is not None, done)

    def inputs(self, sample: Sample) -> dict[str, Any]:
        """What enters from outside, by name; for a part of a graph, the states that its neighbours show."""
        return self.system.wiring.values(sample.u)

    def states_leave(self, h1: list[Tensor], *, over: bool) -> None:
        """A part of a graph: hand on the states that this tick has computed, unless a sequence is over."""

    def costates_meet(self, carry: Nodes, incoming: dict[str, Tensor]) -> None:
        """A part of a graph: hand on the messages to other parts, and add theirs to `incoming`."""

    def by_node(self, carry: Nodes) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """States and costates by node."""
        return named(self.system.cells, carry.h), named(self.system.cells, carry.z)

    def flat(self, carry: Nodes, omega: list[Tensor]) -> Carry:
        """States, costates and what waits."""
        return Carry(list(carry.h), list(carry.z), omega, None, E=list(carry.waiting))

    def lent(self, flat: Carry, stride: Any = None, target: Any = None) -> Nodes:
        """The same."""
        return Nodes(flat.h, flat.z, flat.E, entering=bool(flat.E))


def seen(cells: list[Cell | LayerStack], h: list[Tensor]) -> dict[str, Tensor]:
    """What the nodes show to each other."""
    return {cell.name: cell.last(x) for cell, x in zip(cells, h, strict=True)}


def _costate(
    cell: Cell | LayerStack, z: Tensor, inner: Tensor | None, incoming: Tensor | None, rates: Rates
) -> Tensor:
    message = cell.join(inner, torch.zeros_like(cell.last(z)) if incoming is None else incoming)
    keep = 1 + rates.s - rates.stride * rates.eta_z
    if rates.s == 1:
        message = -message
    return message + keep * z if isinstance(keep, Tensor) or keep else message


def coupling(z: list[Tensor], h: list[Tensor], h1: list[Tensor], tau: float) -> Tensor:
    """⟨z, (−h + ĥ)/τ⟩ over all nodes."""
    first, *others = ((a * (c - b)).sum() for a, b, c in zip(z, h, h1, strict=True))
    total = sum(others, first)
    return total if is_one(tau) else total / tau
