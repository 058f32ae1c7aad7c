"""Running an echo block by block: tokens forward to the end of their sequence, back again, then the weights."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn._base.finite import all_finite
from hamlearn._base.scale import scaled
from hamlearn._base.torch_private import foreach_copy_
from hamlearn.engine.blocks.runner import PlannedRunner, undo_of
from hamlearn.engine.eager.stepping import EagerEngine
from hamlearn.engine.rates_table import RateSettings, RatesTable, Steps
from hamlearn.engine.recorded import BlockResult, EchoEngine, Passed, ReferenceStep, Stretch, UnsupportedError
from hamlearn.rates import Rates
from hamlearn.rules.echo import Echoed
from hamlearn.sample import Sample
from hamlearn.state.carry import Carry
from hamlearn.state.tokens import Token
from hamlearn.streams.blocks import Block, stacked


class EchoRunner(PlannedRunner["RatesTable"]):
    """Keeps the tokens that wait for their echo as stretches of rows, and hands them over where asked."""

    def __init__(self, eager: EagerEngine, step: Callable[[Sample], Any]) -> None:
        super().__init__(eager.reader, step)
        self.eager, self.parts = eager, eager.parts
        order = self.parts.order
        assert isinstance(order, Echoed)
        self.order = order
        self.credit = order.credit
        self.checks = self.parts.choices.on_nonfinite != "ignore"
        self.engine = EchoEngine(order, self.checks)
        self.settings = RateSettings([self.parts.hyper], [self.parts.system.velocity], "sequential")
        self.waiting: list[Stretch] = []
        self.since = 0

    def pending(self) -> int:
        """How many tokens wait for their boundary; none where echoes come at a fixed interval too."""
        if self.credit.every is not None:
            return 0
        return sum(stretch.count for stretch in self.waiting) + self.order.pending()

    def plan(self, block: Block) -> RatesTable:
        """Rates of its tokens, and where echoes fall due."""
        if self.credit.memory == "reversible":
            raise UnsupportedError(
                "Echo(memory='reversible') rebuilds its states, which only the eager engine does"
            )
        self._take_over()
        state, learns = self.eager.state, self._due(block) & self._known(block)
        plan = self.settings.table(np.array([state.t]), np.array([state.updates]), Steps.of(block, learns))
        self.parts.usual.overshoot.look(plan.rates_of())
        return plan

    def _due(self, block: Block) -> np.ndarray:
        """Whether an echo falls due at each token."""
        due, since = np.zeros(block.count, dtype=bool), self.since
        for index in range(block.count):
            since += 1
            due[index] = block.ends(index) or since == self.credit.every
            since = 0 if due[index] else since
        return due

    def _known(self, block: Block) -> np.ndarray:
        """Whether a token that would echo at each one has a target."""
        known, targets = np.zeros(block.count, dtype=bool), deque[bool](maxlen=self.credit.truncate)
        for stretch in self.waiting:
            targets.extend(stretch.block.has_target(index) for index in range(stretch.count))
        for index, due in enumerate(self._due(block)):
            targets.append(block.has_target(index))
            known[index] = any(targets)
            if block.ends(index) or (due and self.credit.truncate is None):
                targets.clear()
        return known

    def undo(self) -> Callable[[], None]:
        """What puts back the learner and its waiting tokens."""
        learner, since = undo_of(self.eager), self.since
        waiting = [(stretch, stretch.fresh) for stretch in self.waiting]

        def undo() -> None:
            learner()
            self.waiting, self.since = [stretch for stretch, _ in waiting], since
            for stretch, fresh in waiting:
                stretch.fresh = fresh
            self.order.forget()

        return undo

    def _become(self, **changed: Any) -> None:
        self.eager.state = self.eager.state._replace(**changed)

    def accept(self, block: Block, plan: RatesTable, ran: BlockResult) -> None:
        """Time and number of updates; all else has moved with the tokens."""
        self._become(t=plan.times[-1], updates=plan.learned)

    def take(self, block: Block, plan: RatesTable, undo: Callable[[], None]) -> tuple[BlockResult, int]:
        """All tokens forward, and back again where an echo falls due."""
        eager, system, passed, start = self.eager, self.parts.system, [], 0
        due, learns = self._due(block), plan.steps.learns[:, 0]
        rates_of, counts = self._each_rates(plan), int(plan.updates[0]) + np.cumsum(learns)
        for stop in [*(np.flatnonzero(due[:-1]) + 1).tolist(), block.count]:
            part = block.part(start, stop)
            done = self._forward(part, rates_of[start:stop])
            passed.append(done)
            bad = _first_bad(done, part, self.checks)
            if bad is not None:
                return _rows(passed, eager.state.carry), start + bad
            if due[stop - 1]:
                t, rates = plan.times[stop - 1], rates_of[stop - 1]
                omega, v = self._echo(t, rates, learned=bool(learns[stop - 1]))
                with torch.no_grad():
                    k = int(counts[stop - 1])
                    theta = system.velocity.moved(system.theta, omega, t, rates.stride, v, k)
                    moved = [new for new, old in zip(theta, system.theta, strict=True) if new is not old]
                    if self.checks and not all_finite([*omega, *v, *moved]):
                        return _rows(passed, eager.state.carry), stop - 1
                    foreach_copy_(system.theta, theta)
                self._become(carry=replace(eager.state.carry, omega=omega, v=v))
                self._after_echo(part)
            start = stop
        return _rows(passed, eager.state.carry), block.count

    def _echo(self, t: float, rates: Rates, *, learned: bool) -> tuple[list[Tensor], list[Tensor]]:
        """ω⁺ and v⁺ after the echo of the waiting tokens, the last of which came at time `t`."""
        carry, system, decay = self.eager.state.carry, self.parts.system, self.order.decay(t, rates)
        if system.drive is None or self.credit.dissipate == "token":
            omega = self.engine.backward(self.waiting, scaled(carry.omega, decay))
            if system.drive is not None and learned:
                omega = system.drive.penalised(omega, system.theta, rates.stride * rates.phi)
            return omega, carry.v
        entered = self.engine.backward(self.waiting, [torch.zeros_like(leaf) for leaf in carry.omega])
        gain = rates.stride * rates.phi
        return system.drive.gather(carry.omega, carry.v, entered, system.theta, decay, gain, learned=learned)

    def _each_rates(self, plan: RatesTable) -> list[Rates]:
        """The rates of each token."""
        rates = plan.rates_of()
        return rates if len(rates) == plan.count else rates * plan.count

    def _forward(self, part: Block, each: list[Rates]) -> Passed:
        state = self.eager.state
        met = self.parts.restarted(state.carry, part.sample(0).u) if state.fresh else state.carry
        fresh = torch.zeros(part.count, dtype=torch.bool)
        fresh[0] = state.fresh
        rows = list(torch.tensor([rates[:5] for rates in each], dtype=torch.float64).unbind(1))
        rows[4] = rows[4] * part.mask(part.count)
        trial = ReferenceStep(lambda: self.eager.rehearse(part.sample(0)), self.parts.network)
        done = self.engine.forward(met.h, met.spec, rows, fresh, part, trial)
        self._become(carry=state.carry.restarted(done.h, met.spec, []), fresh=False)
        self.since += part.count
        self.waiting.append(done.stretch)
        self._trim()
        return done

    def _after_echo(self, part: Block) -> None:
        self.since = 0
        # The weights have moved: a kept token's first state is not the one of the present weights.
        for stretch in self.waiting:
            stretch.fresh = torch.zeros_like(stretch.fresh)
        if self.credit.truncate is None:
            self.waiting = []
        if part.ends(part.count - 1):
            self.waiting = []
            carry = self.parts.restarted(self.eager.state.carry, part.sample(part.count - 1).u)
            self._become(carry=carry, fresh=True)

    def _trim(self) -> None:
        if self.credit.truncate is None:
            return
        kept, left = [], self.credit.truncate
        for stretch in reversed(self.waiting):
            if left > 0:
                kept.append(stretch.last(left))
                left -= stretch.count
        self.waiting = kept[::-1]

    def forget(self) -> None:
        """Drop all waiting tokens."""
        self.waiting, self.since = [], 0

    def hand_over(self) -> None:
        """Give the waiting tokens back to the order, which runs them again to have their graphs."""
        if not self.waiting:
            return
        tokens = [token for stretch in self.waiting for token in _tokens(stretch)]
        self.order.take_back(tokens, self.since, self.eager.state.carry.spec)
        self.forget()

    def _take_over(self) -> None:
        """Take the tokens that the order stores; their states are those that this engine's own pass gives."""
        tokens, since = list(self.order.tokens), self.order.since
        if not tokens:
            return
        if any(token.random for token in tokens):
            raise UnsupportedError("tokens that wait for their echo drew random numbers")
        present = self.parts.system.slots.present()
        if any(not torch.equal(a, b) for token in tokens for a, b in zip(token.buffers, present, strict=False)):
            raise UnsupportedError("tokens that wait for their echo changed buffers, and would do so again")
        spec = self.eager.state.carry.spec
        rows = list(torch.tensor([_masked(token) for token in tokens], dtype=torch.float64).unbind(1))
        stale = len(tokens) - since
        fresh = torch.tensor([token.fresh and index >= stale for index, token in enumerate(tokens)])
        blocks = list(stacked([token.sample for token in tokens]))
        if len(blocks) > 1 or blocks[0].u is None:
            raise UnsupportedError("the tokens of a sequence differ in shape")
        block = blocks[0]
        if self.order.joined:
            met = [leaf.detach() for leaf in tokens[0].h]
            taken = ReferenceStep(lambda: None, self.parts.network)
            before = [buffer.clone() for buffer in present]
            self.waiting = [self.engine.forward(met, spec, rows, fresh, block, taken).stretch]
            # The tokens have changed the buffers when they came, and do so only once.
            with torch.no_grad():
                for buffer, was in zip(present, before, strict=True):
                    buffer.copy_(was)
        else:
            h = [
                torch.stack([leaf.detach() for leaf in leaves])
                for leaves in zip(*(t.h for t in tokens), strict=True)
            ]
            assert block.u is not None
            self.waiting = [Stretch(h, block.u, block.target, rows, fresh, block, spec)]
        self.since = since
        self.order.forget()


