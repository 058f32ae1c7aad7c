"""A time-variant transition: one layer moves at each step, so that outputs carry no delay."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hamlearn.rules.local.costates import Increment, add_at
from hamlearn.rules.local.local_system import LocalSystem
from hamlearn.rules.local.rule import Done, Flat, LocalRule, Now, Proposal, check_shapes, named
from hamlearn.rules.local.unaligned import first_states, loaded_nodes, seen
from hamlearn.sample import Sample
from hamlearn.state.tensors import Tensors


class Pass(NamedTuple):
    """What a net without delays carries.

    Attributes:
        h: States.
        z: Costates.
        waiting: ∂L/∂h of each output after the last pass, which enters in the step that follows; zeros if there
            is none.
        entering: Whether there is one.
        layer: The layer that moves next.
    """

    h: list[Tensor]
    z: list[Tensor]
    waiting: list[Tensor]
    entering: bool = False
    layer: int = 0


class DelayFree(LocalRule[Pass]):
    """At step κ only layer κ mod ν moves: f_h = 1_{κ mod ν} ⊙ (−h + ĥ)/τ, in parallel order.

    Each sample is shown for ν steps; then the state is what a feed-forward pass would give. Its loss is taken on
    that state, and enters the costates in the step that follows, the first whose right-hand side sees it. What
    the loss says of weights that it reads itself enters ω at once.
    """

    def __init__(self, system: LocalSystem) -> None:
        super().__init__(system)
        self.ticks = len(system.cells)

    def empty(self) -> Pass:
        """No states."""
        return Pass([], [], [])

    def begin(self, carry: Pass, u: Any) -> Pass:
        """First states and zero costates, if there are none yet."""
        if carry.h:
            return carry
        h = first_states(self.system, u)
        return Pass(h, [torch.zeros_like(x) for x in h], self._waiting(h, {}))

    def _waiting(self, h: list[Tensor], dL: dict[str, Tensor]) -> list[Tensor]:
        shown = seen(self.system.cells, h)
        return [dL.get(name, torch.zeros_like(shown[name])) for name in self.system.wiring.outputs]

    def tick(self, carry: Pass, sample: Sample | None, now: Now) -> Proposal[Pass]:
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
            after = Pass(h1, z1, carry.waiting, layer=carry.layer + 1)
            return Proposal(after, grads, h1, z1, None, carry.entering, None)
        shown = seen(cells, h1)
        L, dL = system.losses(shown, sample.target, gain, grads)
        if system.known is not None:
            dL = {name: system.known.to(x) * x for name, x in dL.items()}
        done = Done(sample if now.given is None else now.given, now.t, system.read(shown), L)
        after = Pass(h1, z1, self._waiting(h1, dL), bool(dL))
        return Proposal(after, grads, h1, z1, L, carry.entering, done)

    def by_node(self, carry: Pass) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """States and costates by node."""
        return named(self.system.cells, carry.h), named(self.system.cells, carry.z)

    def flat(self, carry: Pass) -> Flat:
        """States, costates, and what waits."""
        return Flat(list(carry.h), list(carry.z), list(carry.waiting))

    def lent(self, flat: Flat, stride: Any = None, target: Any = None) -> Pass:
        """The beginning of a pass."""
        return Pass(flat.h, flat.z, flat.memory, entering=True)

    def saved(self, carry: Pass) -> tuple[dict[str, Tensor], Any]:
        """Tensors by number of the cell, and what waits by output."""
        tensors = {f"h/{i}": h for i, h in enumerate(carry.h)} | {f"z/{i}": z for i, z in enumerate(carry.z)}
        if carry.entering:
            tensors |= {f"waiting/{i}": x for i, x in enumerate(carry.waiting)}
        return tensors, {"begun": bool(carry.h)}

    def loaded(self, tensors: Tensors, header: Any) -> Pass:
        """What `saved` returned."""
        h, z = loaded_nodes(self.system, tensors, header)
        waiting = self._waiting(h, {}) if h else []
        entering = bool(h) and "waiting/0" in tensors
        if entering:
            waiting = [tensors.keep(f"waiting/{i}", x.device, x) for i, x in enumerate(waiting)]
        return Pass(h, z, waiting, entering)
