"""Ticks as they are taken: proposed, looked at, and accepted or undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.replay import Buffers, Kept, devices_of, generators, set_generators, tensors_of
from hamlearn._base.torch_private import foreach_copy_
from hamlearn.engines.ticks.module_watch import ModuleWatch
from hamlearn.engines.ticks.soundness import (
    all_finite,
    is_finite,
    is_sound,
    nonfinite_message,
    reach,
    smallest_risk,
)
from hamlearn.errors import NonFiniteError
from hamlearn.orders.local.aligned import Aligned
from hamlearn.orders.local.delay_free import DelayFree
from hamlearn.orders.local.local_system import LocalSystem
from hamlearn.orders.local.move import Move
from hamlearn.orders.local.outer import Gathered, dense
from hamlearn.orders.local.proposal import Done, Omega, Proposal, Sizes, costate
from hamlearn.orders.local.stacked import LayerStack
from hamlearn.orders.local.unaligned import Unaligned
from hamlearn.rates import UsualRates
from hamlearn.sample import Sample, StepReport
from hamlearn.streams.reader import Reader


@dataclass(slots=True)
class TickChange:
    """All that a tick would change: the weights by `moves`, states by `commit`, and numbers by value."""

    moves: list[Move | Gathered]
    proposal: Proposal
    omega: list[Omega]
    t: float
    updates: int
    report: StepReport | None


@dataclass(slots=True)
class Skip:
    """A tick that is not to be taken, and whether what it found under way is to blame and has to go."""

    report: StepReport
    drop: bool


class Ticker:
    """Time, ω and θ, moved tick by tick with what an engine proposes for the nodes.

    Attributes:
        engine: What computes the nodes.
        omega: Costate of the weights, by slot.
        t: Time.
        updates: Weight updates that a loss has entered.
        shown: Samples that have been taken or skipped.
        usual: τ, η, φ and s of a tick.
        watch: Looks whether the module is the one that the learner was built from.
    """

    def __init__(self, system: LocalSystem, engine: Unaligned | Aligned | DelayFree, on_nonfinite: str) -> None:
        self.system = system
        self.engine: Any = engine
        self.aligned = isinstance(engine, Aligned)
        self.on_nonfinite = on_nonfinite
        self.omega: list[Omega] = [
            torch.zeros_like(w, dtype=system.wide, requires_grad=False) for w in system.theta
        ]
        self.t = 0.0
        self.updates = 0
        self.shown = 0
        self.usual = UsualRates(system.hyper)
        modules = system.wiring.modules()
        self.watch = ModuleWatch(modules, system)
        stacked = {m for cell in system.cells if isinstance(cell, LayerStack) for m in cell.modules}
        self._buffers = Buffers([m for m in modules if m not in stacked])
        self._devices = devices_of(tensors_of(modules))
        self._risk = smallest_risk(system.theta)
        self._reach: tuple[list[Omega], float] | None = None
        self._sizes = Sizes()
        self._lent: dict[int, Tensor] = {}

    @torch.no_grad()
    def show(self, sample: Sample | None, ticks: int, reader: Reader | None = None) -> StepReport | None:
        """Some ticks of one sample, all of them or none; the report of the last one that had something to tell.

        Until the last tick is accepted, whatever ends this puts everything back. From then on, whatever ends this
        finishes it: weights move in place, and what has moved cannot be told from what has not.

        Args:
            sample: What is shown; `None`: nothing new.
            ticks: How many.
            reader: Counts the sample, in one stroke with all else, if it comes from a stream.
        """
        self.watch.check()
        self.take_over()
        before, count = self._snapshot(ticks), self._counting(sample, reader)
        finish: Callable[[], None] | None = None
        told: StepReport | None = None
        try:
            own = None
            if sample is not None:
                self.engine.begin(sample.u)
                own = self.engine.own(sample)
            for tick in range(ticks):
                last = tick == ticks - 1
                change = self._propose(sample, own, before[0], last=last)
                if isinstance(change, Skip):
                    finish = partial(self._restore, before, reset=change.drop, count=count)
                    finish()
                    return change.report
                told = change.report or told
                if last:
                    finish = partial(self._take, change, count)
                    finish()
                else:
                    self._take(change)
        except BaseException:
            # An interrupt may have left the mode in which a node's graph is built.
            with torch.no_grad():
                if finish is None:
                    self._restore(before, reset=False)
                else:
                    finish()
            raise
        return told

    @torch.no_grad()
    def rehearse(self, sample: Sample, ticks: int, seen: Callable[[], Any]) -> tuple[Any, StepReport | None]:
        """What is seen after some ticks of a sample, and the last report; then everything is as before."""
        before = self._snapshot(max(2, ticks))
        told: StepReport | None = None
        try:
            own = self.engine.own(sample)
            for tick in range(ticks):
                change = self._propose(sample, own, before[0], last=tick == ticks - 1)
                if isinstance(change, Skip):
                    return None, None
                told = change.report or told
                self._take(change)
            return seen(), told
        finally:
            with torch.no_grad():
                self._restore(before, reset=False)

    def lend(self) -> dict[str, Tensor]:
        """ω by parameter name, to be looked at or changed; the next tick leaves these tensors as they are."""
        self._sizes.lent = True
        shown = [dense(w) for w in self.omega]
        self._lent = {place: w for place, w in enumerate(shown) if w is not self.omega[place]}
        return self.system.by_name(list(shown))

    def take_over(self) -> None:
        """Have what was written to lent costates, where they are kept as factors and not as they look."""
        lent = self._lent
        written = {place: w for place, w in lent.items() if not torch.equal(w, dense(self.omega[place]))}
        if written:
            self.omega = [written.get(place, w) for place, w in enumerate(self.omega)]
        self._lent = {}

    def pass_over(self, sample: Sample, reader: Reader) -> StepReport:
        """Count a sample that is not shown, since its input is not finite."""
        self._counting(sample, reader)()
        return StepReport(self.t, None, None, sample, skipped=True)

    def _counting(self, sample: Sample | None, reader: Reader | None) -> Callable[[], None]:
        """What counts a sample, once however often it is called."""
        shown = self.shown + (sample is not None)
        place = None if sample is None or reader is None else reader.due(sample)

        def count() -> None:
            self.shown = shown
            if reader is not None and place is not None:
                reader.progress = place

        return count

    def _propose(
        self, sample: Sample | None, own: Sample | None, buffers: Kept, *, last: bool
    ) -> TickChange | Skip:
        """What one tick would change, or that it is to be skipped."""
        system, t = self.system, self.t
        rates = self.usual.at(t, None if sample is None else sample.tau, first=self.updates == 0)
        system.velocity.check(t)
        extra = {"given": sample} if self.aligned else {}
        proposal: Proposal = self.engine.tick(own, t, rates, last=last, **extra)
        done = proposal.done
        omega = costate(self.omega, proposal.grads, 1 - rates.stride * rates.eta, -float(rates.s), self._sizes)
        if self.on_nonfinite != "ignore":
            spoilt = self._buffers.spoilt(buffers)
            if spoilt or not (is_finite(proposal) and self._weights_stay_finite(omega, t, rates.stride)):
                if self.on_nonfinite == "raise":
                    raise NonFiniteError(nonfinite_message(proposal, spoilt, omega, t))
                told = done or Done(sample, t, None, None)  # type: ignore[arg-type]
                skipped = StepReport(told.t, told.y, told.loss, told.sample, skipped=True)
                # Costates come from samples before this one: kept, they would spoil every sample to come.
                return Skip(skipped, drop=self.aligned or (is_sound(proposal) and not spoilt))
        moving = omega if system.order == "sequential" else self.omega
        report: StepReport | None = None
        if done is not None:
            # A report's y belongs to whoever reads it; this one is the state of a node.
            y = None if done.y is None else trees.copied(done.y)
            report = StepReport(done.t, y, done.loss, done.sample, phi=rates.phi, coupling=done.coupling)
        moves = system.moves(system.theta, moving, t, rates.stride)
        gathered = [w for w in omega if isinstance(w, Gathered)]
        # θ follows the new ω, or the one that is about to be overwritten.
        both: list[Move | Gathered]
        both = [*gathered, *moves] if system.order == "sequential" else [*moves, *gathered]
        return TickChange(both, proposal, omega, t + rates.tau, self.updates + proposal.entered, report)

    def _take(self, change: TickChange, count: Callable[[], None] | None = None) -> None:
        """Make a change, and count its sample; where that was interrupted, asking again makes the rest of it."""
        for move in change.moves:
            move.make()
        change.proposal.commit()
        omega = change.omega
        if any(isinstance(w, Gathered) for w in omega):
            omega = self._sizes.taken(omega)
            if self._reach is not None and self._reach[0] is change.omega:
                self._reach = omega, self._reach[1]
        self.omega, self.t, self.updates = omega, change.t, change.updates
        if count is not None:
            count()

    def _weights_stay_finite(self, omega: list[Omega], t: float, stride: float) -> bool:
        """Whether ω is finite, and θ after a step with it: in parallel order that is the step after this one."""
        system, sequential = self.system, self.system.order == "sequential"
        new = reach(omega)
        if self._reach is None or self._reach[0] is not self.omega:
            self._reach = self.omega, 0.0 if sequential else reach(self.omega)
        old, self._reach = self._reach[1], (omega, new)
        # A sum, and not the larger one: of a number and what is none, `max` may answer either.
        if stride * system.largest_beta(t) * (old + new) < self._risk:
            return True
        if not all_finite(omega):
            return False
        theta: list[Tensor] = [weight.detach().clone() for weight in system.theta]
        after: list[Omega] = [dense(w) if isinstance(w, Gathered) else w for w in omega]
        for step in (after,) if sequential else (self.omega, after):
            for move in system.moves(theta, step, t, stride):
                move.make()
            if not all_finite(list(theta)):
                return False
        return True

    def _snapshot(self, ticks: int) -> tuple[Any, ...]:
        theta = [weight.detach().clone() for weight in self.system.theta] if ticks > 1 else None
        # Costates of large layers move in place, as weights do.
        omega = self.omega if theta is None else [w.clone() if isinstance(w, Tensor) else w for w in self.omega]
        numbers = omega, self.t, self.updates
        random = generators(self._devices) if self.system.may_draw() else None
        return self._buffers.keep(), random, self.engine.snapshot(ticks=ticks), numbers, theta

    def _restore(self, snapshot: tuple[Any, ...], *, reset: bool, count: Callable[[], None] | None = None) -> None:
        buffers, random, engine, (self.omega, self.t, self.updates), theta = snapshot
        self._buffers.put_back(buffers)
        if random is not None:
            set_generators(self._devices, random)
        self.engine.restore(engine)
        if theta is not None:
            foreach_copy_(self.system.theta, theta)
        if reset:
            self.engine.reset()
        if count is not None:
            count()
