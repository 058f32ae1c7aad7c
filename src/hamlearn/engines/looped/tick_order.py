"""Ticks of a local learner as an order of the compiled engine, which is recorded as any other."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.scale import scaled
from hamlearn._base.slots import Slots
from hamlearn.engines.looped.registers import Compared, Registers, Shown
from hamlearn.engines.recorded.trace import Lent
from hamlearn.loops import UnsupportedError
from hamlearn.orders.local.local_system import LocalSystem
from hamlearn.orders.local.outer import Outer, dense
from hamlearn.orders.local.proposal import Done
from hamlearn.orders.system import Instant, Order, Outcome
from hamlearn.sample import Sample
from hamlearn.state.carry import Carry
from hamlearn.theory.drive import Drive


class TickSystem:
    """What is learned locally, as the compiled engine knows a system.

    Args:
        local: Cells, and their weights laid out in slots.
    """

    def __init__(self, local: LocalSystem) -> None:
        self.local = local
        self.network, self.loss, self.hyper = local.wiring.root, local.loss, local.hyper
        self.slots = Slots(self.network)
        self.theta: list[Tensor] = list(local.theta)
        self.velocity = local.velocity
        self.drive: Drive | None = None

    def by_name(self, theta: list[Tensor]) -> dict[str, Tensor]:
        """Tensors in the place of the weights, as the network names them."""
        return self.local.by_name(list(theta))

    def over(self, theta: list[Tensor]) -> LocalSystem:
        """The same cells with other weights."""
        local = copy.copy(self.local)
        local.theta = theta
        local.cells = [cell.over([theta[slot] for slot in cell.slots]) for cell in local.cells]
        return local


class TickOrder(Order):
    """The ticks of one pass: one where all nodes move in every tick, one for each layer where they take turns.

    Args:
        system: What is learned.
        held: How what the order holds is carried from step to step.
    """

    system: TickSystem  # type: ignore[assignment]

    def __init__(self, system: TickSystem, held: Shown | Registers) -> None:
        super().__init__(system)  # type: ignore[arg-type]
        self.held = held
        self.ticks = held.order.ticks

    @torch.no_grad()
    def propose(self, carry: Carry, now: Instant) -> Outcome:
        """States, costates and weights after these ticks, and what was shown."""
        system, rates, sample = self.system, now.rates, now.sample
        theta, omega = list(system.theta), carry.omega
        aligned = isinstance(self.held, Registers)
        # The sample that is compared with its target entered some ticks ago, but for a graph of one node.
        target = self._tried_on_entry(carry, sample.target)
        own = Sample(sample.u, target if self.held.due == 0 else None)
        extra = {"given": None} if aligned else {}
        done: Done | None = None
        order = self.held.lent((carry.h, carry.z), rates, target)
        for tick in range(self.ticks):
            order.system = system.over(theta)
            with self._lending(theta) if tick else nullcontext():
                proposal = order.tick(own, 0.0, rates, last=True, **extra)
            proposal.commit()
            done = proposal.done or done
            new = _costates(omega, proposal.grads, 1 - rates.stride * rates.eta, -float(rates.s))
            moving = new if system.local.order == "sequential" else omega
            theta = [x.detach() for x in system.velocity.moved(theta, moving, 0.0, rates.stride)]
            theta, omega = [x.requires_grad_() if x.is_leaf else x for x in theta], new
        if done is None:
            raise UnsupportedError("its ticks show no output")
        coupling = None if done.coupling is None else done.coupling()
        h, z = self.held.taken(order)
        return Outcome(h, z, omega, done.y, done.loss, coupling, theta=theta)

    @contextmanager
    def _lending(self, theta: list[Tensor]) -> Iterator[None]:
        """Within, the network has weights that have moved since the step began, and so has who holds one."""
        slots, named = self.system.slots, self.system.by_name(theta)
        pairs = [(own, named[name]) for name, own in slots.parameters.items() if name in named]
        with slots.exchanged(named), Lent(pairs, ()):
            yield

    def _tried_on_entry(self, carry: Carry, target: Any) -> Any:
        """What the output is compared with in this step; whether the target that enters can be is seen before."""
        if not isinstance(target, Compared):
            return target
        assert isinstance(self.held, Registers)
        local, (name,) = self.system.local, self.system.local.wiring.outputs
        register = carry.h[list(self.held.states).index(name)]
        local.compare({name: torch.zeros_like(register[0])}, local.targets(target.entering))
        return None if target.due == () else target.due

    def start(self, u: Any, h: list[Tensor], spec: trees.Spec) -> list[Tensor]:
        """The states that a sequence begins with."""
        assert isinstance(self.held, Shown)
        return self.held.start(u, (h, []))

    def also_reads(self) -> dict[str, Any]:
        """First states, and how outputs are read."""
        wiring = self.system.local.wiring
        return {"h0": dict(wiring.h0), "the reading of the output": wiring.read}


def _costates(omega: list[Tensor], grads: list[Tensor | Outer | None], decay: float, gain: float) -> list[Tensor]:
    """ω⁺ = decay·ω + gain·g, and decay·ω where g is missing."""
    pairs = zip(scaled(omega, decay), grads, strict=True)
    return [w if g is None else w + gain * dense(g) for w, g in pairs]
