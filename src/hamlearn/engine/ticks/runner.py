"""Blocks of a stream by ticks in one loop, with the reports, errors and checkpoints of the eager engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.finite import all_finite
from hamlearn.engine.blocks.reports import PendingBlock
from hamlearn.engine.blocks.runner import BlockRunner, Undo
from hamlearn.engine.blocks.step_runner import good_steps, known_in
from hamlearn.engine.rates_table import RateSettings
from hamlearn.engine.recorded import (
    BlockResult,
    EagerReference,
    Engine,
    ReferenceStep,
    UnsupportedError,
    Watch,
)
from hamlearn.engine.ticks.plan import MixedError, TickPlan
from hamlearn.engine.ticks.recorded_rule import RecordedRule
from hamlearn.engine.ticks.ticker import Ticker
from hamlearn.rules.local.aligned import Aligned
from hamlearn.rules.local.costates import dense
from hamlearn.rules.local.delay_free import DelayFree
from hamlearn.rules.system import Outcome
from hamlearn.sample import Sample, StepReport
from hamlearn.state.carry import Carry
from hamlearn.streams.blocks import Block, copied
from hamlearn.streams.reader import Reader

MOST_IN_A_PASS = 1 << 20
"""Weights of a net without delays up to which a loop is faster: they are passed over once for every layer."""


class TickRunner(BlockRunner):
    """Takes blocks of samples in ticks that are recorded from the rule, and run as one loop.

    Args:
        ticker: Time, ω and θ, and what the rule carries.
        hold: Passes that each sample is shown for.
        reader: Reads the stream and keeps count.
        step: Takes one sample eagerly.
    """

    def __init__(self, ticker: Ticker, hold: int, reader: Reader, step: Callable[[Sample], Any]) -> None:
        super().__init__(reader, step)
        self.ticker, self.hold, self.rule, self.system = ticker, hold, ticker.rule, ticker.system
        self.settings = RateSettings([self.system.hyper], [self.system.velocity], self.system.order)
        self.prepare()

    def prepare(self) -> None:
        """Make the engine of the loop."""
        require_recordable(self.ticker)
        self.order = RecordedRule(self.rule)
        self.engine = engine = Engine(self.order, reset_each=False, carries=True)
        root = self.system.network
        engine.buffer_names = [name for name, _ in root.named_buffers()]
        engine.frozen_names = [name for name, weight in root.named_parameters() if not weight.requires_grad]

    def plan(self, block: Block) -> TickPlan | None:
        """Rates of all ticks; `None` if the first sample has to be taken by itself."""
        ticker, good = self.ticker, block.count
        assert block.u is not None
        if torch.is_autocast_enabled(self.system.theta[0].device.type) or torch.is_inference_mode_enabled():
            return None
        if isinstance(self.rule, Aligned):
            if not self.rule.full(ticker.carry, block.sample(0).u):
                return None
            if ticker.on_nonfinite != "ignore":
                good = _finite_rows(block.u)
        elif isinstance(self.rule, DelayFree) and self.system.hyper.phi_first is not None and not ticker.updates:
            # The first loss enters in the midst of a row.
            return None
        if not good:
            return None
        try:
            plan = TickPlan(ticker, self.settings, block.part(0, good), self.hold)
            if 0 < plan.count < good:
                plan = TickPlan(ticker, self.settings, block.part(0, plan.count), self.hold)
        except MixedError:
            return None
        ticker.usual.overshoot.look(plan.steps.rates_of())
        return plan

    def undo(self) -> Undo:
        """What puts the learner back to where it is."""
        ticker = self.ticker
        before = ticker.carry, ticker.omega, ticker.t, ticker.updates, ticker.shown

        def put_back() -> None:
            ticker.carry, ticker.omega, ticker.t, ticker.updates, ticker.shown = before

        return Undo([*self.system.theta, *self.system.slots.present()], put_back)

    @torch.no_grad()
    def take(self, block: Block, plan: TickPlan) -> tuple[BlockResult, int]:
        """All ticks by one loop; returns how many samples went well from the first one on."""
        ticker, rows, first = self.ticker, plan.rows, block.sample(0)
        with ticker.computing():
            begun = self.rule.begin(ticker.carry, first.u)
            if isinstance(self.rule, Aligned):
                for k in _telling_targets(block):
                    self.rule.check_target(block.sample(k))
        begins = None
        if rows.boundary is not None and not isinstance(self.rule, DelayFree | Aligned):
            begins = rows.begins(False, rows.count)

        ticker.carry = begun
        watch: Watch = "nothing" if ticker.on_nonfinite == "ignore" else "state"
        ran = self.loop(begun, plan, begins, watch, first)
        compared = plan.compared
        known = lambda: (None, known_in(compared))  # noqa: E731
        return ran, good_steps(ran, compared.count, watch, self.system.theta, known) // self.hold

    def loop(self, begun: Any, plan: TickPlan, begins: Tensor | None, watch: Watch, first: Sample) -> BlockResult:
        """The rows of a plan, from what is carried when they begin."""
        engine, rows, shown = self.engine, plan.rows, copied(first)
        start = self.rule.flat(begun, [dense(w) for w in self.ticker.omega])
        reference = ReferenceStep(lambda: self._tried(start, shown), self.system.network)
        block = replace(plan.compared, u=rows.u, u_spec=rows.u_spec)
        return engine.run(engine.own(), start, begins, plan.pace(), block, watch, reference)

    def accept(self, block: Block, plan: TickPlan, ran: BlockResult) -> None:
        """Where the last tick has led."""
        ticker = self.ticker
        ticker.carry = plan.carry(ticker.carry, ran.carry)
        ticker.omega = list(ran.carry.omega)
        ticker.t, ticker.updates = plan.times[-1], plan.steps.learned
        ticker.shown += block.count

    def row(self, ahead: PendingBlock, index: int) -> StepReport:
        """The report of a sample; of none while its output is under way."""
        plan, ran = cast(TickPlan, ahead.plan), ahead.ran
        shown = plan.shown(index)
        if shown is None:
            return StepReport(self.ticker.t, None, None, None)
        y = trees.unflatten([leaf[shown.row] for leaf in ran.y], ran.y_spec)
        loss = ran.loss[shown.row] if ran.loss is not None and shown.learned else None
        coupling = None if ran.coupling is None else ran.coupling[shown.row]
        return StepReport(shown.t, y, loss, shown.sample, phi=plan.phi(shown.row), coupling=coupling)

    def _tried(self, start: Carry, sample: Sample) -> EagerReference | None:
        """One row, taken eagerly, to hold the recording against it."""
        found = self.ticker.rehearse(sample, self.rule.ticks)
        if found is None or sample.boundary:
            return None
        carry, omega, report = found
        after = self.rule.flat(carry, [dense(w) for w in omega])
        for begun, state in zip(start.h, after.h, strict=True):
            if begun.dtype is not state.dtype:
                raise UnsupportedError(
                    f"a state begins as {begun.dtype} and continues as {state.dtype}: give h0 as {state.dtype}"
                )
        y, loss = (None, None) if report is None else (report.y, report.loss)
        outcome = Outcome(after.h, after.z, after.omega, () if y is None else y, loss, None, E=after.E)
        return EagerReference.of(self.system.theta, start, outcome)


def require_recordable(ticker: Ticker) -> None:
    """Raise if ticks cannot be recorded, with the reason.

    Raises:
        UnsupportedError: If that is so.
    """
    system = ticker.system
    if system.wide is not None:
        raise UnsupportedError(f"weights are widened to {system.wide} where they are used")
    if isinstance(ticker.rule, DelayFree) and sum(w.numel() for w in system.theta) > MOST_IN_A_PASS:
        raise UnsupportedError(
            f"more than {MOST_IN_A_PASS:,} weights, all of which move whenever one layer does, are faster that way"
        )
    if not isinstance(ticker.rule, Aligned):
        return
    if len(system.wiring.outputs) > 1:
        raise UnsupportedError("an aligned graph with several outputs takes their losses at different ticks")
    if any(True for _ in system.wiring.named_buffers()):
        raise UnsupportedError("an aligned graph evaluates nodes twice, and one of them has buffers")


def _telling_targets(block: Block) -> set[int]:
    """The samples whose targets show whether all fit: the first, and those of the smallest and largest class."""
    known = [k for k in range(block.count) if block.has_target(k)]
    found = set(known[:1])
    for leaf in block.target if known else ():
        if not leaf.is_floating_point() and leaf.numel():
            rows = leaf[known].long().reshape(len(known), -1)
            found |= {known[int(rows.amin(1).argmin())], known[int(rows.amax(1).argmax())]}
    return found


def _finite_rows(leaves: list[Tensor]) -> int:
    """How many rows from the first one on are finite."""
    count = len(leaves[0])
    for leaf in leaves:
        if leaf.is_floating_point() and not all_finite([leaf]):
            bad = ~leaf.view(len(leaf), -1).isfinite().all(1) if leaf.numel() else torch.zeros(len(leaf))
            count = min(count, int(bad.int().argmax()))
    return count
