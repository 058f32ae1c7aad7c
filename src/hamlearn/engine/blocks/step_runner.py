"""Orders in which every sample is a step of its own, block by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn._base.finite import all_finite
from hamlearn.engine.blocks.runner import PlannedRunner, undo_of
from hamlearn.engine.eager.parts import LearnerParts
from hamlearn.engine.eager.stepping import EagerEngine
from hamlearn.engine.rates_table import RateSettings, RatesTable, Steps
from hamlearn.engine.recorded import BlockResult, Engine, ReferenceStep, UnsupportedError, Watch, named
from hamlearn.integrators import Euler
from hamlearn.sample import Sample
from hamlearn.state.learner_state import LearnerState
from hamlearn.state.undo import Undo
from hamlearn.streams.blocks import Block


class StepRunner(PlannedRunner[RatesTable]):
    """Orders in which every sample is a step of its own.

    Args:
        eager: What the learner steps by.
        step: Takes one sample eagerly.
    """

    def __init__(self, eager: EagerEngine, step: Callable[[Sample], Any]) -> None:
        super().__init__(eager.reader, step)
        self.eager, self.parts = eager, eager.parts
        choices = self.parts.choices
        self.engine = Engine(self.parts.order, choices.reset_h == "sample", not choices.credit.clears)
        self.settings = RateSettings([self.parts.hyper], [self.parts.system.velocity], str(choices.order))

    def plan(self, block: Block) -> RatesTable:
        """Rates and β of its steps."""
        require_moving([self.parts])
        state = self.eager.state
        plan = self.settings.table(np.array([state.t]), np.array([state.updates]), Steps.of(block))
        self.parts.usual.overshoot.look(plan.rates_of())
        return plan

    def undo(self) -> Undo:
        """What puts the learner back to where it is."""
        return undo_of(self.eager)

    def take(self, block: Block, plan: RatesTable, undo: Callable[[], None]) -> tuple[BlockResult, int]:
        """All steps by one loop."""
        engine, order, theta = self.engine, self.parts.order, self.parts.system.theta
        buffers, frozen = named(order, engine.buffer_names), named(order, engine.frozen_names)
        start, pace = self.parts.met(self.eager.state, block.sample(0).u), plan.pace()
        fresh = block.begins(self.eager.state.fresh, block.count)

        trial = ReferenceStep(lambda: self.eager.rehearse(block.sample(0)), self.parts.network)

        def run(watch: Watch) -> BlockResult:
            return engine.run(theta, buffers, frozen, start, fresh, pace, block, watch, trial)

        watch: Watch = "nothing" if self.parts.choices.on_nonfinite == "ignore" else "state"
        return run_watched(run, undo, theta, block, watch)

    def accept(self, block: Block, plan: RatesTable, ran: BlockResult) -> None:
        """The state after the last step; h0 again, where that ends a sequence."""
        fresh, waiting = block.ends(block.count - 1), self.eager.state.waiting
        carry = self.parts.restarted(ran.carry, block.sample(block.count - 1).u) if fresh else ran.carry
        self.eager.state = LearnerState(carry, plan.times[-1], plan.learned, fresh, waiting)


def require_moving(members: Sequence[LearnerParts]) -> None:
    """Refuse a schedule that would have to move within the stages of an integrator."""
    integrator = members[0].choices.integrator
    if not isinstance(integrator, Euler) and any(parts.timed for parts in members):
        raise UnsupportedError(f"a schedule would stand still within the stages of {integrator!r}")


def run_watched(
    run: Callable[[Watch], BlockResult], undo: Callable[[], None], theta: list[Tensor], block: Block, watch: Watch
) -> tuple[BlockResult, int]:
    """Run a block, and tell how many of its steps from the start on are known to have stayed finite.

    Args:
        run: Runs the block.
        undo: Puts everything back to before it.
        theta: The weights that it changes.
        block: Its samples.
        watch: What to look at step by step.
    """
    ran = run(watch)
    good = good_steps(ran.mark, ran.loss if watch == "state" else None, block)
    if watch == "state" and good == block.count:
        good = good_end([*ran.carry.omega, *ran.carry.v, *theta], block.count)
    return ran, good


def good_end(tensors: Sequence[Tensor], count: int) -> int:
    """All `count` steps if these tensors, which are looked at after the last one only, are finite; else half."""
    # It is not known where they overflowed: halves of halves lead to the step.
    return count if all_finite([tensor.detach() for tensor in tensors]) else count // 2


def good_steps(marks: Tensor | None, losses: Tensor | None, block: Block) -> int:
    """How many steps from the start on have no mark, and a loss that is finite if they have a target."""
    quiet = block.known is None and (marks is None or not marks.sum())
    if quiet and (losses is None or math.isfinite(losses.sum())):
        return block.count
    bad = torch.zeros(block.count, dtype=torch.bool)
    if marks is not None:
        bad |= (marks != 0).cpu()
    if losses is not None:
        wrong = ~losses.isfinite().cpu()
        bad |= wrong if block.known is None else wrong & torch.tensor(block.known)
    return int(bad.int().argmax()) if bool(bad.any()) else block.count
