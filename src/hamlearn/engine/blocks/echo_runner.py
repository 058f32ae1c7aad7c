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
from hamlearn.engine.blocks.runner import BlockRunner
from hamlearn.engine.blocks.step_runner import known_in, undo_of, unmarked
from hamlearn.engine.eager.stepping import EagerEngine
from hamlearn.engine.rates_table import RateSettings, RatesTable, Steps
from hamlearn.engine.recorded import BlockResult, EchoEngine, ReferenceStep, Stretch, UnsupportedError
from hamlearn.rates import Rates
from hamlearn.rules.echo import Echoed
from hamlearn.sample import Sample
from hamlearn.state.carry import Carry
from hamlearn.state.tokens import Token
from hamlearn.streams.blocks import Block, stacked


class EchoRunner(BlockRunner):
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
        """Rates of its tokens; something is learned where an echo falls due."""
        if self.credit.memory == "reversible":
            raise UnsupportedError(
                "Echo(memory='reversible') rebuilds its states, which only the eager engine does"
            )
        if self.keep:
            raise UnsupportedError("scan(keep=...) follows an echo token by token, as only the eager engine does")
        self._take_over()
        state, (_, learns) = self.eager.state, self._echoes(block)
        plan = self.settings.table(np.array([state.t]), np.array([state.updates]), Steps.of(block, learns))
        if self.parts.hyper.clock == "continuous":
            self.parts.usual.overshoot.look(plan.rates_of())
        return plan

    def _echoes(self, block: Block) -> tuple[np.ndarray, np.ndarray]:
        """Whether an echo falls due at each token, and whether one of the tokens that it reaches has a target."""
        due, learns = np.zeros((2, block.count), dtype=bool)
        since, targets = self.since, deque[bool](maxlen=self.credit.truncate)
        for stretch in self.waiting:
            targets.extend(map(stretch.block.has_target, range(stretch.count)))
        for index in range(block.count):
            since, ends = since + 1, block.ends(index)
            targets.append(block.has_target(index))
            if ends or since == self.credit.every:
                due[index], learns[index], since = True, any(targets), 0
                if ends or self.credit.truncate is None:
                    targets.clear()
        return due, learns

    def undo(self) -> Callable[[], None]:
        """What puts back the learner and its waiting tokens."""
        learner, since = undo_of(self.eager), self.since
        # Rows are replaced and never written to.
        waiting = [(stretch, dict(stretch.rows)) for stretch in self.waiting]

        def undo() -> None:
            learner()
            self.waiting, self.since = [stretch for stretch, _ in waiting], since
            for stretch, rows in waiting:
                stretch.rows = dict(rows)
            self.order.forget()

        return undo

    def _become(self, **changed: Any) -> None:
        self.eager.state = self.eager.state._replace(**changed)

    def accept(self, block: Block, plan: RatesTable, ran: BlockResult) -> None:
        """Time and number of updates; all else has moved with the tokens."""
        self._become(t=plan.times[-1], updates=plan.learned)

    def take(self, block: Block, plan: RatesTable) -> tuple[BlockResult, int]:
        """All tokens forward, and back again where an echo falls due."""
        (due, learns), passed, start = self._echoes(block), list[BlockResult](), 0
        rates_of, counts = plan.rates_of(), int(plan.updates[0]) + np.cumsum(learns)
        rates_of = rates_of if len(rates_of) == plan.count else rates_of * plan.count
        if self.parts.system.reads_time:
            rates_of = [rates._replace(t=t) for rates, t in zip(rates_of, plan.times, strict=False)]
        for stop in [*(np.flatnonzero(due[:-1]) + 1).tolist(), block.count]:
            part, last = block.part(start, stop), stop - 1
            done = self._forward(part, rates_of[start:stop])
            passed.append(done)
            good = self._good(done, part)
            if good < part.count:
                return _rows(passed, self.eager.state.carry), start + good
            if due[last]:
                if not self._move(plan.times[last], rates_of[last], int(counts[last]), learned=bool(learns[last])):
                    return _rows(passed, self.eager.state.carry), last
                self._after_echo(part)
            start = stop
        return _rows(passed, self.eager.state.carry), block.count

    def _good(self, done: BlockResult, part: Block) -> int:
        """How many tokens from the first one on are known to have gone well."""
        losses = done.loss if self.checks else None
        return unmarked(part.count, done.mark, losses, lambda: (None, known_in(part)))

    @torch.no_grad()
    def _move(self, t: float, rates: Rates, k: int, *, learned: bool) -> bool:
        """ω and θ after the echo of the waiting tokens, the last of which came at time `t`, if they are finite."""
        system, carry = self.parts.system, self.eager.state.carry
        omega, v = self._echo(carry, self.order.decay(t, rates), rates.stride * rates.phi, learned=learned)
        theta = system.velocity.moved(system.theta, omega, t, rates.stride, v, k)
        moved = [new for new, old in zip(theta, system.theta, strict=True) if new is not old]
        if self.checks and not all_finite([*omega, *v, *moved]):
            return False
        foreach_copy_(system.theta, theta)
        self._become(carry=replace(carry, omega=omega, v=v))
        return True

    def _echo(
        self, carry: Carry, decay: float, gain: float, *, learned: bool
    ) -> tuple[list[Tensor], list[Tensor]]:
        """ω⁺ and v⁺."""
        drive, theta = self.parts.system.drive, self.parts.system.theta
        if self.credit.dissipate == "token":
            omega = self.engine.backward(self.waiting, scaled(carry.omega, decay))
            return drive.penalised(omega, theta, gain) if learned else omega, carry.v
        entered = self.engine.backward(self.waiting, drive.before(carry.omega, decay))
        return drive.gather(carry.omega, carry.v, entered, theta, decay, gain, learned=learned)

    def _forward(self, part: Block, each: list[Rates]) -> BlockResult:
        state = self.eager.state
        met = self.parts.restarted(state.carry, part.sample(0).u) if state.fresh else state.carry
        rows = _rate_rows([*rates[:5], rates.t] for rates in each)
        rows[4] = rows[4] * part.mask(part.count)
        reference = ReferenceStep(lambda: self.eager.rehearse(part.sample(0)), self.parts.network)
        fresh = torch.arange(part.count) < int(state.fresh)
        done, stretch = self.engine.forward(met.h, met.spec, rows, fresh, part, reference)
        self._become(carry=state.carry.restarted(done.carry.h, met.spec, []), fresh=False)
        self.since += part.count
        self.waiting.append(stretch)
        self._trim()
        return done

    def _after_echo(self, part: Block) -> None:
        self.since = 0
        ends = part.ends(part.count - 1)
        if ends or self.credit.truncate is None:
            self.waiting = []
        # The weights have moved: a kept token's first state is not the one of the present weights.
        for stretch in self.waiting:
            stretch.rows["fresh"] = [torch.zeros_like(row) for row in stretch.rows["fresh"]]
        if ends:
            carry = self.parts.restarted(self.eager.state.carry, part.sample(part.count - 1).u)
            self._become(carry=carry, fresh=True)

    def _trim(self) -> None:
        """Keep the tokens that a truncated echo reaches."""
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
        if self.waiting:
            tokens = [token for stretch in self.waiting for token in _tokens(stretch)]
            self.order.take_back(tokens, self.since, self.eager.state.carry.spec)
            self.forget()

    def _take_over(self) -> None:
        """Take the tokens that the order stores."""
        tokens, since, spec = list(self.order.tokens), self.order.since, self.eager.state.carry.spec
        if not tokens:
            return
        present = self.parts.system.slots.present()
        changed = any(not torch.equal(a, b) for t in tokens for a, b in zip(t.buffers, present, strict=False))
        blocks = list(stacked([token.sample for token in tokens]))
        if changed or any(token.random for token in tokens) or len(blocks) > 1 or blocks[0].u is None:
            raise UnsupportedError(
                "tokens that wait for their echo changed buffers, drew random numbers or differ in shape"
            )
        block, stale = blocks[0], len(tokens) - since
        rates = _rate_rows(
            [*t.rates[:4], t.rates.phi if t.sample.target is not None else 0.0, t.rates.t] for t in tokens
        )
        fresh = torch.tensor([token.fresh and index >= stale for index, token in enumerate(tokens)])
        if self.order.joined:
            # Its own pass gives the bits that it would have given.
            met, taken = [leaf.detach() for leaf in tokens[0].h], ReferenceStep(lambda: None, self.parts.network)
            self.waiting = [self.engine.forward(met, spec, rates, fresh, block, taken)[1]]
        else:
            h = [torch.stack([x.detach() for x in leaves]) for leaves in zip(*(t.h for t in tokens), strict=True)]
            rows = {"h": h, "rates": rates, "u": block.u or [], "target": block.target, "fresh": [fresh]}
            self.waiting = [Stretch(rows, block, spec)]
        self.since = since
        self.order.forget()


def _tokens(stretch: Stretch) -> list[Token]:
    rates, (fresh,) = torch.stack(stretch.rows["rates"], 1).tolist(), stretch.rows["fresh"]
    return [
        Token(
            stretch.block.sample(index),
            Rates._make([*rates[index][:5], -1, rates[index][5]]),
            [leaf[index].clone() for leaf in stretch.rows["h"]],
            [],
            None,
            None,
            bool(fresh[index]),
        )
        for index in range(stretch.count)
    ]


def _rate_rows(rates: Any) -> list[Tensor]:
    """Rates and times of tokens, one row each, as six tensors."""
    return list(torch.tensor([*rates], dtype=torch.float64).unbind(1))


def _rows(passed: list[BlockResult], carry: Carry) -> BlockResult:
    y = [torch.cat(leaves) for leaves in zip(*(done.y for done in passed), strict=True)]
    losses = [
        torch.full((len(done.y[0]),), torch.nan, device=y[0].device) if done.loss is None else done.loss
        for done in passed
    ]
    running = [done.coupling for done in passed if done.coupling is not None]
    return BlockResult(
        carry, y, passed[0].y_spec, torch.cat(losses), torch.cat(running) if running else None, None
    )
