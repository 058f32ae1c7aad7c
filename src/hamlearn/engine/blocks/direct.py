"""The compiled step of a learner over fixed memory: for callers to whom a microsecond matters."""

from __future__ import annotations

import torch
from torch import Tensor

from hamlearn.engine.blocks.scans import whole_block
from hamlearn.engine.blocks.step_runner import StepRunner
from hamlearn.engine.eager.stepping import EagerEngine
from hamlearn.engine.recorded import ReferenceStep
from hamlearn.engine.recorded.recorder import flat
from hamlearn.errors import ConfigError
from hamlearn.loops.bound import Bound


class DirectLoop:
    """Takes samples from fixed memory by a learner's compiled step, without reports, checks or an undo.

    The step is that of `learner.scan`, verified against the eager step when it is recorded. The learner's own
    tensors are its carry and change in place; `settle` tells the learner how many samples were taken. The caller
    has to look for values that are not finite.

    Args:
        eager: What the learner steps by; its rates may not depend on time, nor on the number of updates.
        u: Inputs, with time as the first axis. The caller writes to them.
        target: Targets likewise.
        other: Another such loop over the same samples, of a learner that differs in nothing but its values: its
            compiled loop and its places for outputs are used, too.

    Attributes:
        y: The outputs of the last call, one row for each step.
        carry: What the loop carries, for those who change a part of it.
    """

    def __init__(self, eager: EagerEngine, u: Tensor, target: Tensor, other: DirectLoop | None = None) -> None:
        self.eager, self._taken, parts = eager, 0, eager.parts
        if parts.timed or (parts.hyper.phi_first is not None):
            raise ConfigError("rates that change from step to step cannot be bound to fixed memory: use scan()")
        block, runner = whole_block(u, target, None, None, None), StepRunner(eager, eager.take)
        carry, engine = parts.met(eager.state, block.sample(0).u).copy(), runner.engine
        pace = runner.plan(block).pace()
        engine.numbers = None  # samples come without a block to draw for
        step, inputs = engine.step_of(engine.own(), carry, None, pace, block, "nothing")
        if other is None:
            reference = ReferenceStep(lambda: eager.rehearse(block.sample(0)), parts.network)
            compiled = engine.compiled(step, inputs, reference).loop.loop
            self._loop = Bound(compiled, flat(inputs.carried), flat(inputs.rows), flat(inputs.constant))
        else:
            self._loop = other._loop.sibling(flat(inputs.carried), flat(inputs.constant))
        self.carry = carry
        self.y = self._loop.results[0]
        self._accept(0)

    def __call__(self, steps: int) -> Tensor:
        """Learn from the first `steps` samples; returns their outputs, each from before its sample was learned."""
        self._loop(steps)
        self._taken += steps
        return self.y

    def settle(self) -> None:
        """Tell the learner where it is now."""
        taken, self._taken = self._taken, 0
        self._accept(taken)
        torch.autograd.graph.increment_version(self.eager.parts.system.theta)

    def _accept(self, taken: int) -> None:
        state, usual = self.eager.state, self.eager.parts.hyper.at(0.0)
        now = state._replace(carry=self.carry, t=state.t + taken * usual.tau, updates=state.updates + taken)
        self.eager.state = now._replace(fresh=state.fresh and not taken)
        self.eager.led_to = self.carry  # the carry from before is not kept: 10,000 small learners would feel it
