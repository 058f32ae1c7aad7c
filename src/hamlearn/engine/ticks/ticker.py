"""Ticks as they are taken one by one: proposed, looked at, and accepted or withdrawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.finite import Part, all_finite, is_finite, what_is_not
from hamlearn._base.interrupts import defer_sigint
from hamlearn._base.replay import Buffers, Kept, devices_of, generators, set_generators, tensors_of
from hamlearn._base.torch_private import foreach_copy_, foreach_norm
from hamlearn.errors import ConfigError, NonFiniteError
from hamlearn.rates import UsualRates
from hamlearn.rules.local.costates import Late, Omega, Outer, costate, dense, made
from hamlearn.rules.local.local_system import LocalSystem
from hamlearn.rules.local.rule import LocalRule, Now, Proposal, copied
from hamlearn.rules.local.stacked import LayerStack
from hamlearn.sample import Sample, StepReport
from hamlearn.streams.reader import Reader


class Change(NamedTuple):
    """What a tick would change, looked at and found right."""

    proposal: Proposal[Any]
    omega: list[Omega]
    tau: float
    stride: float
    report: StepReport | None


class Skip(NamedTuple):
    """A tick that is not to be taken, and whether what was under way is to blame and has to go."""

    report: StepReport
    drop: bool


class Ticker:
    """Time, ω, θ and what a rule carries, moved tick by tick.

    Attributes:
        carry: What the rule carries.
        omega: Costate of the weights, by slot.
        t: Time.
        updates: Weight updates that a loss has entered.
        shown: Samples that have been taken or skipped.
        usual: τ, η, φ and s of a tick.
    """

    def __init__(self, system: LocalSystem, rule: LocalRule[Any], on_nonfinite: str) -> None:
        self.system, self.rule, self.on_nonfinite = system, rule, on_nonfinite
        self.carry: Any = rule.empty()
        self.omega: list[Omega] = [
            torch.zeros_like(w, dtype=system.wide, requires_grad=False) for w in system.theta
        ]
        self.t = 0.0
        self.updates = 0
        self.shown = 0
        self.usual = UsualRates(system.hyper)
        modules = system.wiring.modules()
        self._stacks = [cell for cell in system.cells if isinstance(cell, LayerStack)]
        stacked = {m for cell in self._stacks for m in cell.modules}
        self._buffers = Buffers([m for m in modules if m not in stacked])
        self._devices = devices_of(tensors_of(modules))
        self._kind = system.theta[0].device.type
        # A finite weight that moves by less than this stays finite: the sum is rounded down.
        limits = [torch.finfo(w.dtype) for w in system.theta]
        self._risk = min(limit.max * limit.eps / 8 for limit in limits)

    @torch.no_grad()
    def show(self, sample: Sample | None, ticks: int, reader: Reader | None = None) -> StepReport | None:
        """Some ticks of one sample, all of them or none; the report of the last one that had something to report.

        Ctrl-C waits while a tick is being made, and while one is withdrawn.

        Args:
            sample: What is shown; `None`: nothing new.
            ticks: How many.
            reader: Counts the sample, if it comes from a stream.
        """
        self._require_no_autocast()
        before, report, taken = self._snapshot(ticks), None, False
        try:
            own = self._entering(sample)
            for tick in range(ticks):
                last = tick == ticks - 1
                change = self._propose(sample, own, before[0], last=last)
                if isinstance(change, Skip):
                    self._restore(before)
                    if change.drop:
                        self.carry = self.rule.dropped(self.carry)
                    self.count(sample, reader)
                    return change.report
                report = change.report or report
                if not last:
                    self._take(change)
                    continue
                with defer_sigint():
                    self._take(change)
                    self.count(sample, reader)
                    taken = True
        except BaseException:
            if not taken:
                with defer_sigint():
                    self._restore(before)
            raise
        return report

    @torch.no_grad()
    def rehearse(self, sample: Sample, ticks: int, seen: Callable[[], Any]) -> tuple[Any, StepReport | None]:
        """What is seen after some ticks of a sample, and the last report; then everything is as before."""
        before = self._snapshot(max(2, ticks))
        report: StepReport | None = None
        try:
            own = self.rule.own(sample)
            for tick in range(ticks):
                change = self._propose(sample, own, before[0], last=tick == ticks - 1)
                if isinstance(change, Skip):
                    return None, None
                report = change.report
                self._take(change)
            return seen(), report
        finally:
            self._restore(before)

    def count(self, sample: Sample | None, reader: Reader | None) -> None:
        """Count a sample, here and in the stream that it comes from."""
        self.shown += sample is not None
        place = None if sample is None or reader is None else reader.due(sample)
        if reader is not None and place is not None:
            reader.progress = place

    def pass_over(self, sample: Sample, reader: Reader) -> StepReport:
        """Count a sample that is not shown, since its input is not finite."""
        self.count(sample, reader)
        return StepReport(self.t, None, None, sample, skipped=True)

    def drop(self) -> None:
        """Forget states, costates, and samples in flight."""
        self.carry = self.rule.dropped(self.carry)

    def omega_by_name(self) -> dict[str, Tensor]:
        """ω by parameter name; costates that are kept as factors are written out, as copies."""
        return self.system.by_name(list(self.omega))

    def _require_no_autocast(self) -> None:
        if not torch.is_autocast_enabled(self._kind):
            return
        if self._stacks:
            raise ConfigError("layers that are stacked do not follow autocast: pass stacked=False")

    def _entering(self, sample: Sample | None) -> Sample | None:
        if sample is None:
            return None
        self.carry = self.rule.begin(self.carry, sample.u)
        return self.rule.own(sample)

    def _propose(self, sample: Sample | None, own: Sample | None, buffers: Kept, *, last: bool) -> Change | Skip:
        """What one tick would change, or that it is to be skipped."""
        system, t = self.system, self.t
        if torch.is_autocast_enabled(self._kind):
            # Autocast keeps weights in its own type until its block ends; these have moved since.
            torch.clear_autocast_cache()
        rates = self.usual.at(t, None if sample is None else sample.tau, first=self.updates == 0)
        system.velocity.check(t)
        proposal = self.rule.tick(self.carry, own, Now(t, rates, last, sample))
        omega = costate(self.omega, proposal.grads, 1 - rates.stride * rates.eta, -float(rates.s))
        done, report = proposal.done, None
        if self.on_nonfinite != "ignore":
            spoilt = self._buffers.spoilt(buffers)
            if spoilt or not (self._is_sound(proposal, omega) and self._weights_stay_finite(omega, rates.stride)):
                if self.on_nonfinite == "raise":
                    raise NonFiniteError(_message(proposal, spoilt, omega, t))
                y, loss, shown = (None, None, sample) if done is None else (done.y, done.loss, done.sample)
                report = StepReport(t if done is None else done.t, y, loss, shown, skipped=True)
                # Costates come from samples before this one: kept, they would spoil every sample to come.
                states = proposal.h if proposal.loss is None else [*proposal.h, proposal.loss]
                return Skip(report, self.rule.aligned or (all_finite(states) and not spoilt))
        if done is not None:
            # A report's y belongs to the reader of the report; this one is the state of a node.
            y = None if done.y is None else trees.copied(done.y)
            report = StepReport(done.t, y, done.loss, done.sample, phi=rates.phi, coupling=done.coupling)
        return Change(proposal, omega, rates.tau, rates.stride, report)

    def _take(self, change: Change) -> None:
        """Make a change."""
        system, omega = self.system, change.omega
        # θ follows the new ω, or the one that is about to be overwritten.
        if system.order == "sequential":
            omega = made(omega)
            system.move(system.theta, omega, self.t, change.stride)
        else:
            system.move(system.theta, self.omega, self.t, change.stride)
            omega = made(omega)
        self.carry, self.omega = change.proposal.carry, omega
        self.t, self.updates = self.t + change.tau, self.updates + change.proposal.entered

    def _is_sound(self, proposal: Proposal[Any], omega: list[Omega]) -> bool:
        """Whether loss, h, z and what is to be added to ω are all finite."""
        values = [*proposal.h, *proposal.z]
        if proposal.loss is not None:
            values.append(proposal.loss)
        return all_finite(values + [x for w in omega if isinstance(w, Outer) for x in (w.delta, w.x)])

    def _weights_stay_finite(self, omega: list[Omega], stride: float) -> bool:
        """Whether ω is finite, and θ after a step with it: in parallel order that is the step after this one.

        Large costates that move in their own memory are not looked at: they show in the states of later ticks.
        """
        system = self.system
        beside: list[Tensor] = [w for w in omega if isinstance(w, Tensor)]
        size = torch.stack(foreach_norm(beside)).sum().item() if beside else 0.0
        for w in omega:
            if isinstance(w, Outer) and not isinstance(w, Late):
                size += torch.linalg.vector_norm(w.delta).item() * torch.linalg.vector_norm(w.x).item()
        if stride * system.largest_beta(self.t) * size < self._risk:
            return True
        known = [w for w in omega if not isinstance(w, Late)]
        if not all_finite([dense(w) for w in known]):
            return False
        places = [i for i, w in enumerate(omega) if not isinstance(w, Late)]
        theta: list[Tensor] = [weight.detach().clone() for weight in system.theta]
        for step in (omega,) if system.order == "sequential" else (self.omega, omega):
            system.move(theta, [dense(w) for w in step], self.t, stride)
            if not all_finite([theta[i] for i in places]):
                return False
        return True

    def _snapshot(self, ticks: int) -> tuple[Any, ...]:
        """All that some ticks change; several of them work on copies of what they write in place."""
        random = generators(self._devices) if self.system.may_draw() else None
        held = self.omega, self.t, self.updates, self.shown, self.carry
        theta = None
        if ticks > 1:
            theta = [weight.detach().clone() for weight in self.system.theta]
            self.omega, self.carry = copied([self.omega, self.carry])
        return self._buffers.keep(), random, theta, held

    def _restore(self, snapshot: tuple[Any, ...]) -> None:
        buffers, random, theta, (self.omega, self.t, self.updates, self.shown, self.carry) = snapshot
        self._buffers.put_back(buffers)
        if random is not None:
            set_generators(self._devices, random)
        if theta is not None:
            foreach_copy_(self.system.theta, theta)


def check_input(u: Any, policy: str) -> bool:
    """Whether an input is finite; raises if `policy` says so.

    A sample that is not would spoil nodes for as long as it is in flight, so it is stopped at the entrance.
    """
    if is_finite(u):
        return True
    if policy == "raise":
        raise NonFiniteError(
            "the input u holds infinity or NaN: this sample was not taken. Correct it, or pass on_nonfinite='skip'"
        )
    return False


def _message(proposal: Proposal[Any], spoilt: bool, omega: list[Omega], t: float) -> str:
    """Says what is not finite, and what to do."""

    def parts() -> Iterator[Part]:
        if proposal.loss is not None:
            yield f"the loss is {proposal.loss.item()}", [proposal.loss]
        yield "a node's state h is not finite", proposal.h
        yield "a node's costate z is not finite", proposal.z
        if not spoilt:
            yield "the costate omega of the weights is not finite", [dense(w) for w in omega]

    rest = "a buffer, such as a running statistic, is not finite" if spoilt else "the weights would not be finite"
    what = what_is_not(parts(), rest)
    return (
        f"{what} at t={t:g}: the last good state is kept. Lower beta or tau, raise eta, look at the samples, or "
        "pass on_nonfinite='skip'. If a sample before this one is the cause, reset() drops what is under way"
    )