def _tokens(stretch: Stretch) -> list[Token]:
    rates = torch.stack(stretch.rates, 1).tolist()
    tokens = []
    for index in range(stretch.count):
        h = [leaf[index].clone() for leaf in stretch.h]
        sample: Sample = stretch.block.sample(index)
        fresh = bool(stretch.fresh[index])
        tokens.append(Token(sample, Rates._make([*rates[index], -1]), h, [], None, None, fresh, [], []))
    return tokens


def _masked(token: Token) -> list[float]:
    phi = token.rates.phi if token.sample.target is not None else 0.0
    return [*token.rates[:4], phi]


def _first_bad(done: Passed, part: Block, checked: bool) -> int | None:
    losses = done.loss if checked else None
    bad = torch.zeros(part.count, dtype=torch.bool)
    if done.mark is not None:
        bad |= (done.mark != 0).cpu()
    if losses is not None:
        wrong = ~losses.isfinite().cpu()
        bad |= wrong if part.known is None else wrong & torch.tensor(part.known)
    return int(bad.int().argmax()) if bool(bad.any()) else None


def _rows(passed: list[Passed], carry: Carry) -> BlockResult:
    y = [torch.cat(leaves) for leaves in zip(*(done.y for done in passed), strict=True)]
    losses: list[Any] = []
    for done in passed:
        none = torch.full((done.stretch.count,), torch.nan, device=done.y[0].device)
        losses.append(none if done.loss is None else done.loss)
    return BlockResult(carry, y, passed[0].y_spec, torch.cat(losses), None, None, passed[-1].guards)
