"""Ticks as they are taken one by one: proposed, checked, and accepted or withdrawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.finite import Part, all_finite, is_finite, what_is_not
from hamlearn._base.interrupts import defer_sigint
from hamlearn._base.replay import Before, Buffers, devices_of, tensors_of
from hamlearn._base.torch_private import foreach_norm
from hamlearn.errors import ConfigError, NonFiniteError
from hamlearn.rules.local.costates import Omega, Outer, costate
from hamlearn.rules.local.local_system import LocalSystem
from hamlearn.rules.local.rule import LocalRule, Now, Proposal
from hamlearn.rules.system import UsualRates
from hamlearn.sample import Sample, StepReport
from hamlearn.streams.reader import Reader


class _SkippedError(Exception):
    """A tick that is not to be taken; `drop`: what was under way is the cause and has to go."""

    def __init__(self, report: StepReport, *, drop: bool) -> None:
        super().__init__()
        self.report, self.drop = report, drop


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
        self.omega: list[Omega] = [torch.zeros_like(w, requires_grad=False) for w in system.theta]
        self.t = 0.0
        self.updates = 0
        self.shown = 0
        self.usual = UsualRates(system.hyper)
        modules = system.wiring.modules()
        stacked = {m for cell in system.stacks for m in cell.modules}
        self._buffers = Buffers([m for m in modules if m not in stacked])
        self._devices = devices_of(tensors_of(modules))
        self._kind = system.theta[0].device.type

    @torch.no_grad()
    def show(self, sample: Sample | None, ticks: int, reader: Reader | None = None) -> StepReport | None:
        """Some ticks of one sample, all of them or none; the report of the last one that had something to report.

        Ctrl-C waits until they are done.

        Args:
            sample: What is shown; `None`: nothing new.
            ticks: How many.
            reader: Counts the sample, if it comes from a stream.
        """
        if self.system.stacks and torch.is_autocast_enabled(self._kind):
            raise ConfigError("layers that are stacked do not follow autocast: pass stacked=False")
        if self.rule.aligned and sample is not None and not self._may_enter(sample):
            self.count(sample, reader)
            return StepReport(self.t, None, None, sample, skipped=True)
        with defer_sigint():
            undo = self._snapshot(ticks)
            try:
                report = self._ticks(sample, ticks)
            except _SkippedError as skipped:
                undo()
                report = skipped.report
                if skipped.drop:
                    self.drop()
            except BaseException:
                undo()
                raise
            self.count(sample, reader)
        return report

    @torch.no_grad()
    def rehearse(self, sample: Sample) -> tuple[Any, list[Omega], StepReport | None] | None:
        """The carry, ω and the report after one tick of a sample; then everything is as before.

        `None` if the sample would be skipped.
        """
        undo = self._snapshot(2)
        try:
            report = self._ticks(sample, 1)
        except _SkippedError:
            return None
        else:
            return self.carry, self.omega, report
        finally:
            undo()

    def count(self, sample: Sample | None, reader: Reader | None) -> None:
        """Count a sample, here and in the stream that it comes from."""
        self.shown += sample is not None
        place = None if sample is None or reader is None else reader.due(sample)
        if reader is not None and place is not None:
            reader.progress = place

    def drop(self) -> None:
        """Forget states, costates, and samples in flight."""
        self.carry = self.rule.dropped(self.carry)

    def _ticks(self, sample: Sample | None, ticks: int) -> StepReport | None:
        own, report = sample, None
        if sample is not None:
            self.carry = self.rule.begin(self.carry, sample.u)
            own = self.rule.own(sample)
        for tick in range(ticks):
            report = self._tick(sample, own, last=tick == ticks - 1) or report
        return report

    def _tick(self, sample: Sample | None, own: Sample | None, *, last: bool) -> StepReport | None:
        """One tick: what it would change is computed beside the learner, checked, and then taken."""
        system, t = self.system, self.t
        if torch.is_autocast_enabled(self._kind):
            # Autocast keeps weights in its own type until its block ends; these have moved since.
            torch.clear_autocast_cache()
        rates = self.usual.at(t, None if sample is None else sample.tau, first=self.updates == 0)
        system.velocity.check(t)
        if system.running_cost is not None:
            rates = rates._replace(t=t)
        proposal = self.rule.tick(self.carry, own, Now(t, rates, last, sample))
        omega = costate(self.omega, proposal.grads, 1 - rates.stride * rates.eta, -float(rates.s))
        if self.on_nonfinite != "ignore":
            self._check(proposal, omega, sample)
        system.move(system.theta, omega if system.order == "sequential" else self.omega, t, rates.stride)
        self.carry, self.omega = proposal.carry, omega
        self.t, self.updates = t + rates.tau, self.updates + proposal.entered
        done = proposal.done
        if done is None:
            return None
        # A report's y belongs to the reader of the report; this one is the state of a node.
        y = None if done.y is None else trees.copied(done.y)
        return StepReport(done.t, y, done.loss, done.sample, phi=rates.phi, coupling=done.coupling)

    def _check(self, proposal: Proposal[Any], omega: list[Omega], sample: Sample | None) -> None:
        """Raise, or skip the tick, unless loss, h, z and ω would be finite after it.

        A weight that overflows shows in the states of the next tick.
        """
        values = [*proposal.h, *proposal.z]
        if proposal.loss is not None:
            values.append(proposal.loss)
        values += [x for w in omega if isinstance(w, Outer) for x in (w.delta, w.x)]
        if all_finite(values) and _bounded([w for w in omega if isinstance(w, Tensor)]):
            return
        if self.on_nonfinite == "raise":
            raise NonFiniteError(_message(proposal, self.system.theta, self.t))
        done = proposal.done
        t, y, loss, shown = (
            (self.t, None, None, sample) if done is None else (done.t, done.y, done.loss, done.sample)
        )
        # Costates come from samples before this one: kept, they would spoil every sample to come.
        states = proposal.h if proposal.loss is None else [*proposal.h, proposal.loss]
        raise _SkippedError(
            StepReport(t, y, loss, shown, skipped=True),
            drop=self.rule.aligned or all_finite(states),
        )

    def _may_enter(self, sample: Sample) -> bool:
        return self.on_nonfinite == "ignore" or check_input(sample.u, self.on_nonfinite)

    def _snapshot(self, ticks: int) -> Callable[[], None]:
        """What puts back all that some ticks change; several work on copies of what they write in place."""
        before = Before.now(self._buffers, self._devices)
        held = self.omega, self.t, self.updates, self.shown, self.carry
        weights: list[Tensor] = []
        if ticks > 1:
            weights = [weight.detach() for weight in self.system.theta]
            self.carry = self.rule.unshared(self.carry)
        copies = [weight.clone() for weight in weights]

        def undo() -> None:
            self.omega, self.t, self.updates, self.shown, self.carry = held
            before.put_back()
            for weight, copy in zip(weights, copies, strict=True):
                weight.copy_(copy)

        return undo


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


def _bounded(tensors: list[Tensor]) -> bool:
    """Whether all entries are finite: their norms are, unless these overflow."""
    if not tensors or math.isfinite(torch.stack(foreach_norm(tensors)).sum().item()):
        return True
    return all(is_finite(tensor) for tensor in tensors)


def _message(proposal: Proposal[Any], theta: list[Tensor], t: float) -> str:
    """Says what is not finite, and what to do."""
    if not is_finite([weight.detach() for weight in theta]):
        return (
            f"a weight has overflowed before t={t:g}, and is not finite: load a checkpoint, and lower beta or "
            "tau. Nothing has moved since"
        )

    def parts() -> Iterator[Part]:
        if proposal.loss is not None:
            yield f"the loss is {proposal.loss.item()}", [proposal.loss]
        yield "a node's state h is not finite", proposal.h
        yield "a node's costate z is not finite", proposal.z

    what = what_is_not(parts(), "the costate omega overflows")
    return (
        f"{what} at t={t:g}: the last good state is kept. Lower beta or tau, raise eta, look at the samples, or "
        "pass on_nonfinite='skip'. If a sample before this one is the cause, reset() drops what is under way"
    )
