"""How one sample, or one label, is taken: proposed, looked at, and then done whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from hamlearn import _tree
from hamlearn._scale import plus
from hamlearn._slots import Slots
from hamlearn.credit import Echo, Sensitivity
from hamlearn.errors import ConfigError, NonFiniteError, SampleError
from hamlearn.hyper import Hyper
from hamlearn.learner._commit import (
    Commit,
    Ungraded,
    Withdrawal,
    keep_apart,
    keeps_mode,
    nonfinite,
    nonfinite_message,
)
from hamlearn.learner._labels import Waited, Waiting, require_id
from hamlearn.learner._moves import Moved, Moves
from hamlearn.learner._running import Reader
from hamlearn.learner._setting import Choices
from hamlearn.networks import Network
from hamlearn.rates import Overshoot, Rates
from hamlearn.state import Label, Sample, StepReport
from hamlearn.system import Carry, Instant, Order, Outcome, System
from hamlearn.transition import first_state


class Stepping:
    """What a learner carries from sample to sample, and its steps; `Learner` is what users see of it."""

    _network: Network
    _hyper: Hyper
    _choices: Choices
    _system: System
    _order: Order
    _carry: Carry
    _moves: Moves
    _t: float
    _updates: int
    _fresh: bool
    _waiting: Waiting
    _reader: Reader
    _stateful: bool
    _constant: bool
    _usual: tuple[bool, Rates] | None
    _overshoot: Overshoot
    _devices: list[int]
    _repair: Callable[[], None] | None

    def _take(self, sample: Sample) -> StepReport:
        # Until the step is accepted, `_repair` holds what puts everything back, and from then on what is left to
        # do: wherever an interrupt strikes, the learner will be as before the step, or as after it.
        slots, mode = self._system.slots, torch.is_grad_enabled()
        undo = self._repair = Withdrawal(self, self._generators())
        try:
            slots.lend()
            now = self._instant(sample)
            if sample.id is not None and sample.target is None:
                self._require_label_later(sample)
            met = self._carry_for(now)
            outcome = self._order.propose(met, now)
            with Ungraded():
                keep_apart(outcome, sample, slots)
                moved = self._move(now, outcome, undo)
                finite = self._finite(now, outcome, moved)
                commit = self._accepted(now, outcome, moved) if finite else self._skipped(sample)
                commit.progress = self._reader.due(sample)
                if finite and sample.id is not None and sample.target is None:
                    begins = self._stateful and self._starts_anew()
                    commit.waiting = self._waiting.with_sample(sample, met, begins, outcome.y, now.t)
                self._conclude(commit, undo, finite)
        except BaseException:
            self._make_whole()
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
    def _take_label(self, label: Label) -> StepReport:
        require_id(label.id, "a label")
        waited = self._waiting.samples.get(label.id)
        if label.target is None:
            raise SampleError(f"the label of id={label.id!r} has no target: give hl.Label(id, target)")
        if waited is None:
            commit = self._skipped(None)
            commit.waiting = replace(self._waiting, late=self._waiting.late + 1)
            commit.progress = self._reader.due(label)
            self._repair = commit
            self._make_whole()
            return StepReport(self._t, None, None, None)
        return self._learn(label, waited)

    def _learn(self, label: Label, waited: Waited) -> StepReport:
        sample, slots = replace(waited.sample, target=label.target), self._system.slots
        undo = self._repair = Withdrawal(self, self._generators())
        try:
            slots.lend()
            rates = self._hyper.at(waited.t, sample.tau, first=self._updates == 0)
            now = Instant(sample, waited.t, rates, self._updates == 0, False, self._updates)
            nothing = [torch.zeros_like(omega) for omega in self._carry.omega]
            h, spec = waited.state()
            if waited.begins and self._order.needs_h:
                h, spec = _tree.flatten(self._network.initial_state(sample.u))
            z = [torch.zeros_like(leaf) for leaf in h]
            outcome = self._order.propose(Carry(h, z, nothing, spec, v=self._carry.v), now)
            with torch.no_grad():
                keep_apart(outcome, sample, slots)
                # What running the network again has done to its statistics is not kept: the sample did that.
                slots.put_back()
                gained = outcome.omega
                undo.weights = self._moves.keep({})
                if outcome.dtheta is None:
                    self._moves.strike(self._t, now, outcome)
                omega = plus(self._carry.omega, gained, 1.0)
                outcome = replace(outcome, h=[], z=[], omega=omega, dtheta=outcome.dtheta or [])
                finite = self._finite(now, outcome, Moved(self._system.theta, {}, []))
                carry = replace(self._carry, omega=omega, own=True, v=outcome.v)
                commit = self._skipped(None)
                if finite:
                    commit = Commit(self, (), [], carry, self._t, self._updates + 1, self._fresh, memory="kept")
                commit.waiting = self._waiting.without(label.id, learned=finite)
                commit.progress = self._reader.due(label)
                self._conclude(commit, undo, finite)
        except BaseException:
            self._make_whole()
            raise
        return StepReport(self._t, waited.y, outcome.loss, sample, phi=rates.phi, skipped=not finite)

    def _require_label_later(self, sample: Sample) -> None:
        if self._choices.credit.carries or isinstance(self._choices.credit, Echo | Sensitivity):
            raise SampleError(
                f"the sample with id={sample.id!r} has no target, and with credit={self._choices.credit!r} "
                "a label that comes later cannot be learned: use hl.Cleared(), or leave out the id"
            )
        self._waiting.require_new(sample)

    def _try(self, sample: Sample) -> None:
        """Raise what a step with this sample would raise; nothing changes."""
        self._repair = Withdrawal(self, self._generators())
        try:
            self._system.slots.lend()
            now = self._instant(replace(sample, boundary=False))
            self._order.propose(self._carry_for(now), now)
        finally:
            self._make_whole()

    def _conclude(self, commit: Commit, undo: Withdrawal, finite: bool) -> None:
        """Put everything back where a value is not finite, and do what is left to do, with gradients off."""
        if not finite:
            undo()
        self._repair = commit
        commit()
        self._repair = None

    def _make_whole(self) -> None:
        repair = self._repair
        if repair is not None:
            with torch.no_grad():
                repair()
            self._repair = None
        elif self._system.slots.borrowed:
            self._system.slots.put_back()

    def _starts_anew(self) -> bool:
        return self._fresh or self._choices.reset_h == "sample"

    def _generators(self) -> list[Tensor]:
        states = [torch.default_generator.get_state()]
        if self._devices:
            states += [torch.cuda.get_rng_state(device) for device in self._devices]
        return states

    def _check_network(self) -> None:
        if torch.is_inference_mode_enabled():
            raise ConfigError(
                "within torch.inference_mode() there are no gradients, and a step would learn nothing: leave it "
                "before the step; learner.predict() works there"
            )
        slots = self._system.slots
        if slots.same():
            return
        changed = slots.changed_weight(Slots(self._network))
        if changed is not None:
            raise ConfigError(changed)
        slots.refresh()

    def _instant(self, sample: Sample) -> Instant:
        first = self._updates == 0
        if self._constant and sample.tau is None and self._usual is not None and self._usual[0] == first:
            rates = self._usual[1]
        else:
            rates = self._hyper.at(self._t, sample.tau, first=first)
            self._overshoot.look([rates])
            if sample.tau is None:
                self._usual = first, rates
        self._system.velocity.check(self._t)
        return Instant(sample, self._t, rates, first, self._fresh, self._updates)

    def _carry_for(self, now: Instant) -> Carry:
        carry = self._carry
        if not self._stateful or not self._starts_anew():
            return carry
        if not self._order.needs_h:
            return Carry([], [], carry.omega, None, v=carry.v)
        start = self._network.initial_state(now.sample.u)
        if self._fresh or not self._choices.credit.carries:
            h, spec = _tree.flatten(start)
            return carry.anew(h, spec, self._order.first(h, spec))
        h, spec = first_state(start, carry.spec), carry.spec
        if [leaf.shape for leaf in carry.z] != [leaf.shape for leaf in h]:
            raise SampleError(
                f"the state became {_tree.describe(h)} while its costate z of {_tree.describe(carry.z)} lives "
                "on: keep the batch size, end the sequence with boundary=True, or use hl.Cleared()"
            )
        return Carry(h, carry.z, carry.omega, spec, v=carry.v, E=carry.E)

    def _move(self, now: Instant, outcome: Outcome, undo: Withdrawal) -> Moved:
        """Move the weights, all but those that can wait, or have to, until the step is accepted."""
        moves, theta = self._moves, self._system.theta
        if not outcome.moves:
            return Moved(theta, {}, [])
        if self._order.stored():
            return moves.beside(now, outcome)
        # The state that a new sequence begins with is read from the new weights.
        late = moves.late(now, outcome, allowed=not (now.sample.boundary and self._stateful))
        undo.weights = moves.keep(late)
        moves.move(now, outcome, late)
        return Moved(theta, late, [])

    def _finite(self, now: Instant, outcome: Outcome, moved: Moved) -> bool:
        on_nonfinite, system = self._choices.on_nonfinite, self._system
        if on_nonfinite == "ignore" or not nonfinite(outcome, system, moved, system.velocity.still(now.t)):
            return True
        if on_nonfinite == "raise":
            raise NonFiniteError(nonfinite_message(outcome, system, moved, self._t))
        return False

    def _accepted(self, now: Instant, outcome: Outcome, moved: Moved) -> Commit:
        own, system = outcome.own, self._system
        carry = Carry(outcome.h, outcome.z, outcome.omega, outcome.spec, own, outcome.v, outcome.E)
        fresh, updates = now.sample.boundary, self._updates + (outcome.moves and outcome.learned)
        changes = system.slots.changes()
        if fresh and self._stateful:
            beside = dict(zip(system.names, moved.theta, strict=True)) if moved.beside else {}
            with system.slots.exchanged(beside):
                h, spec = _tree.flatten(_tree.copied(self._network.initial_state(now.sample.u)))
            carry = carry.anew(h, spec, self._order.first(h, spec))
            carry.own = own
        return Commit(self, moved.todo(), changes, carry, now.t + now.rates.tau, updates, fresh)

    def _skipped(self, sample: Sample | None) -> Commit:
        # A skipped sample that ends a sequence still ends it: its tokens must not run on into the next one.
        if sample is not None and sample.boundary:
            return self._anew()
        return Commit(self, (), [], self._carry, self._t, self._updates, self._fresh, memory="kept")

    def _anew(self) -> Commit:
        carry = self._carry.anew([], None, [])
        return Commit(self, (), [], carry, self._t, self._updates, True, memory="dropped")
