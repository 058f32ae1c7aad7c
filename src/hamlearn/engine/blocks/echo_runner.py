"""Running an echo block by block: tokens forward to the end of their sequence, back again, then the weights."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn._base.finite import all_finite
from hamlearn._base.scale import scaled
from hamlearn._base.torch_private import foreach_copy_
from hamlearn.engine.blocks.runner import Masks, StepRunner, known_in, unmarked
from hamlearn.engine.rates_table import RatesTable
from hamlearn.engine.recorded import BlockResult, EchoEngine, ReferenceStep, UnsupportedError
from hamlearn.rates import Rates
from hamlearn.rules.echo import Echoed, Stretch, WaitingTokens
from hamlearn.state.carry import Carry
from hamlearn.streams.blocks import Block, stacked


class EchoRunner(StepRunner):
    """Takes tokens as rows; those that wait for their echo are stretches of rows in the learner's carry."""

    def made(self) -> EchoEngine:
        """The engine of tokens."""
        order = self.parts.order
        assert isinstance(order, Echoed)
        self.order, self.credit = order, order.credit
        self.checks = self.parts.watch == "state"
        return EchoEngine(order, self.checks)

    @property
    def memory(self) -> WaitingTokens:
        """The tokens that wait."""
        return self.eager.state.carry.memory or WaitingTokens()

    def pending(self) -> int:
        """How many tokens wait for their boundary."""
        return self.order.pending(self.memory)

    def plan(self, block: Block, learns: np.ndarray | None = None) -> RatesTable:
        """Rates of its tokens; something is learned where an echo falls due."""
        if self.credit.memory == "reversible":
            raise UnsupportedError(
                "Echo(memory='reversible') rebuilds its states, which only the eager engine does"
            )
        if self.keep:
            raise UnsupportedError("scan(keep=...) follows an echo token by token, as only the eager engine does")
        if self.memory.single:
            self._become(memory=self._stacked(self.memory))
        return super().plan(block, self._echoes(block)[1])

    def accept(self, block: Block, plan: RatesTable, ran: BlockResult) -> None:
        """Time and number of updates; all else has moved with the tokens."""
        self.eager.state = self.eager.state._replace(t=plan.times[-1], updates=plan.learned)

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
            losses = done.loss if self.checks else None
            good = unmarked(part.count, done.mark, losses, partial(_masks, part))
            if good < part.count:
                return _rows(passed, self.eager.state.carry), start + good
            if due[last]:
                if not self._move(plan.times[last], rates_of[last], int(counts[last]), learned=bool(learns[last])):
                    return _rows(passed, self.eager.state.carry), last
                self._after_echo(part)
            start = stop
        return _rows(passed, self.eager.state.carry), block.count

    def _become(self, **changed: Any) -> None:
        """Change parts of the carry."""
        self.eager.state = self.eager.state._replace(carry=replace(self.eager.state.carry, **changed))

    def _echoes(self, block: Block) -> tuple[np.ndarray, np.ndarray]:
        """Whether an echo falls due at each token, and whether one of the tokens that it reaches has a target."""
        due, learns = np.zeros((2, block.count), dtype=bool)
        since, targets = self.memory.since, deque[bool](maxlen=self.credit.truncate)
        for stretch in self.memory.stretches:
            targets.extend(map(stretch.block.has_target, range(stretch.block.count)))
        for index in range(block.count):
            since, ends = since + 1, block.ends(index)
            targets.append(block.has_target(index))
            if ends or since == self.credit.every:
                due[index], learns[index], since = True, any(targets), 0
                if ends or self.credit.truncate is None:
                    targets.clear()
        return due, learns

    def _forward(self, part: Block, each: list[Rates]) -> BlockResult:
        """Run tokens forward, and let them wait."""
        state, memory = self.eager.state, self.memory
        met = self.parts.restarted(state.carry, part.sample(0).u) if state.fresh else state.carry
        rows = _rate_rows([*rates[:5], rates.t] for rates in each)
        rows[4] = rows[4] * part.mask(part.count)
        reference = ReferenceStep(lambda: self.eager.rehearse(part.sample(0)), self.parts.network)
        fresh = torch.arange(part.count) < int(state.fresh)
        done, stretch = self.engine.forward(met.h, met.spec, rows, fresh, part, reference)
        carry = state.carry.restarted(done.carry.h, met.spec, [])
        carry.memory = WaitingTokens((), memory.since + part.count, self._reached((*memory.stretches, stretch)))
        self.eager.state = state._replace(carry=carry, fresh=False, drawn=state.drawn + self.engine.drawn)
        return done

    def _reached(self, stretches: tuple[Stretch, ...]) -> tuple[Stretch, ...]:
        """The tokens that a truncated echo reaches."""
        if self.credit.truncate is None:
            return stretches
        kept, left = list[Stretch](), self.credit.truncate
        for stretch in reversed(stretches):
            if left > 0:
                kept.append(stretch.last(left))
                left -= stretch.block.count
        return tuple(kept[::-1])

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
        self._become(omega=omega, v=v)
        return True

    def _echo(
        self, carry: Carry, decay: float, gain: float, *, learned: bool
    ) -> tuple[list[Tensor], list[Tensor]]:
        """ω⁺ and v⁺."""
        drive, theta, waiting = self.parts.system.drive, self.parts.system.theta, self.memory.stretches
        if self.credit.dissipate == "token":
            omega = self.engine.backward(waiting, scaled(carry.omega, decay))
            return drive.penalised(omega, theta, gain) if learned else omega, carry.v
        entered = self.engine.backward(waiting, drive.before(carry.omega, decay))
        return drive.gather(carry.omega, carry.v, entered, theta, decay, gain, learned=learned)

    def _after_echo(self, part: Block) -> None:
        """Keep what a longer truncation reaches back to; at a boundary, begin again."""
        last = part.count - 1
        if part.ends(last):
            carry = self.parts.restarted(self.eager.state.carry, part.sample(last).u)
            self.eager.state = self.eager.state._replace(carry=carry, fresh=True)
            return
        # The weights have moved: a kept token's first state is not the one of the present weights.
        kept = () if self.credit.truncate is None else tuple(map(_without_start, self.memory.stretches))
        self._become(memory=WaitingTokens((), 0, kept))

    def _stacked(self, memory: WaitingTokens) -> WaitingTokens:
        """Tokens that the eager engine took, as rows.

        Raises:
            UnsupportedError: If they cannot be run again as rows.
        """
        tokens, spec = memory.single, self.eager.state.carry.spec
        present = self.parts.system.slots.present()
        changed = any(not torch.equal(a, b) for t in tokens for a, b in zip(t.buffers, present, strict=False))
        blocks = stacked([token.sample for token in tokens])
        if changed or any(token.random for token in tokens) or len(blocks) > 1 or blocks[0].u is None:
            raise UnsupportedError(
                "tokens that wait for their echo changed buffers, differ in shape, or drew random numbers eagerly"
            )
        if len({tuple(row.shape for row in token.drawn) for token in tokens}) > 1:
            raise UnsupportedError("tokens that wait for their echo drew different random numbers")
        stale = len(tokens) - memory.since
        rates = [[*t.rates[:4], t.rates.phi if t.sample.target is not None else 0.0, t.rates.t] for t in tokens]
        rows = {
            "h": [
                torch.stack([x.detach() for x in leaves]) for leaves in zip(*(t.h for t in tokens), strict=True)
            ],
            "rates": _rate_rows(rates),
            "u": blocks[0].u,
            "target": blocks[0].target,
            "fresh": [torch.tensor([t.fresh and index >= stale for index, t in enumerate(tokens)])],
            "random": [torch.stack(rows) for rows in zip(*(t.drawn for t in tokens), strict=True)],
        }
        return WaitingTokens((), memory.since, (Stretch(rows, blocks[0], spec),))


def _masks(part: Block) -> Masks:
    return None, known_in(part)


def _without_start(stretch: Stretch) -> Stretch:
    rows = stretch.rows | {"fresh": [torch.zeros_like(row) for row in stretch.rows["fresh"]]}
    return replace(stretch, rows=rows)


def _rate_rows(rates: Any) -> list[Tensor]:
    """Rates and times of tokens, one row each, as six tensors."""
    return list(torch.tensor([*rates], dtype=torch.float64).unbind(1))


def _rows(passed: list[BlockResult], carry: Carry) -> BlockResult:
    """The results of several stretches as one."""
    y = [torch.cat(leaves) for leaves in zip(*(done.y for done in passed), strict=True)]
    losses = [
        torch.full((len(done.y[0]),), torch.nan, device=y[0].device) if done.loss is None else done.loss
        for done in passed
    ]
    running = [done.coupling for done in passed if done.coupling is not None]
    return BlockResult(
        carry, y, passed[0].y_spec, torch.cat(losses), torch.cat(running) if running else None, None
    )
