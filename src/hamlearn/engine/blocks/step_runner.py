"""Orders in which every sample is a step of its own, block by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hamlearn._base.finite import all_finite
from hamlearn.adaptive import Adaptive
from hamlearn.engine.blocks.driven import drive_rows
from hamlearn.engine.blocks.runner import PlannedRunner, undo_of
from hamlearn.engine.eager.parts import LearnerParts
from hamlearn.engine.eager.stepping import EagerEngine
from hamlearn.engine.recorded import BlockResult, Engine, Pace, ReferenceStep, UnsupportedError, Watch, named
from hamlearn.hyper import Hyper
from hamlearn.integrators import Euler
from hamlearn.rates import Rates
from hamlearn.rules.drive import Drive
from hamlearn.rules.velocity import Velocity
from hamlearn.sample import Sample
from hamlearn.state.learner_state import LearnerState
from hamlearn.state.undo import Undo
from hamlearn.streams.blocks import Block


class StepRunner(PlannedRunner["StepPlan"]):
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
        self._kept: dict[Any, Any] = {}

    def plan(self, block: Block) -> StepPlan:
        """Rates and β of its steps."""
        require_moving([self.parts])
        parts = self.parts
        plan = StepPlan(parts.system, parts.choices.order, parts.timed, self.eager.state, block)
        self.parts.usual.overshoot.look(plan.each_rates())
        return plan

    def undo(self) -> Undo:
        """What puts the learner back to where it is."""
        return undo_of(self.eager)

    def take(self, block: Block, plan: StepPlan, undo: Callable[[], None]) -> tuple[BlockResult, int]:
        """All steps by one loop."""
        engine, order, theta = self.engine, self.parts.order, self.parts.system.theta
        buffers, frozen = named(order, engine.buffer_names), named(order, engine.frozen_names)
        start, pace = self.parts.met(self.eager.state, block.sample(0).u), plan.pace(self._kept)

        trial = ReferenceStep(lambda: self.eager.rehearse(block.sample(0)), self.parts.network)

        def run(watch: Watch) -> BlockResult:
            return engine.run(theta, buffers, frozen, start, plan.fresh, pace, block, watch, trial)

        return run_watched(run, undo, theta, block, plan.watch(self.parts.choices.on_nonfinite))

    def accept(self, block: Block, plan: StepPlan, ran: BlockResult) -> None:
        """The state after the last step; h0 again, where that ends a sequence."""
        fresh, waiting = block.ends(block.count - 1), self.eager.state.waiting
        carry = self.parts.restarted(ran.carry, block.sample(block.count - 1).u) if fresh else ran.carry
        self.eager.state = LearnerState(carry, float(plan.clock[-1]), plan.updates, fresh, waiting)


class Begun(Protocol):
    """Where the steps of a block begin."""

    @property
    def t(self) -> float:
        """Time."""

    @property
    def updates(self) -> int:
        """Number of updates that a loss has entered."""

    @property
    def fresh(self) -> bool:
        """Whether the first sample begins a sequence."""


class Rated(Protocol):
    """What has rates: a system, or what is learned locally."""

    hyper: Hyper
    velocity: Velocity
    drive: Drive | None


class StepPlan:
    """Time, rates and β of each step of a block, as far as they are valid.

    Args:
        system: What has rates.
        order: Name of the order.
        timed: Whether a rate or β depends on time.
        state: Where the block begins.
        block: The samples.

    Attributes:
        rates: A row for each step, of τ, stride, η, η_z and φ; one row stands for all where they are alike.
    """

    def __init__(self, system: Rated, order: str, timed: bool, state: Begun, block: Block) -> None:
        hyper, velocity = system.hyper, system.velocity
        self.driven = system.drive is not None
        self.hyper, self.order, self.begun = hyper, order, state.updates
        self.scheduled, self.has_tensors = velocity.scheduled, velocity.has_tensors
        self.block = block
        self.updates = state.updates
        still = not timed and (self.updates > 0 or hyper.phi_first is None)
        steady = still and block.tau is None
        self.betas: list[list[float | Tensor]] = []
        if steady:
            self.rates = np.array([hyper.at(state.t)[:5]])
            self.betas = [velocity.values(state.t)]
            self.count = block.count
            self.updates += block.targets(self.count)
        elif still and block.tau is not None:
            self.rates, self.betas = hyper.along(block.tau), [velocity.values(state.t)]
            self.count = len(self.rates)
            self.updates += block.targets(self.count)
        else:
            t, rows = state.t, []
            for index in range(block.count):
                tau = None if block.tau is None else block.tau[index]
                try:
                    rates = hyper.at(t, tau, first=self.updates == 0)
                    betas = velocity.values(t)
                except Exception:
                    # The sample is taken by itself when its turn comes, and says what is wrong.
                    break
                rows.append(rates[:5])
                self.betas.append(betas)
                self.updates += block.has_target(index)
                t += rates.tau
            self.rates = np.array(rows).reshape(-1, 5)
            self.count = len(self.rates)
        # One after the other, as single steps add them up.
        self.clock = np.empty(self.count + 1)
        self.clock[0], self.clock[1:] = state.t, self.rates[:, 0]
        np.add.accumulate(self.clock, out=self.clock)
        self.fresh = block.begins(state.fresh, self.count)

    @cached_property
    def times(self) -> list[float]:
        """Time before each step, and after the last one."""
        found: list[float] = self.clock.tolist()
        return found

    @property
    def phis(self) -> np.ndarray:
        """φ of each step; one stands for all where they are alike."""
        return self.rates[:, 4]

    def phi(self, index: int) -> float:
        """φ of a step."""
        return float(self.rates[index if len(self.rates) > 1 else 0, 4])

    def each_rates(self) -> Iterator[Rates]:
        """The rates step by step; once where they are alike."""
        return (Rates._make([*row, self.hyper.s]) for row in self.rates.tolist())

    def watch(self, on_nonfinite: str) -> Watch:
        """What has to be looked at step by step."""
        if on_nonfinite == "ignore":
            return "nothing"
        return first_watch(self.rates, self.betas, [self.hyper])

    def pace(self, kept: dict[Any, Any]) -> Pace:
        """Rates and β as tensors; what does not change from block to block is kept in `kept`."""
        n, known = self.count, self.block.known
        if len(self.rates) == 1:
            key = (*self.rates[0].tolist(), n)
            if kept.get("key") != key:
                kept["key"] = key
                kept["rows"] = [torch.full((n,), rate, dtype=torch.float64) for rate in key[:5]]
            rows = list(kept["rows"])
        else:
            rows = list(torch.from_numpy(self.rates.T.copy()).unbind())
        if known is not None:
            rows[4] = rows[4] * torch.tensor(known[:n], dtype=torch.float64)
        if not self.scheduled:
            # A tensor may have been written to since.
            if "betas" not in kept or self.has_tensors:
                kept["betas"] = [torch.as_tensor(beta, dtype=torch.float64) for beta in self.betas[0]]
            return Pace(rows, kept["betas"], False, self._drive(rows[4]))
        columns = zip(*self.betas, strict=True)
        betas = [torch.stack([torch.as_tensor(b, dtype=torch.float64) for b in column]) for column in columns]
        return Pace(rows, betas, True, self._drive(rows[4]))

    def _drive(self, phi: Tensor) -> list[Tensor]:
        if not self.driven:
            return []
        learned = self.block.mask(self.count).numpy().astype(bool)
        table = drive_rows(self.hyper, self.order, self.begun, learned, phi.numpy() != 0)
        return list(torch.from_numpy(table.T.copy()).unbind())


def require_moving(members: Sequence[LearnerParts]) -> None:
    """Refuse a schedule that would have to move within the stages of an integrator."""
    integrator = members[0].choices.integrator
    if not isinstance(integrator, Euler) and any(parts.timed for parts in members):
        raise UnsupportedError(f"a schedule would stand still within the stages of {integrator!r}")


def first_watch(rates: np.ndarray, betas: Iterable[Iterable[float | Tensor]], hypers: Iterable[Hyper]) -> Watch:
    """What to look at step by step: ω and v only where they could be lost sight of by the end of a block.

    An ω that is not finite stays so, or has made the weights so, unless it is forgotten at once and moves nothing;
    and so does v, unless it keeps nothing.

    Args:
        rates: With τ, stride, η, η_z and φ along the last axis.
        betas: β of the weights, step by step.
        hypers: Of all learners.
    """
    if any(isinstance(hyper.beta, Adaptive) and not hyper.beta.keep for hyper in hypers):
        return "all"
    if not (rates[..., 1] * rates[..., 2] == 1.0).any():
        return "state"
    still = any(
        bool((beta == 0).any()) if isinstance(beta, Tensor) else beta == 0 for step in betas for beta in step
    )
    return "all" if still else "state"


def run_watched(
    run: Callable[[Watch], BlockResult], undo: Callable[[], None], theta: list[Tensor], block: Block, watch: Watch
) -> tuple[BlockResult, int]:
    """Run a block, and tell how many of its steps from the start on stayed finite.

    Args:
        run: Runs the block.
        undo: Puts everything back to before it.
        theta: The weights that it changes.
        block: Its samples.
        watch: What to look at step by step.
    """
    ran = run(watch)
    if watch == "nothing":
        return ran, _good_steps(ran.mark, None, block)
    if watch == "state":
        fine = _good_steps(ran.mark, ran.loss, block) == block.count
        if fine and all_finite([*ran.carry.omega, *ran.carry.v, *(weight.detach() for weight in theta)]):
            return ran, block.count
        # Something went wrong somewhere: look at every step.
        undo()
        ran = run("all")
    return ran, _good_steps(ran.mark, ran.loss, block)


def _good_steps(marks: Tensor | None, losses: Tensor | None, block: Block) -> int:
    """How many steps from the start on went well, for every member where there are several."""
    quiet = block.known is None and (marks is None or not marks.sum())
    if quiet and (losses is None or math.isfinite(losses.sum())):
        return block.count
    bad = torch.zeros(block.count, dtype=torch.bool)
    if marks is not None:
        bad |= (marks != 0).view(block.count, -1).any(1).cpu()
    if losses is not None:
        wrong = ~losses.view(block.count, -1).isfinite().all(1).cpu()
        bad |= wrong if block.known is None else wrong & torch.tensor(block.known)
    return int(bad.int().argmax()) if bool(bad.any()) else block.count
