"""A time-variant transition: one layer moves at each step, so that outputs carry no delay."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hamlearn.rules.local.costates import Increment, add_at
from hamlearn.rules.local.local_system import LocalSystem
from hamlearn.rules.local.rule import Done, Now, Proposal, check_shapes
from hamlearn.rules.local.unaligned import Nodes, Unaligned, seen
from hamlearn.sample import Sample


class DelayFree(Unaligned):
    """At step κ only layer κ mod ν moves: f_h = 1_{κ mod ν} ⊙ (−h + ĥ)/τ, in parallel order.

    Each sample is shown for ν steps; then the state is what a feed-forward pass would give. Its loss is taken on
    that state, and enters the costates in the step that follows, the first whose right-hand side sees it. What
    the loss says of weights that it reads itself enters ω at once.
    """

    def __init__(self, system: LocalSystem) -> None:
        super().__init__(system)
        self.ticks = len(system.cells)

    def begin(self, carry: Nodes, u: Any) -> Nodes:
        """First states, zero costates and no loss, if there are none yet."""
        carry = super().begin(carry, u)
        return carry if carry.waiting else carry._replace(waiting=self.waiting(carry.h, {}))

    def waiting(self, h: list[Tensor], dL: dict[str, Tensor]) -> list[Tensor]:
        """∂L/∂h of each output, zeros where there is none."""
        shown = seen(self.system.cells, h)
        return [dL.get(name, torch.zeros_like(shown[name])) for name in self.system.wiring.outputs]

    def tick(self, carry: Nodes, sample: Sample | None, now: Now) -> Proposal[Nodes]:
        """One step of one layer; all costates dissipate. A boundary means nothing: each sample is a new pass."""
        assert sample is not None
        system, cells, rates = self.system, self.system.cells, now.rates
        cell, z0 = cells[carry.layer], carry.z[carry.layer]
        values = system.wiring.values(sample.u) | seen(cells, carry.h)
        trace = cell.trace([values[source] for source in cell.sources])
        h1 = list(carry.h)
        h1[carry.layer] = trace.state()
        check_shapes(cells, h1, carry.h)
        messages, increments = trace.both(z0)
        grads: list[Increment | None] = [None] * len(system.theta)
        add_at(grads, cell.slots, increments)
        flow: dict[str, Tensor] = {}
        gain = rates.stride * rates.phi
        if carry.entering:
            flow = {n: gain * dL for n, dL in zip(system.wiring.outputs, carry.waiting, strict=True)}
        for name, message in ((cell.name, -z0), *zip(cell.parents, messages, strict=True)):
            flow[name] = flow[name] + message if name in flow else message
        keep = 1 - rates.stride * rates.eta_z
        z1 = [
            keep * z - rates.s * flow[c.name] if c.name in flow else keep * z
            for c, z in zip(cells, carry.z, strict=True)
        ]
        if carry.layer < self.ticks - 1:
            after = Nodes(h1, z1, carry.waiting, layer=carry.layer + 1)
            return Proposal(after, grads, h1, z1, None, carry.entering, None)
        shown = seen(cells, h1)
        L, dL = system.losses(shown, sample.target, gain, grads)
        done = Done(now.given or sample, now.t, system.read(shown), L)
        after = Nodes(h1, z1, self.waiting(h1, dL), bool(dL))
        return Proposal(after, grads, h1, z1, L, carry.entering, done)
