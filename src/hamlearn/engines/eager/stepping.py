"""How one sample, or one label, is taken: proposed, looked at, and then done whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch

from hamlearn._base import trees
from hamlearn._base.scale import plus
from hamlearn.credit import Echo, Sensitivity
from hamlearn.engines.eager.commit import (
    Commit,
    Ungraded,
    Withdrawal,
    keep_apart,
    keeps_mode,
    nonfinite,
    nonfinite_message,
)
from hamlearn.engines.eager.inside import inside
from hamlearn.engines.eager.moves import Moved
from hamlearn.engines.eager.parts import LearnerParts
from hamlearn.engines.recorded import Tried
from hamlearn.errors import NonFiniteError, SampleError
from hamlearn.orders.system import Instant, Outcome
from hamlearn.sample import Label, Sample, StepReport
from hamlearn.state.carry import Carry
from hamlearn.state.labels import Waited, require_id
from hamlearn.state.learner_state import LearnerState
from hamlearn.state.replay import generators
from hamlearn.streams.blocks import copied
from hamlearn.streams.reader import Reader
from hamlearn.theory.transition import first_state, next_state


class Stepper:
    """Takes one sample, or one label, at a time: the state before it becomes the state after it, or stays.

    Args:
        parts: What the learner is made of.
        reader: Keeps count of the samples that come from a stream.
        late: How many samples may wait for their labels.

    Attributes:
        state: Where the learner is between two samples.
        repair: What makes the learner whole where an interrupt has struck; `None` where it is.
    """

    def __init__(self, parts: LearnerParts, reader: Reader, late: int) -> None:
        self.parts, self.reader = parts, reader
        self.state = parts.first_state(late)
        self.repair: Callable[[], None] | None = None

    def take(self, sample: Sample) -> StepReport:
        """Integrate one sample; if anything is wrong with it, everything stays as it was."""
        # Until the step is accepted, `repair` holds what puts everything back, and from then on what is left to
        # do: wherever an interrupt strikes, the learner will be as before the step, or as after it.
        parts, mode = self.parts, torch.is_grad_enabled()
        slots = parts.system.slots
        undo = self.repair = Withdrawal(parts, generators(parts.devices))
        try:
            slots.lend()
            now = self._instant(sample)
            if sample.id is not None and sample.target is None:
                self._require_label_later(sample)
            met = self._carry_for(now)
            outcome = parts.order.propose(met, now)
            with Ungraded():
                keep_apart(outcome, sample, slots)
                moved = self._move(now, outcome, undo)
                finite = self._finite(now, outcome, moved)
                commit = self._accepted(now, outcome, moved) if finite else self._skipped(sample)
                commit.progress = self.reader.due(sample)
                if finite and sample.id is not None and sample.target is None:
                    begins = parts.stateful and self._starts_anew()
                    waiting = self.state.waiting.with_sample(sample, met, begins, outcome.y, now.t)
                    commit.state = commit.state._replace(waiting=waiting)
                self._conclude(commit, undo, finite)
        except BaseException:
            self.make_whole()
            raise
        finally:
            if torch.is_grad_enabled() is not mode:
                torch.set_grad_enabled(mode)
        return StepReport(
            now.t,
            outcome.y,
            outcome.loss,
            sample,
            phi=now.rates.phi,
            coupling=outcome.coupling,
            skipped=not finite,
        )

    @keeps_mode
    def take_label(self, label: Label) -> StepReport:
        """Learn from the target of an earlier sample; if anything is wrong with it, everything stays as it was."""
        require_id(label.id, "a label")
        state = self.state
        waited = state.waiting.samples.get(label.id)
        if label.target is None:
            raise SampleError(f"the label of id={label.id!r} has no target: give hl.Label(id, target)")
        if waited is None:
            unknown = state._replace(waiting=replace(state.waiting, late=state.waiting.late + 1))
            self.repair = Commit(self, unknown, memory="kept", progress=self.reader.due(label))
            self.make_whole()
            return StepReport(state.t, None, None, None)
        return self._learn(label, waited)

    def _learn(self, label: Label, waited: Waited) -> StepReport:
        parts, state, sample = self.parts, self.state, replace(waited.sample, target=label.target)
        system, carry, slots = parts.system, state.carry, parts.system.slots
        undo = self.repair = Withdrawal(parts, generators(parts.devices))
        try:
            slots.lend()
            rates = parts.hyper.at(waited.t, sample.tau, first=state.updates == 0)
            now = Instant(sample, waited.t, rates, state.updates == 0, False, state.updates)
            nothing = [torch.zeros_like(omega) for omega in carry.omega]
            h, spec = waited.state()
            if waited.begins and parts.order.needs_h:
                h, spec = trees.flatten(parts.network.initial_state(sample.u))
            z = [torch.zeros_like(leaf) for leaf in h]
            outcome = parts.order.propose(Carry(h, z, nothing, spec, v=carry.v), now)
            with torch.no_grad():
                keep_apart(outcome, sample, slots)
                # What running the network again has done to its statistics is not kept: the sample did that.
                slots.put_back()
                gained = outcome.omega
                undo.weights = parts.moves.keep({})
                if outcome.dtheta is None:
                    parts.moves.strike(state.t, now, outcome)
                omega = plus(carry.omega, gained, 1.0)
                outcome = replace(outcome, h=[], z=[], omega=omega, dtheta=outcome.dtheta or [])
                finite = self._finite(now, outcome, Moved(system.theta, {}, []))
                waiting = state.waiting.without(label.id, learned=finite)
                if finite:
                    carry = replace(carry, omega=omega, own=True, v=outcome.v)
                after = state._replace(carry=carry, updates=state.updates + finite, waiting=waiting)
                commit = Commit(self, after, memory="kept", progress=self.reader.due(label))
                self._conclude(commit, undo, finite)
        except BaseException:
            self.make_whole()
            raise
        return StepReport(state.t, waited.y, outcome.loss, sample, phi=rates.phi, skipped=not finite)

    def answer(self, u: Any, tau: float | None) -> Any:
        """The output for `u`, with the network in evaluation mode; nothing moves."""
        parts, state = self.parts, self.state
        network, modes = parts.network, [module for module in parts.network.modules() if module.training]
        self.repair = Withdrawal(parts, generators(parts.devices), modes)
        try:
            parts.system.slots.lend()
            network.eval()
            if network.state is None:
                y = network.output_net(u, None)
            else:
                h, spec = state.carry.h, state.carry.spec
                if self._starts_anew():
                    h, spec = trees.flatten(network.initial_state(u))
                if parts.choices.order == "sequential":
                    h, spec = next_state(network, h, spec, u, parts.hyper.at(state.t, tau).tau)
                y = network.output_net(u, trees.unflatten(h, spec))
            return trees.copied(y)
        finally:
            self.make_whole()

    def rehearse(self, sample: Sample) -> Tried:
        """What a step with this sample proposes; nothing changes, the sample included.

        It raises what the step would raise.
        """
        parts, sample = self.parts, copied(sample)
        self.repair = Withdrawal(parts, generators(parts.devices))
        try:
            parts.system.slots.lend()
            now = self._instant(replace(sample, boundary=False))
            met = replace(self._carry_for(now), own=False)
            return Tried.of(parts.system.theta, met, parts.order.propose(met, now))
        finally:
            self.make_whole()

    @keeps_mode
    def reset(self) -> None:
        """Return h to h0 and z to 0, as after a boundary, and drop stored tokens. ω, θ and the time stay."""
        self.repair = self._anew()
        self.make_whole()

    def make_whole(self) -> None:
        """Withdraw or finish what an interrupt has cut short."""
        repair = self.repair
        if repair is not None:
            with torch.no_grad():
                repair()
            self.repair = None
        elif self.parts.system.slots.borrowed:
            self.parts.system.slots.put_back()

    def under_way(self) -> Literal["here", "elsewhere"] | None:
        """Where a step is being made that calls functions of the user's: below this very call, or elsewhere."""
        return inside(self, _UNDER_WAY)

    def _require_label_later(self, sample: Sample) -> None:
        if self.parts.choices.credit.carries or isinstance(self.parts.choices.credit, Echo | Sensitivity):
            raise SampleError(
                f"the sample with id={sample.id!r} has no target, and with credit={self.parts.choices.credit!r} "
                "a label that comes later cannot be learned: use hl.Cleared(), or leave out the id"
            )
        self.state.waiting.require_new(sample)

    def _conclude(self, commit: Commit, undo: Withdrawal, finite: bool) -> None:
        """Put everything back where a value is not finite, and do what is left to do, with gradients off."""
        if not finite:
            undo()
        self.repair = commit
        commit()
        self.repair = None

    def _starts_anew(self) -> bool:
        return self.state.fresh or self.parts.choices.reset_h == "sample"

    def _instant(self, sample: Sample) -> Instant:
        state, parts = self.state, self.parts
        first = state.updates == 0
        rates = parts.usual.at(state.t, sample.tau, first=first)
        parts.system.velocity.check(state.t)
        return Instant(sample, state.t, rates, first, state.fresh, state.updates)

    def _carry_for(self, now: Instant) -> Carry:
        parts, carry = self.parts, self.state.carry
        if not parts.stateful or not self._starts_anew():
            return carry
        if not parts.order.needs_h:
            return Carry([], [], carry.omega, None, v=carry.v)
        if now.fresh or not parts.choices.credit.carries:
            return parts.anew(carry, now.sample.u)
        h, spec = first_state(parts.network.initial_state(now.sample.u), carry.spec), carry.spec
        if [leaf.shape for leaf in carry.z] != [leaf.shape for leaf in h]:
            raise SampleError(
                f"the state became {trees.describe(h)} while its costate z of {trees.describe(carry.z)} lives "
                "on: keep the batch size, end the sequence with boundary=True, or use hl.Cleared()"
            )
        return Carry(h, carry.z, carry.omega, spec, v=carry.v, E=carry.E)

    def _move(self, now: Instant, outcome: Outcome, undo: Withdrawal) -> Moved:
        """Move the weights, all but those that can wait, or have to, until the step is accepted."""
        parts = self.parts
        moves, theta = parts.moves, parts.system.theta
        if not outcome.moves:
            return Moved(theta, {}, [])
        if parts.order.stored():
            return moves.beside(now, outcome)
        # The state that a new sequence begins with is read from the new weights.
        late = moves.late(now, outcome, allowed=not (now.sample.boundary and parts.stateful))
        undo.weights = moves.keep(late)
        moves.move(now, outcome, late)
        return Moved(theta, late, [])

    def _finite(self, now: Instant, outcome: Outcome, moved: Moved) -> bool:
        on_nonfinite, system = self.parts.choices.on_nonfinite, self.parts.system
        if on_nonfinite == "ignore":
            return True
        still = system.velocity.still(now.t) if outcome.moves else []
        if not nonfinite(outcome, system, moved, still):
            return True
        if on_nonfinite == "raise":
            raise NonFiniteError(nonfinite_message(outcome, system, moved, self.state.t))
        return False

    def _accepted(self, now: Instant, outcome: Outcome, moved: Moved) -> Commit:
        own, parts, state = outcome.own, self.parts, self.state
        system = parts.system
        carry = Carry(outcome.h, outcome.z, outcome.omega, outcome.spec, own, outcome.v, outcome.E)
        fresh, updates = now.sample.boundary, state.updates + (outcome.moves and outcome.learned)
        changes = system.slots.changes()
        if fresh and parts.stateful:
            beside = dict(zip(system.names, moved.theta, strict=True)) if moved.beside else {}
            with system.slots.exchanged(beside):
                h, spec = trees.flatten(trees.copied(parts.network.initial_state(now.sample.u)))
            carry = carry.anew(h, spec, parts.order.first(h, spec))
            carry.own = own
        after = LearnerState(carry, now.t + now.rates.tau, updates, fresh, state.waiting)
        return Commit(self, after, moved.todo(), changes)

    def _skipped(self, sample: Sample) -> Commit:
        # A skipped sample that ends a sequence still ends it: its tokens must not run on into the next one.
        return self._anew() if sample.boundary else Commit(self, self.state, memory="kept")

    def _anew(self) -> Commit:
        state = self.state
        after = state._replace(carry=state.carry.anew([], None, []), fresh=True)
        return Commit(self, after, memory="dropped")


_UNDER_WAY = {method.__code__ for method in (Stepper.take, Stepper._learn, Stepper.answer, Stepper.rehearse)}
"""What calls functions of the user's while the learner is not whole."""
