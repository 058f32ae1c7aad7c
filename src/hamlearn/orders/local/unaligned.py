"""Plain HL over a whole graph: every node computes from its neighbours' states of the tick before."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from hamlearn._base.claims import Tensors, flag, record
from hamlearn._base.scale import is_one
from hamlearn.errors import SampleError
from hamlearn.orders.local.local_system import LocalSystem
from hamlearn.orders.local.nodes import Cell
from hamlearn.orders.local.outer import Outer
from hamlearn.orders.local.proposal import Done, Proposal, add_at
from hamlearn.orders.local.stacked import LayerStack
from hamlearn.rates import Rates
from hamlearn.sample import Sample


class Unaligned:
    """Parallel (Algorithm alg:hlz) or sequential order over all nodes, with f_h = (−h + ĥ)/τ (eq:euleraa).

    z_p⁺ = z_p − s(τφ ∂L/∂h_p + Σ_c z_c·∂ĥ_c/∂h_p − z_p) − τη_z z_p and ω_c gets −s z_c·∂ĥ_c/∂θ_c: a node's
    update takes its own state and costate and those of its neighbours, nothing else.
    """

    ticks = 1

    def __init__(self, system: LocalSystem) -> None:
        self.system = system
        self.h: list[Tensor] = []
        self.z: list[Tensor] = []

    def own(self, sample: Sample) -> Sample:
        """What ticks may keep of a sample: it is not needed beyond its own step, so no copy is made."""
        return sample

    def begin(self, u: Any) -> None:
        """First states and zero costates, where there are none yet."""
        if not self.h:
            h0 = self.system.wiring.start(u)
            h = [cell.start(h0).clone() for cell in self.system.cells]
            self.h, self.z = h, [torch.zeros_like(x) for x in h]

    def reset(self) -> None:
        """Start afresh with the next sample."""
        self.h, self.z = [], []

    def seen(self, h: list[Tensor]) -> dict[str, Tensor]:
        """What the nodes show to each other."""
        return {cell.name: cell.last(x) for cell, x in zip(self.system.cells, h, strict=True)}

    def tick(self, sample: Sample, t: float, rates: Rates, *, last: bool) -> Proposal:
        """One tick of all nodes; with the last tick of the last sample of a sequence states are forgotten."""
        system, cells = self.system, self.system.cells
        sequential = system.order == "sequential"
        shown = self.seen(self.h)
        over = last and sample.boundary
        values = self.inputs(sample) | shown
        traces = [
            cell.trace(cell.gather(h, [values[s] for s in cell.sources]))
            for cell, h in zip(cells, self.h, strict=True)
        ]
        h1 = [trace.state() for trace in traces]
        check_shapes(cells, h1, self.h)
        self.states_leave(h1, over=over)
        if sequential:
            shown = self.seen(h1)
        L, dL = system.losses(shown, sample.target)
        gain = rates.stride * rates.phi
        incoming = {name: grad if is_one(gain) else gain * grad for name, grad in dL.items()}
        grads: list[Tensor | Outer | None] = [None] * len(system.theta)
        inner: list[Tensor | None] = []
        for cell, trace, z in zip(cells, traces, self.z, strict=True):
            if sequential:
                messages = trace.messages(z)
            else:
                messages, increments = trace.both(z)
                add_at(grads, cell.slots, increments)
            inside, outside = cell.scatter(messages)
            inner.append(inside)
            for parent, message in zip(cell.parents, outside, strict=True):
                incoming[parent] = incoming[parent] + message if parent in incoming else message
        self.costates_meet(incoming)
        z1 = [
            self._costate(cell, z, inside, incoming.get(cell.name), rates)
            for cell, z, inside in zip(cells, self.z, inner, strict=True)
        ]
        if sequential:
            for cell, trace, z in zip(cells, traces, z1, strict=True):
                add_at(grads, cell.slots, trace.gradients(z))
        done = Done(sample, t, system.read(shown), L, partial(coupling, self.z, self.h, h1, rates.tau))

        def commit() -> None:
            self.h, self.z = ([], []) if over else (h1, z1)

        return Proposal(grads, h1, z1, L, L is not None, commit, done)

    def inputs(self, sample: Sample) -> dict[str, Any]:
        """What enters from outside, by name; for a part of a graph, the states that its neighbours show."""
        return self.system.wiring.values(sample.u)

    def states_leave(self, h1: list[Tensor], *, over: bool) -> None:
        """A part of a graph: hand on the states that this tick has computed, unless a sequence is over."""

    def costates_meet(self, incoming: dict[str, Tensor]) -> None:
        """A part of a graph: hand on the messages to other parts, and add theirs to `incoming`."""

    def _costate(
        self, cell: Cell | LayerStack, z: Tensor, inner: Tensor | None, incoming: Tensor | None, rates: Rates
    ) -> Tensor:
        message = cell.join(inner, torch.zeros_like(cell.last(z)) if incoming is None else incoming)
        keep = 1 + rates.s - rates.stride * rates.eta_z
        if rates.s == 1:
            message = -message
        return message + keep * z if isinstance(keep, Tensor) or keep else message

    def snapshot(self, *, ticks: int) -> Any:
        """What `restore` takes; states are replaced, never written to."""
        return self.h, self.z

    def restore(self, snapshot: Any) -> None:
        """Return to an earlier moment."""
        self.h, self.z = snapshot

    def saved(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that a checkpoint has to hold: tensors, and the rest."""
        tensors = {f"h/{i}": h for i, h in enumerate(self.h)} | {f"z/{i}": z for i, z in enumerate(self.z)}
        return tensors, {"begun": bool(self.h)}

    def load(self, tensors: Tensors, header: Any) -> None:
        """Take what a checkpoint held, if it can have been saved here; raises `ValueError` where it cannot."""
        self._take(tensors, record(header, "the engine", "begun"))
        tensors.done()

    def _take(self, tensors: Tensors, header: dict[str, Any]) -> None:
        cells, device = self.system.cells, self.system.theta[0].device
        count = len(cells) if flag(header["begun"], "begun") else 0
        self.h = [tensors.keep(f"h/{i}", device) for i in range(count)]
        self.z = [tensors.keep(f"z/{i}", device, h) for i, h in enumerate(self.h)]
        for cell, h in zip(cells, self.h, strict=bool(count)):
            cell.check(h)

    def by_node(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """States and costates by node."""
        return named(self.system.cells, self.h), named(self.system.cells, self.z)


def named(cells: list[Cell | LayerStack], values: list[Tensor]) -> dict[str, Tensor]:
    """One tensor per node, by its name."""
    pairs = zip(cells, values, strict=bool(values))
    return {name: x for cell, value in pairs for name, x in zip(cell.names, cell.split(value), strict=True)}


def coupling(z: list[Tensor], h: list[Tensor], h1: list[Tensor], tau: float) -> Tensor:
    """⟨z, (−h + ĥ)/τ⟩ over all nodes."""
    first, *others = ((a * (c - b)).sum() for a, b, c in zip(z, h, h1, strict=True))
    total = sum(others, first)
    return total if is_one(tau) else total / tau


def check_shapes(cells: list[Cell | LayerStack], h1: list[Tensor], h: list[Tensor]) -> None:
    """Raise where a node's output changed its shape from one tick to the next."""
    for cell, new, old in zip(cells, h1, h, strict=True):
        if new.shape != old.shape:
            raise SampleError(
                f"node {cell.name!r} gave {list(new.shape)} where its state has {list(old.shape)}: the shape of "
                "the input changed. Keep the batch size; or mark the last sample of a sequence with "
                "boundary=True, or reset()"
            )
