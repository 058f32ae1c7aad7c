"""A local rule as an order of the compiled engine, which records it like any other."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.scale import scaled
from hamlearn.engine.recorded.trace import SubstitutedWeights
from hamlearn.loops import UnsupportedError
from hamlearn.rules.local.aligned import Aligned
from hamlearn.rules.local.costates import Increment, dense
from hamlearn.rules.local.local_system import LocalSystem
from hamlearn.rules.local.rule import LocalRule, Now
from hamlearn.rules.system import Instant, Order, Outcome
from hamlearn.sample import Sample
from hamlearn.state.carry import Carry


class RecordedRule(Order):
    """The ticks of one showing of a sample: one, or one for each layer if the layers take turns.

    Args:
        rule: The local rule.
    """

    system: LocalSystem  # type: ignore[assignment]

    def __init__(self, rule: LocalRule[Any]) -> None:
        super().__init__(rule.system)  # type: ignore[arg-type]
        self.rule = rule

    @torch.no_grad()
    def propose(self, carry: Carry, now: Instant) -> Outcome:
        """States, costates and weights after these ticks, and what was shown."""
        system, rates = self.system, now.rates
        rule, due = copy.copy(self.rule), now.sample.target
        # The target is that of a sample that entered some ticks ago, unless samples are compared as they enter.
        own = Sample(now.sample.u, None if rule.due else due)
        if isinstance(rule, Aligned):
            # A recorded tick draws no random numbers.
            rule.draw_spans = {}
        theta, omega, done = list(system.theta), list(carry.omega), None
        held = rule.lent(carry, rates.stride, due)
        for _ in range(rule.ticks):
            rule.system = system.over(theta)
            with self._lending(theta):
                proposal = rule.tick(held, own, Now(0.0, rates))
            held, done = proposal.carry, proposal.done or done
            new = _costates(omega, proposal.grads, 1 - rates.stride * rates.eta, -float(rates.s))
            moving = new if system.order == "sequential" else omega
            theta = [x.detach() for x in system.velocity.moved(theta, moving, 0.0, rates.stride)]
            theta, omega = [x.requires_grad_() if x.is_leaf else x for x in theta], new
        if done is None:
            raise UnsupportedError("its ticks show no output")
        coupling = None if done.coupling is None else done.coupling()
        after = rule.flat(held, omega)
        return Outcome(after.h, after.z, omega, done.y, done.loss, coupling, theta=theta, E=after.E)

    @contextmanager
    def _lending(self, theta: list[Tensor]) -> Iterator[None]:
        """Within, the network and functions that hold its weights have these, and gradients pass to them."""
        slots, named = self.system.slots, self.system.held(theta)
        pairs = [(own, named[name]) for name, own in slots.parameters.items() if name in named]
        with slots.exchanged(named), SubstitutedWeights(pairs, ()):
            yield

    def start(self, u: Any, h: list[Tensor], spec: trees.Spec) -> list[Tensor]:
        """The states that a sequence begins with."""
        cells, wiring = self.system.cells, self.system.wiring
        zeros = {
            name: torch.zeros_like(part)
            for cell, x in zip(cells, h, strict=True)
            for name, part in zip(cell.names, cell.split(x), strict=True)
        }
        given = {n: (x if isinstance(x, Tensor) else x(u)).detach() for n, x in wiring.h0.items()}
        return [cell.start(zeros | given) for cell in cells]

    def also_reads(self) -> dict[str, Any]:
        """First states, and how outputs are read."""
        wiring = self.system.wiring
        return {"h0": dict(wiring.h0), "the reading of the output": wiring.read}


def _costates(omega: list[Tensor], grads: list[Increment | None], decay: float, gain: float) -> list[Tensor]:
    """ω⁺ = decay·ω + gain·g, and decay·ω where g is missing."""
    pairs = zip(scaled(omega, decay), grads, strict=True)
    return [w if g is None else w + gain * dense(g) for w, g in pairs]
