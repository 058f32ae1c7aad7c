"""The ticks of a block before they run: their rates, the targets that are compared, and what is reported."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn.engine.rates_table import RateSettings, RatesTable, Steps, time_steps
from hamlearn.engine.recorded import Pace
from hamlearn.engine.ticks.recorded_rule import Compared
from hamlearn.engine.ticks.ticker import Ticker
from hamlearn.loops import UnsupportedError
from hamlearn.rules.local.aligned import Aligned
from hamlearn.rules.local.delay_free import DelayFree
from hamlearn.rules.local.flights import Entry, Pipeline, own_copy
from hamlearn.sample import Sample
from hamlearn.streams.blocks import Block


class MixedError(Exception):
    """Samples differ in what a loop of equal ticks cannot take: the first one is taken by itself."""


class Shown(NamedTuple):
    """The report of a sample: the row that shows its output, the time it was taken, φ, and whether it learned."""

    row: int
    sample: Sample
    t: float
    phi: float
    learned: bool


class TickPlan:
    """Rates of all ticks, and the rows of the loop. A row is one tick.

    Args:
        ticker: Time and updates of the learner.
        settings: Its rates.
        block: The samples.
        hold: Rows that each sample is shown for.

    Attributes:
        count: How many samples can be taken.
        rows: What the loop reads: each sample as often as it is shown.
        compared: The target leaves that the output of each row is compared with, and their structure.
        known: Whether each row has such a target; `None`: all have one, or none has.
    """

    def __init__(self, ticker: Ticker, settings: RateSettings, block: Block, hold: int) -> None:
        self.ticker, self.block, self.hold = ticker, block, hold
        self.rows = _held(block, hold)
        self.compared, self.known = (self.rows.target, self.rows.target_spec), self.rows.known
        self.arrange()
        self.steps: RatesTable = settings.table(
            np.array([ticker.t]), np.array([ticker.updates]), self.rates_asked(settings)
        )
        self.count = self.steps.count // (hold * ticker.rule.ticks)

    def arrange(self) -> None:
        """Give each row the target that its output is compared with."""

    def rates_asked(self, settings: RateSettings) -> Steps:
        """What the rates of the ticks depend on."""
        return Steps.of(self.rows)

    def checked(self) -> tuple[list[Tensor], trees.Spec, list[bool] | None]:
        """The targets as a recorded tick takes them: leaves, structure, and whether each row has one."""
        return *self.compared, self.known

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
        return self.steps.pace()

    def shown(self, index: int) -> Shown | None:
        """The report of a sample: that of the last tick of its last row."""
        row, ticks = (index + 1) * self.hold - 1, self.ticker.rule.ticks
        tick = (row + 1) * ticks - 1
        sample, learned = self.block.sample(index), self.block.has_target(index)
        return Shown(row, sample, self.times[tick], self.phi(tick), learned)

    def carry(self, before: Any, ran: Any) -> Any:
        """What the rule carries after the block: `ran` as a loop has left it, after it began with `before`."""
        if self.block.ends(self.block.count - 1):
            return self.ticker.rule.empty()
        return self.ticker.rule.lent(ran)


class PassPlan(TickPlan):
    """A row is one pass over all layers, each of which moves in one tick. The loss enters in the next row."""

    def rates_asked(self, settings: RateSettings) -> Steps:
        """One step per tick; the first tick of a row learns from the loss of the row before."""
        rows, ticks = self.rows, self.ticker.rule.ticks
        if settings.timed:
            raise UnsupportedError("a schedule would stand still while one layer after the other moves")
        if rows.known is not None or self.ticker.carry.entering != bool(rows.target):
            raise MixedError
        tau = None if rows.tau is None else np.repeat(time_steps(rows.tau), ticks)[:, None]
        learns = np.tile(np.arange(ticks) == 0, rows.count) & bool(rows.target)
        return Steps(rows.count * ticks, tau, None, learns[:, None], np.ones(1, dtype=bool))

    def pace(self) -> Pace:
        """Rates and β of the rows."""
        pace = super().pace()
        return Pace([rate[:: self.ticker.rule.ticks].contiguous() for rate in pace.rates], pace.betas, False, [])

    def carry(self, before: Any, ran: Any) -> Any:
        """The beginning of the next pass, with what the last one has left."""
        return self.ticker.rule.lent(ran)._replace(entering=bool(self.rows.target))


class AlignedPlan(TickPlan):
    """A row compares the output of a sample that entered some ticks before."""

    def arrange(self) -> None:
        """Targets of the samples in flight that are due, then those of the block."""
        rows, rule = self.rows, self.ticker.rule
        assert isinstance(rule, Aligned)
        self.due, self.horizon = rule.due, rule.schedule.horizon
        self.waiting: list[Entry] = self.ticker.carry.entries[: self.due][::-1]
        targets = [entry.sample.target for entry in self.waiting][: rows.count]
        known = [target is not None for target in targets]
        known += [rows.has_target(k) for k in range(rows.count - len(known))]
        some = next((target for target in targets if target is not None), None)
        if some is None and rows.target:
            some = trees.unflatten([leaf[0] for leaf in rows.target], rows.target_spec)
        self.compared, self.known = ([], None), None if all(known) or not any(known) else known
        if any(known):
            leaves = [trees.flatten(some if target is None else target) for target in targets]
            self.compared = _joined(leaves, trees.flatten(some), rows)

    def rates_asked(self, settings: RateSettings) -> Steps:
        """Rates of the ticks, which learn from the samples that are due."""
        rows = self.rows
        due = Block(rows.count, None, None, self.compared[0], None, self.known, rows.tau)
        return Steps.of(due)

    def checked(self) -> tuple[list[Tensor], trees.Spec, list[bool] | None]:
        """Targets as a recorded tick takes them: those that enter too, if their values may be refused."""
        (target, spec), entering = self.compared, self.rows.target
        if all(leaf.is_floating_point() for leaf in entering):
            # Real numbers of a shape that fits always fit; classes may be out of range.
            return target, spec, self.known
        due = trees.unflatten([leaf[0] for leaf in target], spec) if target else ()
        comes = trees.unflatten([leaf[0] for leaf in entering], self.rows.target_spec)
        return [*target, *entering], trees.flatten(Compared(due, comes))[1], self.known

    def _strides(self) -> np.ndarray:
        return np.broadcast_to(self.steps.rates[:, 0, 1], (self.rows.count,))

    def pace(self) -> Pace:
        """Rates and β of the rows: a loss weighs by the time step of its own sample."""
        pace, own = super().pace(), self._strides()
        due = np.concatenate([[entry.stride for entry in self.waiting], own])[: self.rows.count]
        if (due != own).any():
            pace.rates[4] = pace.rates[4] * torch.from_numpy(due / own)
        return pace

    def carry(self, before: Pipeline, ran: Any) -> Pipeline:
        """The registers, with the samples that are in flight after the block."""
        rule, rows, strides = self.ticker.rule, self.rows.count, self._strides()
        assert isinstance(rule, Aligned)
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
                entry = self.waiting[entered + len(self.waiting)]
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


def _joined(
    before: list[tuple[list[Tensor], trees.Spec]], some: tuple[list[Tensor], trees.Spec], rows: Block
) -> tuple[list[Tensor], trees.Spec]:
    """Leaves of the targets in flight, `before`, and of the block, one row for each row of the block."""
    rest = rows.count - len(before)
    forms = {(str(spec), *((x.shape, x.dtype) for x in leaves)) for leaves, spec in before}
    if rows.target and rest:
        forms.add((str(rows.target_spec), *((x.shape[1:], x.dtype) for x in rows.target)))
    if len(forms) > 1:
        raise MixedError
    joined = []
    for place, leaf in enumerate(some[0]):
        parts = [leaves[place].unsqueeze(0) for leaves, _ in before]
        if rest:
            parts.append(rows.target[place][:rest] if rows.target else leaf.expand(rest, *leaf.shape))
        joined.append(torch.cat(parts))
    return joined, some[1]
