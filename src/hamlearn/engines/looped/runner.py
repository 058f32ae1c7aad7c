"""Blocks of a stream by ticks in one loop, with the reports, errors and checkpoints of the eager engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.finite import all_finite
from hamlearn.engines.blocks.reports import Ahead
from hamlearn.engines.blocks.runner import PlannedRunner
from hamlearn.engines.blocks.step_runner import run_watched
from hamlearn.engines.looped.plan import AlignedPlan, MixedError, PassPlan, TickPlan
from hamlearn.engines.looped.registers import Registers, held_by, own_copy
from hamlearn.engines.looped.tick_order import TickOrder, TickSystem
from hamlearn.engines.recorded import Engine, Ran, Trial, Tried, UnsupportedError, Watch, named
from hamlearn.engines.ticks.ticker import Ticker
from hamlearn.orders.local.aligned import Aligned
from hamlearn.orders.local.delay_free import DelayFree
from hamlearn.orders.local.outer import dense
from hamlearn.orders.system import Outcome
from hamlearn.sample import Sample, StepReport
from hamlearn.state.carry import Carry
from hamlearn.state.undo import Undo
from hamlearn.streams.blocks import Block, copied
from hamlearn.streams.reader import Reader

MOST_IN_A_PASS = 1 << 20
"""Weights of a net without delays up to which a loop is faster: they are passed over once for every layer."""


class TickRunner(PlannedRunner[TickPlan]):
    """Takes blocks of samples in ticks that are recorded from the eager order, and run as one loop.

    Args:
        ticker: Time, ω and θ, and the order that states go back to.
        hold: Passes that each sample is shown for.
        reader: Reads the stream and keeps count.
        step: Takes one sample eagerly.
    """

    def __init__(self, ticker: Ticker, hold: int, reader: Reader, step: Callable[[Sample], Any]) -> None:
        super().__init__(reader, step)
        self.ticker, self.hold = ticker, hold
        require_recordable(ticker)
        self.held = held_by(ticker.engine)
        self.system = TickSystem(ticker.system)
        self.order = TickOrder(self.system, self.held)
        self.engine = Engine(self.order, reset_each=False, carries=True)
        root = self.system.network
        self.engine.buffer_names = [name for name, _ in root.named_buffers()]
        self.engine.frozen_names = [name for name, weight in root.named_parameters() if not weight.requires_grad]
        self._kept: dict[Any, Any] = {}

    def plan(self, block: Block) -> TickPlan | None:
        """Rates of all ticks; `None` where the first sample has to be taken by itself."""
        ticker, system = self.ticker, self.system
        assert block.u is not None
        for _ in range(0 if self.again else min(block.count, ticker.watch.parts)):
            ticker.watch.check()
        if torch.is_autocast_enabled(system.theta[0].device.type) or torch.is_inference_mode_enabled():
            return None
        good = block.count
        if isinstance(self.held, Registers):
            if not self.held.full(ticker.engine, block.sample(0).u):
                return None
            if ticker.on_nonfinite != "ignore":
                good = _finite_rows(block.u)
        if not good:
            return None
        block = block.part(0, good)
        try:
            plan = self._planned(block)
        except MixedError:
            return None
        if 0 < plan.count < block.count:
            plan = self._planned(block.part(0, plan.count))
        ticker.usual.overshoot.look(plan.steps.each_rates())
        return plan

    def _planned(self, block: Block) -> TickPlan:
        ticker, ticks = self.ticker, self.order.ticks
        if isinstance(self.held, Registers):
            return AlignedPlan(ticker, self.system, block, self.hold, self.held)
        kind = PassPlan if isinstance(ticker.engine, DelayFree) else TickPlan
        return kind(ticker, self.system, block, self.hold, ticks)

    def undo(self) -> Undo:
        """What puts the learner back to where it is."""
        ticker, order = self.ticker, self.ticker.engine
        ticker.take_over()
        # Whoever has read the state may write to it, and so may the ticks that come after it is put back.
        held, omega = own_copy(order.snapshot(ticks=1)), own_copy(ticker.omega)
        numbers = ticker.t, ticker.updates, ticker.shown

        def put_back() -> None:
            order.restore(own_copy(held))
            ticker.omega = own_copy(omega)
            ticker.t, ticker.updates, ticker.shown = numbers

        return Undo([*self.system.theta, *self.system.slots.present()], put_back)

    @torch.no_grad()
    def take(self, block: Block, plan: TickPlan, undo: Callable[[], None]) -> tuple[Ran, int]:
        """All ticks by one loop; answers how many samples went well from the first one on."""
        ticker, order, engine, rows = self.ticker, self.ticker.engine, self.engine, plan.rows
        theta, first = self.system.theta, block.sample(0)
        order.begin(first.u)
        if isinstance(self.held, Registers):
            self.held.check_target(order, block)
        h, z = self.held.taken(order)
        start = Carry(h, z, [dense(w) for w in ticker.omega], None)
        buffers, frozen = named(self.order, engine.buffer_names), named(self.order, engine.frozen_names)
        begins = None
        if rows.boundary is not None and not isinstance(order, DelayFree):
            begins = rows.begins(False, rows.count)
        pace = plan.pace(self._kept)
        shown = copied(first)
        if isinstance(order, DelayFree) and rows.target:
            # What a loop finds for a sample without a target waits too, and is left out when its turn comes.
            shown.target = trees.unflatten([leaf[0] for leaf in rows.target], rows.target_spec)
        trial = Trial(lambda: self._tried(start, shown), self.system.network)

        def run(watch: Watch) -> Ran:
            # First states are there again after the block was undone.
            order.begin(first.u)
            return engine.run(theta, buffers, frozen, start, begins, pace, rows, watch, trial)

        watch: Watch = "nothing" if ticker.on_nonfinite == "ignore" else "state"
        ran, good = run_watched(run, undo, theta, rows, watch)
        if watch == "state" and not self._goes_on(ran, plan):
            good = min(good, rows.count - 1)
        if good < rows.count and ticker.system.order == "parallel":
            # Weights that are not finite after a tick are refused in the tick before, which made their costate.
            good = max(0, good - 1)
        return ran, good // self.hold

    def accept(self, block: Block, plan: TickPlan, ran: Ran) -> None:
        """Where the last tick has led."""
        ticker, order, held = self.ticker, self.ticker.engine, (ran.carry.h, ran.carry.z)
        if isinstance(self.held, Registers):
            flights = cast(AlignedPlan, plan).flights(plan.rows.count)
            self.held.give(order, held, order.number + plan.rows.count, flights)
        elif isinstance(order, DelayFree):
            self.held.give(order, held)
            order.kappa += plan.rows.count * plan.ticks
            if not block.has_target(block.count - 1):
                order.pending = {}
        else:
            order.h, order.z = ([], []) if block.ends(block.count - 1) else held
        ticker.omega = list(ran.carry.omega)
        ticker.t, ticker.updates = plan.t, plan.updates
        ticker.shown += block.count

    def row(self, ahead: Ahead, index: int) -> StepReport:
        """The report of a sample; of none while its output is under way."""
        plan, ran = cast(TickPlan, ahead.plan), ahead.ran
        told = plan.told(index)
        if told is None:
            return StepReport(self.ticker.t, None, None, None)
        y = trees.unflatten([leaf[told.row] for leaf in ran.y], ran.y_spec)
        loss = ran.loss[told.row] if ran.loss is not None and told.learned else None
        coupling = None if ran.coupling is None else ran.coupling[told.row]
        return StepReport(told.t, y, loss, told.sample, phi=told.phi, coupling=coupling)

    def _tried(self, start: Carry, sample: Sample) -> Tried | None:
        """One row, taken eagerly, to hold the recording against it."""
        ticker = self.ticker

        def seen() -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
            return *self.held.taken(ticker.engine), [dense(w) for w in ticker.omega]

        found, told = ticker.rehearse(sample, self.order.ticks, seen)
        if found is None or sample.boundary:
            return None
        h, z, omega = found
        for begun, state in zip(start.h, h, strict=True):
            if begun.dtype is not state.dtype:
                raise UnsupportedError(
                    f"a state begins as {begun.dtype} and goes on as {state.dtype}: give h0 as {state.dtype}"
                )
        y, loss = (None, None) if told is None else (told.y, told.loss)
        return Tried.of(self.system.theta, start, Outcome(h, z, omega, () if y is None else y, loss, None))

    def _goes_on(self, ran: Ran, plan: TickPlan) -> bool:
        """Whether the weights stay finite in the tick after these too, as the eager engine sees to."""
        if self.ticker.system.order == "sequential":
            return True
        stride, theta = float(plan.steps.rates[-1, 1]), self.system.theta
        after = self.system.velocity.moved(theta, ran.carry.omega, plan.times[-2], stride)
        return all_finite([x.detach() for x in after])


def require_recordable(ticker: Ticker) -> None:
    """Raise where ticks cannot be recorded, with the reason.

    Raises:
        UnsupportedError: If that is so.
    """
    system = ticker.system
    if system.wide is not None:
        raise UnsupportedError(f"weights are widened to {system.wide} where they are used")
    if isinstance(ticker.engine, DelayFree) and sum(w.numel() for w in system.theta) > MOST_IN_A_PASS:
        raise UnsupportedError(
            f"more than {MOST_IN_A_PASS:,} weights, all of which move whenever one layer does, are faster that way"
        )
    if not isinstance(ticker.engine, Aligned):
        return
    if len(system.wiring.outputs) > 1:
        raise UnsupportedError("an aligned graph with several outputs takes their losses at different ticks")
    if any(True for _ in system.wiring.named_buffers()):
        raise UnsupportedError("an aligned graph evaluates nodes twice, and one of them has buffers")


def _finite_rows(leaves: list[Tensor]) -> int:
    """How many rows from the first one on are finite."""
    count = len(leaves[0])
    for leaf in leaves:
        if leaf.is_floating_point() and not all_finite([leaf]):
            bad = ~leaf.view(len(leaf), -1).isfinite().all(1) if leaf.numel() else torch.zeros(len(leaf))
            count = min(count, int(bad.int().argmax()))
    return count
