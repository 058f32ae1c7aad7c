"""What is known of the ticks of a block before they run: rates, targets that are compared, and reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn.engine.rates_table import RateSettings, Steps
from hamlearn.engine.recorded import Pace
from hamlearn.engine.ticks.recorded_rule import Compared, Masked
from hamlearn.engine.ticks.ticker import Ticker
from hamlearn.loops import UnsupportedError
from hamlearn.rules.local.aligned import Aligned
from hamlearn.rules.local.delay_free import DelayFree
from hamlearn.rules.local.flights import Entry, Pipeline, own_copy
from hamlearn.sample import Sample
from hamlearn.streams.blocks import Block


class MixedError(Exception):
    """Samples in flight have targets of other shapes than those to come, and are taken one by one."""


class Shown(NamedTuple):
    """The report of a sample: the row that shows its output, the time it was taken, φ, and whether it learned."""

    row: int
    sample: Sample
    t: float
    phi: float
    learned: bool


class TickPlan:
    """Rates of all ticks, and the rows of the loop, each of which is one tick, or one pass if layers take turns.

    Args:
        ticker: Time and updates of the learner.
        settings: Its rates.
        block: The samples.
        hold: Rows that each sample is shown for.

    Attributes:
        count: How many samples can be taken.
        rows: What the loop reads, one row after the other.
    """

    def __init__(self, ticker: Ticker, settings: RateSettings, block: Block, hold: int) -> None:
        self.ticker, self.block, self.hold = ticker, block, hold
        self.ticks = ticker.rule.ticks
        self.rows = self.compared(_held(block, hold))
        if self.ticks > 1 and settings.timed:
            raise UnsupportedError("a schedule would stand still while one layer after the other moves")
        steps = Steps.of(self.entering(self.rows))
        self.steps = settings.table(np.array([ticker.t]), np.array([ticker.updates]), steps)
        self.count = self.steps.count // (hold * self.ticks)

    def compared(self, rows: Block) -> Block:
        """The rows, each with the target that its output is compared with."""
        return rows

    def entering(self, rows: Block) -> Block:
        """One row per tick, with a target if a loss enters the costates in this tick."""
        return rows

    @property
    def phis(self) -> np.ndarray:
        """φ of each tick; one for all if it does not change."""
        return self.steps.phis

    @property
    def times(self) -> list[float]:
        """Time before each tick, and after the last one."""
        return self.steps.times

    def phi(self, index: int) -> float:
        """φ of a tick."""
        return self.steps.phi(index)

    def pace(self) -> Pace:
        """Rates and β of the rows, as tensors."""
        pace = self.steps.pace()
        if self.ticks == 1:
            return pace
        return Pace([rate[:: self.ticks].contiguous() for rate in pace.rates], pace.betas, False, [])

    def shown(self, index: int) -> Shown | None:
        """The report of a sample: that of the last tick of its last row."""
        row = (index + 1) * self.hold - 1
        tick = (row + 1) * self.ticks - 1
        sample, learned = self.block.sample(index), self.block.has_target(index)
        return Shown(row, sample, self.times[tick], self.phi(tick), learned)

    def carry(self, before: Any, ran: Any) -> Any:
        """What the rule carries after the block: `ran` as a loop has left it, after it began with `before`."""
        if self.block.ends(self.block.count - 1):
            return self.ticker.rule.empty()
        return self.ticker.rule.lent(ran)


class PassPlan(TickPlan):
    """Rates if one layer moves at a time: the loss of a pass enters in the first tick of the next."""

    def compared(self, rows: Block) -> Block:
        """The rows, each with its target, and whether it has one."""
        if not rows.target or rows.known is None:
            return rows
        known = torch.tensor(
            rows.known, dtype=rows.target[0].dtype if rows.target[0].is_floating_point() else None
        )
        blank = trees.unflatten([leaf[0] for leaf in rows.target], rows.target_spec)
        spec = trees.flatten(Masked(blank, known[0]))[1]
        return Block(
            rows.count, rows.u, rows.u_spec, [*rows.target, known], spec, rows.known, rows.tau, rows.boundary
        )

    def entering(self, rows: Block) -> Block:
        """The first tick of a pass has a target if the last pass had one."""
        before = [self.ticker.carry.entering, *(rows.has_target(k) for k in range(rows.count - 1))]
        known = [entered and not tick for entered in before for tick in range(self.ticks)]
        tau = None if rows.tau is None else [tau for tau in rows.tau for _ in range(self.ticks)]
        return Block(len(known), None, None, [torch.empty(0)], None, known, tau)

    def pace(self) -> Pace:
        """Rates and β of the rows; φ of each, since what enters is 0 if the last pass had no target."""
        pace = super().pace()
        phi = np.broadcast_to(self.phis, (self.rows.count * self.ticks,))[:: self.ticks]
        pace.rates[4] = torch.from_numpy(phi.copy())
        return pace

    def carry(self, before: Any, ran: Any) -> Any:
        """The beginning of the next pass, with what the last one has left."""
        return self.ticker.rule.lent(ran)._replace(entering=self.block.has_target(self.block.count - 1))


class AlignedPlan(TickPlan):
    """Rates if a row compares the output of a sample that entered some ticks before."""

    def __init__(self, ticker: Ticker, settings: RateSettings, block: Block, hold: int) -> None:
        rule: Any = ticker.rule
        self.due, self.horizon = rule.due, rule.schedule.horizon
        entries: list[Any] = ticker.carry.entries
        self._waiting: list[Entry] = entries[: self.due][::-1]
        super().__init__(ticker, settings, block, hold)

    def compared(self, rows: Block) -> Block:
        """The rows, each with the target of the sample that is due then."""
        known = [entry.sample.target is not None for entry in self._waiting]
        known = [*known, *(rows.has_target(k) for k in range(rows.count))][: rows.count]
        waiting = [entry.sample.target for entry in self._waiting if entry.sample.target is not None]
        target, spec = _joined(waiting, known, rows, len(self._waiting)) if any(known) else ([], None)
        seen = None if all(known) or not any(known) else known
        if not all(leaf.is_floating_point() for leaf in rows.target):
            # Real numbers of a shape that fits always fit; classes may be out of range.
            due = trees.unflatten([leaf[0] for leaf in target], spec) if target else ()
            entering = trees.unflatten([leaf[0] for leaf in rows.target], rows.target_spec)
            target, spec = [*target, *rows.target], trees.flatten(Compared(due, entering))[1]
            seen = None if all(known) else known
        return Block(rows.count, rows.u, rows.u_spec, target, spec, seen, rows.tau)

    def _strides(self) -> np.ndarray:
        return np.broadcast_to(self.steps.rates[:, 0, 1], (self.rows.count,))

    def pace(self) -> Pace:
        """Rates and β of the rows: a loss weighs by the time step of its own sample."""
        pace, own = super().pace(), self._strides()
        due = np.concatenate([[entry.stride for entry in self._waiting], own])[: self.rows.count]
        if (due != own).any():
            pace.rates[4] = pace.rates[4] * torch.from_numpy(due / own)
        return pace

    def carry(self, before: Pipeline, ran: Any) -> Pipeline:
        """The registers, with the samples that are in flight after the block."""
        rule: Any = self.ticker.rule
        assert isinstance(rule, Aligned)
        rows, strides = self.rows.count, self._strides()
        entries: list[Entry | None] = []
        for age in range(self.horizon):
            row = rows - 1 - age
            if row < 0:
                old = before.entries[-row - 1]
                entries.append(old and Entry(old.sample, old.t, old.stride, old.reported, old.given))
                continue
            sample, reported = self.block.sample(row // self.hold), row % self.hold == self.hold - 1
            own = own_copy(sample)
            entries.append(Entry(own, self.times[row], float(strides[row]), reported, sample))
        return rule.after_block(ran, before.number + rows, entries)

    def shown(self, index: int) -> Shown | None:
        """What is reported while a sample is shown: the last one whose output is to be reported then."""
        for row in range((index + 1) * self.hold - 1, index * self.hold - 1, -1):
            entered = row - self.due
            phi = self.phi(row)
            if entered < 0:
                entry = self._waiting[entered + len(self._waiting)]
                if entry.reported:
                    return Shown(row, entry.given or entry.sample, entry.t, phi, entry.sample.target is not None)
            elif entered % self.hold == self.hold - 1:
                place = entered // self.hold
                sample, learned = self.block.sample(place), self.block.has_target(place)
                return Shown(row, sample, self.times[entered], phi, learned)
        return None


def plan_of(ticker: Ticker, settings: RateSettings, block: Block, hold: int) -> TickPlan:
    """The plan of a block."""
    kind = AlignedPlan if ticker.rule.aligned else PassPlan if isinstance(ticker.rule, DelayFree) else TickPlan
    return kind(ticker, settings, block, hold)


def _held(block: Block, times: int) -> Block:
    """Each sample several times; only the last of them ends its sequence."""
    if times == 1:
        return block

    def spread(values: list[Any] | None) -> list[Any] | None:
        return None if values is None else [value for value in values for _ in range(times)]

    ends = None
    if block.boundary is not None:
        ends = [end and k == times - 1 for end in block.boundary for k in range(times)]
    u = None if block.u is None else [leaf.repeat_interleave(times, 0) for leaf in block.u]
    target = [leaf.repeat_interleave(times, 0) for leaf in block.target]
    known, tau = spread(block.known), spread(block.tau)
    return Block(block.count * times, u, block.u_spec, target, block.target_spec, known, tau, ends)


def _joined(waiting: Sequence[Any], known: list[bool], rows: Block, lag: int) -> tuple[list[Tensor], trees.Spec]:
    """Targets of the samples that are due in each row: of those in flight, then of those in the block."""
    example: Any = waiting[0] if waiting else None
    if example is None:
        example = trees.unflatten([leaf[0] for leaf in rows.target], rows.target_spec)
    before = iter(waiting)
    compared = [next(before) if known[k] else example for k in range(min(lag, rows.count))]
    flat = [trees.flatten(tree) for tree in compared]
    leaves, spec = trees.flatten(example)
    forms = {(str(s), *((x.shape, x.dtype) for x in xs)) for xs, s in flat}
    if rows.target and rows.count > lag:
        forms.add((str(rows.target_spec), *((x.shape[1:], x.dtype) for x in rows.target)))
    if len(forms) > 1:
        raise MixedError
    joined = []
    for place, leaf in enumerate(leaves):
        parts = [xs[place].unsqueeze(0) for xs, _ in flat]
        if rows.count > lag:
            some = leaf.expand(rows.count - lag, *leaf.shape)
            parts.append(rows.target[place][: rows.count - lag] if rows.target else some)
        joined.append(torch.cat(parts))
    return joined, spec
