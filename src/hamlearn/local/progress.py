"""Ticks as they are taken: proposed, looked at, and accepted or undone."""

from __future__ import annotations

from typing import Any

import torch

from hamlearn.errors import NonFiniteError
from hamlearn.hyper import Overshoot, Rates
from hamlearn.local.aligned import Aligned
from hamlearn.local.delay_free import DelayFree
from hamlearn.local.finite import is_finite, nonfinite_message
from hamlearn.local.proposal import Done, Omega, Proposal, costate
from hamlearn.local.system import System
from hamlearn.local.unaligned import Unaligned
from hamlearn.state import Sample, StepReport


class Progress:
    """Time, ω and θ, moved tick by tick with what an engine proposes for the nodes.

    Attributes:
        engine: What computes the nodes.
        omega: Costate of the weights, by slot.
        t: Time.
        updates: Weight updates that a loss has entered.
    """

    def __init__(self, system: System, engine: Unaligned | Aligned | DelayFree, on_nonfinite: str) -> None:
        self.system = system
        self.engine: Any = engine
        self.aligned = isinstance(engine, Aligned)
        self.on_nonfinite = on_nonfinite
        self.omega: list[Omega] = [torch.zeros_like(w, requires_grad=False) for w in system.theta]
        self.t = 0.0
        self.updates = 0
        self._constant = system.hyper.constant()
        self._rates: dict[tuple[float | None, bool], Rates] = {}
        self._overshoot = Overshoot(system.hyper)
        self._buffers = list(system.wiring.root.buffers())

    def show(self, sample: Sample | None, ticks: int) -> StepReport | None:
        """Some ticks of one sample, all of them or none; the report of the last one that had something to tell."""
        undo = self._snapshot(weights=ticks > 1)
        started, told = False, None
        try:
            started = sample is not None and self.engine.begin(sample.u)
            for tick in range(ticks):
                with torch.no_grad():
                    report = self._tick(sample, last=tick == ticks - 1)
                if report is not None and report.skipped:
                    self._restore(undo, reset=started or self.aligned)
                    return report
                told = report or told
        except BaseException:
            self._restore(undo, reset=started)
            raise
        return told

    def _tick(self, sample: Sample | None, *, last: bool) -> StepReport | None:
        system, t = self.system, self.t
        rates = self._rates_at(None if sample is None else sample.tau)
        system.velocity.check(t)
        extra = {"reported": last} if self.aligned else {}
        proposal: Proposal = self.engine.tick(sample, t, rates, **extra)
        done = proposal.done
        omega = costate(self.omega, proposal.grads, 1 - rates.stride * rates.eta, -float(rates.s))
        if self.on_nonfinite != "ignore" and not is_finite(proposal, omega):
            if self.on_nonfinite == "raise":
                raise NonFiniteError(nonfinite_message(proposal, omega, t, self.aligned))
            told = done or Done(sample, t, None, None)  # type: ignore[arg-type]
            return StepReport(told.t, told.y, told.loss, told.sample, skipped=True)
        moving = omega if system.order == "sequential" else self.omega
        system.move_(moving, t, rates.stride)
        proposal.commit()
        self.omega = omega
        self.t = t + rates.tau
        self.updates += proposal.entered
        if done is None:
            return None
        return StepReport(done.t, done.y, done.loss, done.sample, phi=rates.phi, coupling=done.coupling)

    def _rates_at(self, tau: float | None) -> Rates:
        hyper, first = self.system.hyper, self.updates == 0
        key = tau, first
        if not self._constant or key not in self._rates:
            rates = hyper.at(self.t, tau, first=first)
            self._overshoot.look([rates])
            self._rates = {key: rates}
        return self._rates[key]

    def _snapshot(self, *, weights: bool) -> tuple[Any, ...]:
        buffers = [buffer.clone() for buffer in self._buffers]
        if not weights:
            return buffers, None
        theta = [weight.detach().clone() for weight in self.system.theta]
        return buffers, (theta, self.engine.snapshot(), self.omega, self.t, self.updates)

    @torch.no_grad()
    def _restore(self, snapshot: tuple[Any, ...], *, reset: bool) -> None:
        buffers, rest = snapshot
        for buffer, value in zip(self._buffers, buffers, strict=True):
            buffer.copy_(value)
        if rest is not None:
            theta, engine, self.omega, self.t, self.updates = rest
            torch._foreach_copy_(self.system.theta, theta)
            self.engine.restore(engine)
        if reset:
            self.engine.reset()
