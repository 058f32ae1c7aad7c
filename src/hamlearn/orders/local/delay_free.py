"""A time-variant transition: one layer moves at each step, so that outputs carry no delay (eq:ffasd)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hamlearn._base.claims import Tensors, record, whole
from hamlearn.orders.local.local_system import LocalSystem
from hamlearn.orders.local.outer import Outer
from hamlearn.orders.local.proposal import Done, Proposal, add_at
from hamlearn.orders.local.unaligned import Unaligned, check_shapes
from hamlearn.rates import Rates
from hamlearn.sample import Sample


class DelayFree(Unaligned):
    """At step κ only layer κ mod ν moves: f_h = 1_{κ mod ν} ⊙ (−h + ĥ)/τ (eq:ffasd), in parallel order.

    Each sample is shown for ν steps; then the state is what a feed-forward pass would give. Its loss is taken on
    that state, and enters the costates in the step that follows, the first whose right-hand side sees it.
    """

    def __init__(self, system: LocalSystem) -> None:
        super().__init__(system)
        self.ticks = len(system.cells)
        self.kappa = 0
        self.pending: dict[str, Tensor] = {}

    def tick(self, sample: Sample, t: float, rates: Rates, *, last: bool) -> Proposal:
        """One step of one layer; all costates dissipate. A boundary means nothing: each sample is a pass anew."""
        system, cells = self.system, self.system.cells
        active = self.kappa % self.ticks
        cell = cells[active]
        values = system.wiring.values(sample.u) | self.seen(self.h)
        trace = cell.trace([values[source] for source in cell.sources])
        h1 = list(self.h)
        h1[active] = trace.state()
        check_shapes(cells, h1, self.h)
        messages, increments = trace.both(self.z[active])
        grads: list[Tensor | Outer | None] = [None] * len(system.theta)
        add_at(grads, cell.slots, increments)
        flow = {name: (rates.stride * rates.phi) * grad for name, grad in self.pending.items()}
        for name, message in ((cell.name, -self.z[active]), *zip(cell.parents, messages, strict=True)):
            flow[name] = flow[name] + message if name in flow else message
        keep = 1 - rates.stride * rates.eta_z
        z1 = [
            keep * z - rates.s * flow[c.name] if c.name in flow else keep * z
            for c, z in zip(cells, self.z, strict=True)
        ]
        L, dL, done = None, dict[str, Tensor](), None
        if active == self.ticks - 1:
            shown = self.seen(h1)
            L, dL = system.losses(shown, sample.target)
            done = Done(sample, t, system.read(shown), L)
        entered, kappa = bool(self.pending), self.kappa + 1

        def commit() -> None:
            self.h, self.z, self.pending, self.kappa = h1, z1, dL, kappa

        return Proposal(grads, h1, z1, L, entered, commit, done)

    def snapshot(self, *, ticks: int) -> Any:
        """What `restore` takes."""
        return self.h, self.z, self.pending, self.kappa

    def restore(self, snapshot: Any) -> None:
        """Return to an earlier moment."""
        self.h, self.z, self.pending, self.kappa = snapshot

    def saved(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that a checkpoint has to hold: tensors, and the rest."""
        tensors, header = super().saved()
        pending = {f"pending/{name}": grad for name, grad in self.pending.items()}
        return tensors | pending, header | {"kappa": self.kappa}

    def load(self, tensors: Tensors, header: Any) -> None:
        """Take what a checkpoint held, if it can have been saved here; raises `ValueError` where it cannot."""
        self._take(tensors, record(header, "the engine", "begun", "kappa"))
        self.kappa = whole(header["kappa"], "kappa")
        shown, arrived = self.seen(self.h) if self.h else {}, tensors.under("pending/")
        self.pending = {
            name: arrived.keep(name, shown[name].device, shown[name])
            for name in self.system.wiring.outputs
            if name in arrived and name in shown
        }
        arrived.done()
        tensors.done()
        if self.kappa % self.ticks or bool(self.kappa) > bool(self.h):
            raise ValueError(f"kappa is {self.kappa} between two samples of {self.ticks} layers")

    def reset(self) -> None:
        """Start afresh with the next sample."""
        self.h, self.z, self.pending, self.kappa = [], [], {}, 0
