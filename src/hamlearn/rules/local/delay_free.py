"""A time-variant transition: one layer moves at each step, so that outputs carry no delay."""

from __future__ import annotations

from hamlearn.rules.local.costates import Increment, add_at
from hamlearn.rules.local.local_system import LocalSystem
from hamlearn.rules.local.rule import Done, Now, Proposal, check_shapes
from hamlearn.rules.local.unaligned import Nodes, Unaligned, joined, seen
from hamlearn.sample import Sample


class DelayFree(Unaligned):
    """At step κ only layer κ mod ν moves: f_h = 1_{κ mod ν} ⊙ (−h + ĥ)/τ, in parallel order.

    Each sample is shown for ν steps; then the state is what a feed-forward pass would give. Its loss is taken on
    that state, and enters the costates in the step that follows, the first whose right-hand side sees it. What
    the loss says of weights that it reads itself enters ω at once.

    Args:
        system: The nodes and their weights.
        literal: The loss enters at every κ, as it is written in the paper, with the output as it is then, which at
            all but the first κ belongs partly to the sample before.
    """

    def __init__(self, system: LocalSystem, *, literal: bool = False) -> None:
        super().__init__(system)
        self.ticks, self.literal = len(system.cells), literal

    def tick(self, carry: Nodes, sample: Sample | None, now: Now) -> Proposal[Nodes]:
        """One step of one layer; all costates dissipate. A boundary means nothing: each sample is a new pass."""
        assert sample is not None
        system, cells, rates, turn = self.system, self.system.cells, now.rates, carry.layer
        cell, z0, shown = cells[turn], carry.z[turn], seen(cells, carry.h)
        values = system.wiring.values(sample.u) | shown
        trace = cell.trace(cell.gather(carry.h[turn], [values[source] for source in cell.sources]))
        h1 = list(carry.h)
        h1[turn] = trace.state()
        check_shapes(cells, h1, carry.h)
        grads: list[Increment | None] = [None] * len(system.theta)
        gain = rates.stride * rates.phi
        L, dL = system.losses(shown, sample.target, gain, grads) if self.literal else (None, carry.waiting)
        flow = {name: gain * grad for name, grad in dL.items()}
        # Only the layer that moves meets its f_h: to the others ∂R/∂ḣ means nothing.
        costs = self.costs(sample, carry.h, h1, carry.h, now, grads)
        met = z0 if costs is None else joined(carry.z, costs, rates)[turn]
        messages, increments = trace.both(met)
        add_at(grads, cell.slots, increments)
        outside = cell.scatter(messages)[1]
        for name, message in ((cell.name, -cell.last(met)), *zip(cell.parents, outside, strict=True)):
            flow[name] = flow[name] + message if name in flow else message
        keep = 1 - rates.stride * rates.eta_z
        z1 = [
            keep * z - rates.s * c.join(None, flow[c.name]) if c.name in flow else keep * z
            for c, z in zip(cells, carry.z, strict=True)
        ]
        if costs is not None:
            z1 = [z - rates.s * rates.stride * own for z, own in zip(z1, costs.by_h, strict=True)]
        if turn < self.ticks - 1:
            return Proposal(Nodes(h1, z1, layer=turn + 1), grads, h1, z1, L, bool(dL), None)
        # The report shows the loss of the whole pass; literally, it enters with the first step of the next one.
        L, waiting = system.losses(seen(cells, h1), sample.target, gain, [*grads] if self.literal else grads)
        after = Nodes(h1, z1, {} if self.literal else waiting)
        done = Done(now.given or sample, now.t, system.read(seen(cells, h1)), L)
        return Proposal(after, grads, h1, z1, L, bool(dL), done)
