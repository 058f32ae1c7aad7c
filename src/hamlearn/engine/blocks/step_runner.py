"""Orders in which every sample is a step of its own, block by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn._base.finite import all_finite
from hamlearn.engine.blocks.runner import BlockRunner, Undo
from hamlearn.engine.eager.parts import LearnerParts
from hamlearn.engine.eager.stepping import EagerEngine
from hamlearn.engine.rates_table import RateSettings, RatesTable, Steps
from hamlearn.engine.recorded import NORM, BlockResult, Engine, ReferenceStep, UnsupportedError, Watch
from hamlearn.integrators import Euler
from hamlearn.sample import Sample
from hamlearn.streams.blocks import Block


class StepRunner(BlockRunner):
    """Orders in which every sample is a step of its own.

    Args:
        eager: Takes single steps, and has the learner's state.
        step: Takes one sample eagerly.
    """

    def __init__(self, eager: EagerEngine, step: Callable[[Sample], Any]) -> None:
        super().__init__(eager.reader, step)
        self.eager, self.parts = eager, eager.parts
        parts, choices = self.parts, self.parts.choices
        self.engine: Engine = Engine(parts.order, choices.reset_h == "sample", not choices.credit.clears)
        device = parts.system.theta[0].device
        self.engine.numbers = lambda draws, count: [row.to(device) for row in eager.random_rows(draws, count)]
        self.settings = RateSettings(
            [parts.hyper],
            [parts.system.velocity],
            str(choices.order),
            device=device,
            reads_time=parts.system.reads_time,
        )

    def plan(self, block: Block) -> RatesTable:
        """Rates and β of its steps."""
        require_moving([self.parts])
        state = self.eager.state
        plan = self.settings.table(np.array([state.t]), np.array([state.updates]), Steps.of(block))
        if self.parts.hyper.clock == "continuous":
            self.parts.usual.overshoot.look(plan.rates_of())
        return plan

    def undo(self) -> Undo:
        """What puts the learner back to where it is."""
        return undo_of(self.eager)

    def take(self, block: Block, plan: RatesTable) -> tuple[BlockResult, int]:
        """All steps by one loop."""
        engine, eager, first = self.engine, self.eager, block.sample(0)
        start, fresh = self.parts.met(eager.state, first.u), block.begins(eager.state.fresh, block.count)
        reference = ReferenceStep(lambda: eager.rehearse(first), self.parts.network)
        keep = (*self.keep, *(NORM + name for name in eager.norms))
        ran = engine.run(engine.own(), start, fresh, plan.pace(), block, self.parts.watch, reference, keep)
        known = lambda: (None, known_in(block))  # noqa: E731
        return ran, good_steps(ran, block.count, self.parts.watch, self.parts.system.theta, known)

    def accept(self, block: Block, plan: RatesTable, ran: BlockResult) -> None:
        """The state after the last step; h0 again, if that ends a sequence."""
        state, last = self.eager.state, block.count - 1
        fresh, carry = block.ends(last), ran.carry
        if fresh:
            carry = self.parts.restarted(carry, block.sample(last).u)
        drawn = state.drawn + self.engine.drawn
        self.eager.state = state._replace(
            carry=carry, t=plan.times[-1], updates=plan.learned, fresh=fresh, drawn=drawn
        )


def undo_of(eager: EagerEngine) -> Undo:
    """What puts a learner back to where it is."""
    state, system = eager.state, eager.parts.system
    if system.large:
        # Only large costates are ever written to in place.
        state = state._replace(carry=state.carry.copy())

    def put_back() -> None:
        eager.state = state

    return Undo([*system.theta, *system.slots.present()], put_back)


def require_moving(members: Sequence[LearnerParts]) -> None:
    """Raise `UnsupportedError` if a schedule would have to move within the stages of an integrator."""
    integrator = members[0].choices.integrator
    if not isinstance(integrator, Euler) and any(
        not parts.usual.constant or parts.system.velocity.scheduled for parts in members
    ):
        raise UnsupportedError(f"a schedule would stand still within the stages of {integrator!r}")


Masks = tuple[Tensor | None, Tensor | None]
"""Where marks count, and where losses count, by step and member; `None`: everywhere."""


def good_steps(
    ran: BlockResult, count: int, watch: Watch, theta: Sequence[Tensor], masks: Callable[[], Masks]
) -> int:
    """How many steps from the first one on are known to have gone well.

    Args:
        ran: What the steps led to.
        count: Number of steps.
        watch: Values that are looked at.
        theta: The weights, which are looked at after the last step only, as ω and v are.
        masks: Where marks and losses count.
    """
    good = unmarked(count, ran.mark, ran.loss if watch == "state" else None, masks)
    if watch == "state" and good == count:
        end = [*ran.carry.omega, *ran.carry.v, *theta]
        # It is not known where they overflowed: halves of halves lead to the step.
        return good if all_finite([tensor.detach() for tensor in end]) else good // 2
    return good


def known_in(block: Block) -> Tensor | None:
    """Whether each sample has a target; `None` if all have one, or none has."""
    return None if block.known is None else torch.tensor(block.known)


def unmarked(count: int, marks: Tensor | None, losses: Tensor | None, masks: Callable[[], Masks]) -> int:
    """How many of `count` steps from the first one on have no mark, and no loss that is not finite.

    Args:
        count: Number of steps.
        marks: How many entries are not finite, by step and member.
        losses: Losses by step and member.
        masks: Where marks and losses count.
    """
    marked = marks is not None and bool(marks.any())
    lost = losses is not None and not math.isfinite(losses.sum())
    if not (marked or lost):
        return count
    taking, known = masks()
    bad = torch.zeros(count, dtype=torch.bool)
    if marks is not None:
        bad |= _rows(marks != 0, taking)
    if losses is not None:
        bad |= _rows(~losses.isfinite(), known)
    return int(bad.int().argmax()) if bool(bad.any()) else count


def _rows(flags: Tensor, where: Tensor | None) -> Tensor:
    """Whether any flag of a step is set."""
    flags = flags.cpu() if where is None else flags.cpu() & where
    return flags.reshape(len(flags), -1).any(1)
