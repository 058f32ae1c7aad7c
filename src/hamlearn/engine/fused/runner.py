"""Blocks of a stream by fused ticks, with the reports, errors and checkpoints of the eager engines."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, cast

import torch
from torch import Tensor

from hamlearn.engine.blocks.reports import PendingBlock
from hamlearn.engine.blocks.runner import BlockRunner
from hamlearn.engine.fused import exchange
from hamlearn.engine.fused.fit import Group, check_batch, fit
from hamlearn.engine.fused.pace import FusedPace, Taken
from hamlearn.engine.fused.tick import AT_ONCE, Ticks
from hamlearn.engine.ticks.ticker import Ticker
from hamlearn.rules.local.aligned import Aligned
from hamlearn.sample import Sample, StepReport
from hamlearn.state.undo import Undo
from hamlearn.streams.blocks import Block
from hamlearn.streams.reader import Reader


class FusedRunner(BlockRunner):
    """Takes blocks of samples in ticks of kernels that read and write all weights and costates once.

    While a run goes on, states and ω lie where the kernels have them; `hand_over` gives them back.

    Args:
        ticker: Time, ω and θ, and the engine that they go back to.
        hold: Ticks that each sample is shown for.
        reader: Reads the stream and keeps count.
        step: Takes one sample eagerly.
    """

    def __init__(self, ticker: Ticker, hold: int, reader: Reader, step: Callable[[Sample], Any]) -> None:
        super().__init__(reader, step)
        self.ticker = ticker
        self._rule: Any = ticker.rule
        self._hold = hold
        self._loss = ticker.system.loss_of[ticker.system.wiring.outputs[0]]
        self._ticks: Ticks | None = None
        self._key: Any = None
        self._holds = False
        self.flights: dict[int, Taken] = {}
        self.number = 0
        self.fresh = False

    @torch.no_grad()
    def run(self, block: Block) -> PendingBlock | None:
        """Take as much of the block as goes well, at once."""
        ticker = self.ticker
        groups = fit(ticker.system)
        device = groups[0].weight.device
        fits = _fits(block, groups, self._loss)
        if not fits or torch.is_autocast_enabled(device.type) or torch.is_inference_mode_enabled():
            return None
        if not self.again:
            ticker.system.require_same()
        ticks = self._ready(block, groups)
        if ticks is None:
            return None
        assert block.u is not None
        u = _brought(block.u[0], device)
        target = _brought(block.target[0], device) if block.target else None
        rows = list(u.unbind()), [] if target is None else list(target.unbind())
        flights = dict(self.flights)
        lag = self._lag()
        pace = FusedPace(ticker, block, self._hold, lag, self.number, flights, self.fresh, rows)
        if pace.count < block.count:
            return self.shorter(block, pace.count, lambda: None)
        undo = self._undo(ticks)
        ran = self._run(ticks, pace, u)
        good = block.count
        if ticker.on_nonfinite != "ignore":
            bad = ran.wrong(pace)
            if lag is not None:
                bad[:-1] |= ~u.isfinite().flatten(1).all(1).repeat_interleave(self._hold)
            bad[-1] |= ~torch.stack([held.z[0].isfinite().all() for held in ticks.held]).all()
            first = bad.nonzero()
            if len(first):
                # A costate is looked at in the tick after the one that it was made in.
                good = max(0, int(first[0]) - 1) // self._hold
        if good < block.count:
            return self.shorter(block, good, undo)
        self.number += len(pace.rows)
        horizon = 0 if lag is None else self._rule.schedule.horizon
        self.flights = {n: entry for n, entry in flights.items() if n > self.number - horizon}
        self.fresh = pace.fresh
        ticker.t, ticker.updates = pace.t, pace.updates
        ticker.shown += block.count
        torch.autograd.graph.increment_version(ticker.system.theta)
        self.ahead = PendingBlock(block, pace, ran, undo, self.reader.progress)  # type: ignore[arg-type]
        return self.ahead

    def row(self, ahead: PendingBlock, index: int) -> StepReport:
        """The report of a sample; of none while the first samples are under way."""
        pace, ran = cast(FusedPace, ahead.plan), cast(FusedRan, ahead.ran)
        shown = pace.shown[index]
        if shown is None:
            return StepReport(self.ticker.t, None, None, None)
        entry, tick = shown.entry, shown.tick
        y, losses = ran.rows
        loss = None if entry.target is None else losses[tick]
        coupling = None if pace.lag is not None else partial(ran.coupled, tick, shown.rates.tau)
        return StepReport(entry.t, y[tick], loss, entry.given(), phi=shown.rates.phi, coupling=coupling)

    @torch.no_grad()
    def hand_over(self) -> None:
        """Give states and ω back to the eager engine."""
        if not self._holds:
            return
        assert self._ticks is not None
        if isinstance(self._rule, Aligned):
            self.ticker.carry = exchange.give_aligned(self._ticks, self._rule, self.number, self.flights)
        else:
            self.ticker.carry = exchange.give_unaligned(self._ticks, self.fresh)
        exchange.give_omega(self._ticks, self.ticker)
        self._holds, self.flights = False, {}

    def _undo(self, ticks: Ticks) -> Undo:
        """What puts the learner back to where it is."""
        ticker, theta = self.ticker, self.ticker.system.theta
        numbers = self.number, self.flights, self.fresh, ticker.t, ticker.updates, ticker.shown

        def put_back() -> None:
            self.number, self.flights, self.fresh, ticker.t, ticker.updates, ticker.shown = numbers
            torch.autograd.graph.increment_version(theta)

        return Undo([*theta, ticks.clock, *(x for held in ticks.held for x in held.state())], put_back)

    def _lag(self) -> int | None:
        """Aligned: ticks from a sample's entry to its loss."""
        if not isinstance(self._rule, Aligned):
            return None
        schedule = self._rule.schedule
        return schedule.shown(self.ticker.system.cells[-1].name) + schedule.lag

    def _ready(self, block: Block, groups: list[Group]) -> Ticks | None:
        """Ticks for such samples, with the learner's present state in them; `None` where that does not fit."""
        assert block.u is not None
        lead, given = tuple(block.u[0].shape[1:-1]), None
        if block.target:
            given = tuple(block.target[0].shape[1:]), block.target[0].dtype
        key = lead, tuple(group.key for group in groups)
        known = self._ticks
        if known is not None and key == self._key and given in (None, known.of_targets):
            ticks = known
        else:
            self.hand_over()
            ticks = self._made(groups, lead, given)
        if not self._holds and not self._take(ticks):
            return None
        self._ticks, self._key = ticks, key
        return ticks

    def _made(self, groups: list[Group], lead: tuple[int, ...], given: Any) -> Ticks:
        # Only where there are kernels to be compiled: Triton may not be there.
        from hamlearn.engine.fused.kernel import launch, tile_rows

        rows, wide = groups[-1].weight.shape[1], groups[-1].wide
        delays = None
        if isinstance(self._rule, Aligned):
            delays = [self._rule.schedule.delays(group.cell.name) for group in groups]
        usual = (*lead, rows), wide
        self._ticks = None
        return Ticks(groups, lead, given or usual, self._loss, delays, launch, tile_rows)

    def _take(self, ticks: Ticks) -> bool:
        """Copy what the rule carries; returns whether that fits."""
        rule, carry = self._rule, self.ticker.carry
        if isinstance(rule, Aligned):
            usual = (*ticks.lead, ticks.u.shape[2])
            for entry in (carry.entries[age] for age in rule.in_flight(carry)):
                u, target = entry.sample.u, entry.sample.target
                if u.shape != usual or (target is not None and (target.shape, target.dtype) != ticks.of_targets):
                    return False
            self.flights, self.number = exchange.take_aligned(ticks, rule, carry), carry.number
        else:
            if not exchange.fits_unaligned(ticks, carry):
                return False
            self.fresh = exchange.take_unaligned(ticks, carry)
        exchange.take_omega(ticks, self.ticker)
        self._holds = True
        return True

    def _run(self, ticks: Ticks, pace: FusedPace, u: Tensor) -> FusedRan:
        """All ticks of a block, in stretches as long as there are graphs for."""
        count, hold = len(pace.rows), self._hold
        rates = torch.zeros(count, ticks.rates.shape[1], dtype=torch.float64)
        rates[:, : len(pace.rows[0])] = torch.tensor(pace.rows, dtype=torch.float64)
        rates = rates.to(ticks.rates)
        u = u.reshape(len(u), ticks.batch, -1)
        u = u if hold == 1 else u.repeat_interleave(hold, 0)
        blank = ticks.target.new_zeros(ticks.target_shape)
        known = [x for x in pace.targets if x is not None]
        target = torch.stack([blank if x is None else x for x in pace.targets]) if known else None
        ran, start = FusedRan(ticks, count), 0
        while start < count:
            size = AT_ONCE
            while size > count - start:
                size //= 2
            rows = slice(start, start + size)
            ticks.rates[:size], ticks.u[:size] = rates[rows], u[rows]
            if target is not None:
                ticks.target[:size] = target[rows]
            ticks.run(size)
            ran.keep(ticks, rows)
            start += size
        ticks.settle_costates(pace.factors)
        return ran


