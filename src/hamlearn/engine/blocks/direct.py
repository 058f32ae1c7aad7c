"""The compiled step of a learner over fixed memory: for callers to whom a microsecond matters."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hamlearn.engine.blocks.scans import whole_block
from hamlearn.engine.blocks.step_runner import StepRunner
from hamlearn.engine.eager.stepping import EagerEngine
from hamlearn.engine.recorded import ReferenceStep, named
from hamlearn.engine.recorded.engine import make_step
from hamlearn.engine.recorded.trace import Inputs, Recorded, Variant, record
from hamlearn.errors import ConfigError
from hamlearn.loops.bound import Bound
from hamlearn.loops.library import Loop
from hamlearn.rules.system import Order
from hamlearn.state.carry import Carry
from hamlearn.streams.blocks import Block


class DirectLoop:
    """Takes samples from fixed memory by a learner's compiled step, without reports, checks or an undo.

    The step is that of `learner.scan`, verified against the eager step when it is recorded. The learner's own
    tensors are its carry and change in place; `settle` tells the learner how many samples were taken. The caller
    has to look for values that are not finite.

    Args:
        eager: What the learner steps by; its rates may not depend on time, nor on the number of updates.
        u: Inputs, with time as the first axis. The caller writes to them.
        target: Targets likewise.
        compiled: The `compiled` of another such loop, for a learner that differs in nothing but its values.

    Attributes:
        compiled: The loop over steps.
        y: The outputs of the last call, one row for each step.
    """

    def __init__(self, eager: EagerEngine, u: Tensor, target: Tensor, compiled: Loop | None = None) -> None:
        self.eager, self._taken = eager, 0
        parts, runner = eager.parts, StepRunner(eager, eager.take)
        if parts.timed or (parts.hyper.phi_first is not None):
            raise ConfigError("rates that change from step to step cannot be bound to fixed memory: use scan()")
        block = whole_block(u, target, None, None, None)
        pace = runner.plan(block).pace()
        carry = parts.met(eager.state, block.sample(0).u).copy()
        self._carry = carry
        engine, order = runner.engine, parts.order
        buffers, frozen = named(order, engine.buffer_names), named(order, engine.frozen_names)
        own = (parts.system.theta, carry.omega, carry.h, carry.z, carry.v, carry.E, buffers, frozen)
        rows = (pace.rates, pace.drive, [u], [target])
        rates, drive, first, aim = ([tensor[0] for tensor in part] for part in rows)
        inputs = Inputs(*own, rates, pace.betas, drive, first, aim, [])

        def recording() -> Recorded:
            names = engine.buffer_names, engine.frozen_names
            specs = carry.spec, block.u_spec, block.target_spec
            variant = Variant(targets=True, fresh=False, watch="nothing")
            return record(order, inputs, variant, specs, names, engine.reset_each, engine.carries)

        if compiled is None:
            compiled = self._compile(order, inputs, recording, block)
        self.compiled = compiled
        carried = [tensor.detach() for part in own[:-1] for tensor in part]
        samples = [*pace.rates, *pace.drive, u, target]
        self._loop = Bound(compiled, carried, samples, [*frozen, *pace.betas])
        self.y = self._loop.results[0]
        self._accept(0)

    def _compile(self, order: Order, inputs: Inputs, recording: Callable[[], Recorded], block: Block) -> Loop:
        trial = ReferenceStep(lambda: self.eager.rehearse(block.sample(0)), self.eager.parts.network)
        kinds = inputs.kinds({"theta", "omega", "h", "z", "v", "E", "buffers"}, {"rates", "drive", "u", "target"})
        made = make_step(order, trial, recording, inputs, kinds, [False] * len(kinds), 1)
        if made.failure is not None:
            raise made.failure
        loop: Loop = made.loop.loop
        return loop

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
        now = state._replace(carry=self._carry, t=state.t + taken * usual.tau, updates=state.updates + taken)
        self.eager.state = now._replace(fresh=state.fresh and not taken)


def carry_of(loop: DirectLoop) -> Carry:
    """What the loop carries, for those who change a part of it."""
    return loop._carry
