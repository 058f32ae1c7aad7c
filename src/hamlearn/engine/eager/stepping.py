"""The eager step: one sample, or one label, from proposal to commit."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.finite import Part, all_finite, is_finite, what_is_not
from hamlearn._base.interrupts import defer_sigint
from hamlearn._base.replay import Before, evaluating, generators
from hamlearn._base.scale import add_, plus, scale_
from hamlearn._base.torch_private import foreach_copy_, set_grad
from hamlearn.credit import Echo, Sensitivity
from hamlearn.engine.eager.parts import LearnerParts, LearnerState
from hamlearn.engine.recorded import EagerReference, weights_kept
from hamlearn.errors import NonFiniteError, SampleError
from hamlearn.loops.draws import Draws, present_seed
from hamlearn.rules.derivatives import forgets
from hamlearn.rules.system import Instant, Integration, Outcome
from hamlearn.rules.transition import first_state, next_state
from hamlearn.sample import Label, Sample, StepReport
from hamlearn.state.carry import Carry
from hamlearn.state.labels import Waited, require_id
from hamlearn.streams.blocks import copied
from hamlearn.streams.reader import Reader

logger = logging.getLogger("hamlearn")


class Change(NamedTuple):
    """A step that was checked, and has changed nothing yet.

    Attributes:
        after: The learner's state after it.
        theta: θ⁺ beside the weights; `None` if they stay, or if `outcome` says how they move in place.
        now: When it happens.
        outcome: What the order proposed.
        accepted: Whether the order keeps what the step adds to its own memory.
        skipped: Whether nothing is learned, because a value is not finite.
    """

    after: LearnerState
    theta: list[Tensor] | None
    now: Instant
    outcome: Outcome
    accepted: bool = True
    skipped: bool = False


class EagerEngine:
    """Takes one sample, or one label, at a time: the state before it becomes the state after it, or stays.

    A step is proposed, checked, and then committed as a whole. Until then only buffers and random numbers can have
    changed, which are put back on any exception.

    Args:
        parts: What the learner is made of.
        reader: Counts the samples that come from a stream.
        late: How many samples may wait for their labels.

    Attributes:
        state: Where the learner is between two samples.
        seed: Of the random numbers of compiled steps. It follows from PyTorch's generator as it is now.
        led_to: Where the last step led to; at a boundary, before the state returned to h0.
        norms: Groups of the carry whose norms compiled steps report.
    """

    norms: tuple[str, ...] = ()

    def __init__(self, parts: LearnerParts, reader: Reader, late: int) -> None:
        self.parts, self.reader = parts, reader
        self.state = parts.first_state(late)
        self.led_to = self.state.carry
        self.seed = present_seed()

    def random_rows(self, draws: Draws, count: int) -> list[Tensor]:
        """Random numbers of the next compiled steps, one row each; the same ones until the steps are made."""
        return draws.rows(self.seed, self.state.drawn, count)

    def take(self, item: Sample | Label) -> StepReport:
        """Learn from one sample or label; if anything is wrong with it, everything stays as it was."""
        parts, state, mode, waited = self.parts, self.state, torch.is_grad_enabled(), None
        if isinstance(item, Label):
            waited = self._sample_of(item)
            if waited is None:
                return StepReport(state.t, None, None, None, late=True)
        before = self._before()
        try:
            try:
                if isinstance(item, Label):
                    assert waited is not None
                    change = self._by_label(item, waited, before)
                else:
                    change = self._proposed(item, before)
            except BaseException:
                before.put_back()
                raise
            set_grad(False)
            try:
                self._commit(change, item)
            except KeyboardInterrupt:
                # To hold SIGINT back takes a tenth of a small step; to put the same values twice is as good.
                self._commit(change, item)
                raise
        finally:
            set_grad(mode)
        now, outcome, self.led_to = change.now, change.outcome, self.state.carry
        if change.accepted and change.after.fresh and parts.stateful:
            # Now, since a learned h0 is one of the weights that have just moved.
            self.state = self.state._replace(carry=parts.restarted(self.state.carry, now.sample.u))
        t, y, coupling = (now.t, outcome.y, outcome.coupling) if waited is None else (state.t, waited.y, None)
        phi, late = now.rates.phi, waited is not None
        return StepReport(
            t, y, outcome.loss, now.sample, phi=phi, coupling=coupling, skipped=change.skipped, late=late
        )

    def _before(self) -> Before:
        """Buffers and random numbers as they are now; cheap for the many networks that have no buffers."""
        buffers, devices = self.parts.buffers, self.parts.devices
        random = generators(devices) if devices else [torch.default_generator.get_state()]
        return Before(buffers, buffers.keep() if any(buffers.held) else None, devices, random)

    def _sample_of(self, label: Label) -> Waited | None:
        """The kept sample of a label; `None`, and counted, if it is not kept any more."""
        require_id(label.id, "a label")
        if label.target is None:
            raise SampleError(f"the label of id={label.id!r} has no target: give hl.Label(id, target)")
        waiting = self.state.waiting
        if label.id not in waiting.samples:
            if waiting.late == 0:
                # Once: a stream whose labels are too late usually has many of them.
                logger.warning(
                    "the label of id=%r came too late: its sample is not kept, so nothing is learned from it. The "
                    "last %d samples that wait for a label are kept: raise late, which is learner.late in a file. "
                    "learner.labels.late counts such labels",
                    label.id,
                    waiting.most,
                )
            self.state = self.state._replace(waiting=replace(waiting, late=waiting.late + 1))
        return waiting.samples.get(label.id)

    def _proposed(self, sample: Sample, before: Before) -> Change:
        """What the sample would change, checked."""
        parts, state = self.parts, self.state
        waits = sample.id is not None and sample.target is None
        if waits:
            self._require_label_later(sample)
        now = self._instant(sample)
        met = self._carry_for(now) if parts.stateful else state.carry
        renew_autocast()
        outcome = parts.order.propose(met, now)
        set_grad(False)
        if outcome.h and not parts.order.copies:
            break_aliases(outcome, sample)
        theta, system = None, parts.system
        if outcome.dtheta is not None:
            theta = plus(system.theta, outcome.dtheta, now.rates.stride) if outcome.moves else None
        elif outcome.moves and outcome.integration is None:
            k, stride = state.updates + outcome.learned, now.rates.stride
            theta = system.velocity.moved(system.theta, outcome.omega, now.t, stride, outcome.v, k)
        if not self._finite(sample, outcome, theta, before):
            before.put_back()
            # A skipped sample that ends a sequence still ends it.
            after = self._restarted() if sample.boundary else state
            return Change(after, None, now, outcome, accepted=False, skipped=True)
        carry = Carry(outcome.h, outcome.z, outcome.omega, outcome.spec, outcome.v, outcome.E, outcome.memory)
        updates, waiting = state.updates + (outcome.moves and outcome.learned), state.waiting
        if waits:
            begins = parts.stateful and self._begins_sequence()
            waiting = waiting.with_sample(sample, met, begins, outcome.y, now.t)
        after = LearnerState(carry, now.t + now.rates.tau, updates, sample.boundary, waiting, state.drawn)
        return Change(after, theta, now, outcome)

    def _finite(self, sample: Sample, outcome: Outcome, theta: list[Tensor] | None, before: Before) -> bool:
        """Whether all that the step would leave behind is finite; raises if that is what the learner does.

        Large weights are not looked at: if one overflows, the next step finds a value that is not finite.
        """
        parts, policy = self.parts, self.parts.choices.on_nonfinite
        if policy == "ignore":
            return True
        values = [*outcome.h, *outcome.E, *outcome.v]
        if outcome.loss is not None:
            values.append(outcome.loss)
        if outcome.moves:
            values += outcome.z
        if theta is not None:
            # A weight that moves by a costate that is not finite is not finite itself: one look serves both.
            alone = outcome.dtheta is None and not parts.system.velocity.may_stay
            values += theta if alone else [*theta, *outcome.omega]
        # Without a target an input shows nowhere but in running statistics.
        fine = all_finite(values) and (before.kept is None or is_finite(sample.u))
        if fine and outcome.integration is not None:
            fine = all(map(is_finite, outcome.integration.dH or ()))
        if not fine and policy == "raise":
            raise NonFiniteError(self._what_is_not_finite(sample, outcome, theta))
        return fine

    def _commit(self, change: Change, item: Sample | Label) -> None:
        """Make the change. To make it twice is the same."""
        outcome, (taking, progress) = change.outcome, self.reader.taking
        if outcome.integration is not None and outcome.moves and not change.skipped:
            with defer_sigint():
                self._move_in_place(change.now, outcome, outcome.integration)
                outcome.moves = False
        if change.theta is not None:
            foreach_copy_(self.parts.system.theta, change.theta)
        self.state = change.after
        if progress is not None and taking is item:
            self.reader.progress = progress

    def _move_in_place(self, now: Instant, outcome: Outcome, integration: Integration) -> None:
        """ω ← decay·ω + gain·∂H/∂θ, then θ ← θ − τβ⊙ω, without copies of large weights."""
        omega, dH = outcome.omega, integration.dH
        if forgets(integration.decay) and dH is not None:
            # Into the memory of the old ω, so that the gradient's can be used again at the next step.
            foreach_copy_(omega, dH)
            if integration.gain != 1.0:
                scale_(omega, integration.gain)
        else:
            scale_(omega, integration.decay)
            if dH is not None:
                add_(omega, dH, integration.gain)
        system = self.parts.system
        system.velocity.move(system.theta, omega, now.t, now.rates.stride)

    def _by_label(self, label: Label, waited: Waited, before: Before) -> Change:
        """What the label would change: an impulse at the present weights, in which no time passes."""
        sample = replace(waited.sample, target=label.target, scale=label.scale or waited.sample.scale)
        parts, state, carry = self.parts, self.state, self.state.carry
        system = parts.system
        rates = parts.hyper.at(waited.t, sample.tau, first=state.updates == 0)._replace(t=waited.t)
        now = Instant(sample, waited.t, rates, state.updates == 0, False, state.updates)
        h, spec = waited.state()
        if waited.begins and parts.order.needs_h:
            h, spec = trees.flatten(parts.network.initial_state(sample.u))
        nothing, z = [torch.zeros_like(omega) for omega in carry.omega], [torch.zeros_like(leaf) for leaf in h]
        renew_autocast()
        outcome = parts.order.propose(Carry(h, z, nothing, spec, v=carry.v), now).complete()
        set_grad(False)
        # The sample itself has moved statistics and random numbers when it came.
        before.put_back()
        theta = None
        if outcome.dtheta is None:
            k, stride = state.updates + 1, rates.stride
            theta = system.velocity.moved(
                system.theta, outcome.omega, state.t, stride, outcome.v, k, dissipate=False
            )
        omega = plus(carry.omega, outcome.omega, 1.0)
        outcome = replace(outcome, h=[], z=[], omega=omega, dtheta=outcome.dtheta or [])
        finite = self._finite(sample, outcome, theta or list(system.theta), before)
        if finite:
            carry = replace(carry, omega=omega, v=outcome.v)
        waiting = state.waiting.without(label.id, learned=finite)
        after = state._replace(carry=carry, updates=state.updates + finite, waiting=waiting)
        return Change(after, theta if finite else None, now, outcome, accepted=False, skipped=not finite)

    def answer(self, u: Any, tau: float | None) -> Any:
        """The output for `u`, with the network in evaluation mode; nothing moves."""
        parts, state, network = self.parts, self.state, self.parts.network
        renew_autocast()
        with torch.no_grad(), evaluating(network, parts.devices):
            if network.state is None:
                return trees.copied(network.output_net(u, None))
            h, spec = state.carry.h, state.carry.spec
            if self._begins_sequence():
                h, spec = trees.flatten(network.initial_state(u))
            if parts.order.reads_next:
                h, spec, _ = next_state(network, h, spec, u, parts.hyper.at(state.t, tau)._replace(t=state.t))
            return trees.copied(network.output_net(u, trees.unflatten(h, spec)))

    def rehearse(self, sample: Sample) -> EagerReference:
        """What a step with this sample proposes; nothing changes. It raises what the step would raise."""
        parts, sample = self.parts, copied(sample)
        before = self._before()
        try:
            with weights_kept(parts.network):
                now = self._instant(replace(sample, boundary=False))
                met = self._carry_for(now) if parts.stateful else self.state.carry
                outcome = parts.order.propose(met, now).complete()
            return EagerReference.of(parts.system.theta, met, outcome)
        finally:
            before.put_back()

    def reset(self) -> None:
        """Return h to h0 and z to 0, as after a boundary, and drop stored tokens. ω, θ and the time stay."""
        self.state = self._restarted()

    def _restarted(self) -> LearnerState:
        return self.state._replace(carry=self.state.carry.restarted([], None, []), fresh=True)

    def _require_label_later(self, sample: Sample) -> None:
        credit = self.parts.choices.credit
        if not credit.clears or isinstance(credit, Echo | Sensitivity):
            raise SampleError(
                f"the sample with id={sample.id!r} has no target, and with credit={credit!r} "
                "a label that comes later cannot be learned: use hl.Cleared(), or leave out the id"
            )
        if self.parts.system.running_cost is not None:
            raise SampleError(
                f"the sample with id={sample.id!r} has no target, and with running_cost= a label that comes later "
                "cannot be learned, since R has entered with the sample: leave out the id"
            )
        self.state.waiting.require_new(sample)

    def _begins_sequence(self) -> bool:
        return self.state.fresh or self.parts.choices.reset_h == "sample"

    def _instant(self, sample: Sample) -> Instant:
        state, parts = self.state, self.parts
        first = state.updates == 0
        rates = parts.usual.at(state.t, sample.tau, first=first)
        if parts.system.reads_time:
            rates = rates._replace(t=state.t)
        if parts.system.velocity.scheduled:
            parts.system.velocity.check(state.t)
        return Instant(sample, state.t, rates, first, state.fresh, state.updates)

    def _carry_for(self, now: Instant) -> Carry:
        """What the step starts from: the state so far, or h0 at the start of a sequence."""
        parts, carry = self.parts, self.state.carry
        if not self._begins_sequence():
            return carry
        if not parts.order.needs_h:
            return Carry([], [], carry.omega, None, v=carry.v)
        if now.fresh or parts.choices.credit.clears:
            return parts.restarted(carry, now.sample.u)
        h, spec = first_state(parts.network.initial_state(now.sample.u), carry.spec), carry.spec
        if [leaf.shape for leaf in carry.z] != [leaf.shape for leaf in h]:
            raise SampleError(
                f"the state became {trees.describe(h)} while its costate z of {trees.describe(carry.z)} lives "
                "on: keep the batch size, end the sequence with boundary=True, or use hl.Cleared()"
            )
        return replace(carry, h=h, spec=spec)

    def _what_is_not_finite(self, sample: Sample, outcome: Outcome, theta: list[Tensor] | None) -> str:
        """The message of a step that is not finite: which values are not, and what to do about it."""
        system, names = self.parts.system, self.parts.system.names

        def parts() -> Iterator[Part]:
            yield "the input u is not finite", trees.flatten(sample.u)[0]
            yield "the target is not finite", [] if sample.target is None else trees.flatten(sample.target)[0]
            # Large weights are not looked at when they move, so that it may be the step before that went wrong.
            yield (
                "the weights are not finite ({}) since the step before",
                dict(zip(names, system.theta, strict=True)),
            )
            if outcome.loss is not None:
                yield f"the loss is {outcome.loss.item()}", [outcome.loss]
            yield (
                "the costate is not finite (omega of {})",
                dict(zip(names, outcome.complete().omega, strict=True)),
            )
            yield "the costate is not finite (z)", outcome.z
            yield "the state h is not finite", outcome.h
            yield "the sensitivity E of the state is not finite", outcome.E
            yield "what beta follows is not finite (v of {})", dict(zip(names, outcome.v, strict=False))
            yield "the weights would overflow ({})", dict(zip(names, theta or [], strict=False))

        what = what_is_not(parts(), "a value is not finite")
        return (
            f"{what} at t={self.state.t:g}: this sample was not learned and the last good state is kept. "
            "Lower beta or tau, raise eta, look at the sample, or pass on_nonfinite='skip'"
        )


def renew_autocast() -> None:
    """Let autocast convert the weights again: within one `with` block it would keep those of the first step."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        torch.clear_autocast_cache()


def break_aliases(outcome: Outcome, sample: Sample) -> None:
    """Give the new state memory of its own if it is the input, as in a delay line, or is shown as the output.

    Inputs and outputs belong to the user, who may write to them.
    """
    others = [leaf for tree in (sample.u, outcome.y) for leaf in trees.flatten(tree)[0]]
    given = {leaf.data_ptr() for leaf in others if isinstance(leaf, Tensor)}
    outcome.h = [leaf.clone() if leaf.data_ptr() in given else leaf for leaf in outcome.h]