class FusedRan:
    """What the ticks of a block showed, row by row."""

    def __init__(self, ticks: Ticks, count: int) -> None:
        self.y = ticks.y.new_empty(count, *ticks.lead, ticks.y.shape[2])
        self.loss = ticks.loss.new_empty(count)
        self.coupling = ticks.loss.new_empty(count)
        self.bad = torch.zeros(count + 1, dtype=torch.bool, device=self.y.device)
        self.guards = self

    def keep(self, ticks: Ticks, rows: slice) -> None:
        """Copy what the last ticks showed."""
        size = rows.stop - rows.start
        self.y[rows] = ticks.y[:size].view(self.y[rows].shape)
        self.loss[rows] = ticks.loss[:size]
        self.coupling[rows] = torch.cat([held.coupling[:size] for held in ticks.held], 1).sum(1)
        self.bad[rows] = ticks.bad[:size, 0] != 0

    def wrong(self, pace: FusedPace) -> Tensor:
        """Ticks in which something was not finite, and a place for the costates that they leave."""
        known = torch.tensor([target is not None for target in pace.targets], device=self.bad.device)
        self.bad[:-1] |= known & ~self.loss.isfinite()
        return self.bad

    @cached_property
    def rows(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Outputs and losses, one by one."""
        return self.y.unbind(), self.loss.unbind()

    def coupled(self, tick: int, tau: float) -> Tensor:
        """⟨z, (−h + ĥ)/τ⟩ of one tick."""
        return self.coupling[tick] / tau

    def changed(self) -> None:
        """Nothing is read but weights and samples."""


def _brought(rows: Tensor, device: torch.device) -> Tensor:
    """A copy on the device: samples in flight are needed long after their block."""
    return rows.detach().clone() if rows.device == device else rows.detach().to(device)


def _fits(block: Block, groups: list[Group], loss: object) -> bool:
    """Whether the samples are of the kind that the kernels take; the others are taken one by one."""
    if block.u is None or block.u_spec is not None or block.target_spec is not None:
        return False
    u, first, last, wide = block.u[0], groups[0].weight, groups[-1].weight, groups[0].wide
    if u.dim() < 2 or u.shape[-1] != first.shape[2] or u.dtype != wide or u.device != first.device:
        return False
    if not u[0].numel():
        return False
    check_batch(u[0].numel() // u.shape[-1])
    if not block.target:
        return True
    target, y = block.target[0], (*u.shape[1:-1], last.shape[1])
    if target.device != first.device:
        return False
    if loss is torch.nn.functional.mse_loss:
        return target.shape[1:] == y and target.dtype == wide
    return len(y) == 2 and target.dtype == torch.int64 and target.shape[1:] == y[:1]
