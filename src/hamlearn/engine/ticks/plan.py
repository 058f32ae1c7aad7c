"""The ticks of a block before they run: their rates, the targets that are compared, and what is reported."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from hamlearn._base import trees
from hamlearn.engine.rates_table import RateSettings, Steps, time_steps
from hamlearn.engine.recorded import Pace
from hamlearn.engine.ticks.ticker import Ticker
from hamlearn.loops import UnsupportedError
from hamlearn.rules.local.aligned import Aligned
from hamlearn.rules.local.delay_free import DelayFree
from hamlearn.rules.local.flights import Entry, own_copy
from hamlearn.sample import Sample
from hamlearn.state.carry import Carry
from hamlearn.streams.blocks import Block


class MixedError(Exception):
    """Samples differ in what a loop of equal ticks cannot take: the first one is taken by itself."""


class Shown(NamedTuple):
    """The report of a sample: the row that shows its output, the time it was taken, and whether it learned."""

    row: int
    sample: Sample
    t: float
    learned: bool


class TickPlan:
    """Rates of all rows of a loop, and what each of them compares and reports.

    A row is one tick, or a pass over all layers if these take turns. Each sample is shown for `hold` rows. Row r
    compares the output of the sample that entered with row r − `due`; before the block began, if that is below 0.

    Args:
        ticker: Time and updates of the learner.
        settings: Its rates.
        block: The samples.
        hold: Rows that each sample is shown for.

    Attributes:
        count: How many samples can be taken.
        rows: What the loop reads: each sample as often as it is shown.
        compared: The targets that the outputs of the rows are compared with, as a block.
        steps: Rates of all ticks.
        times: Time before each tick, and after the last one.
    """

    def __init__(self, ticker: Ticker, settings: RateSettings, block: Block, hold: int) -> None:
        self.ticker, self.rule, self.block, self.hold = ticker, ticker.rule, block, hold
        # Asked for with every report.
        self.due, self.ticks = self.rule.due, self.rule.ticks
        self.rows = rows = _held(block, hold)
        # Samples under way that are due within the block, the oldest first.
        self.waiting: list[Entry] = ticker.carry.entries[: self.due][::-1] if self.due else []
        self.compared = _due([entry.sample.target for entry in self.waiting], rows)
        steps = self._passes(settings) if isinstance(self.rule, DelayFree) else Steps.of(self.compared)
        self.steps = settings.table(np.array([ticker.t]), np.array([ticker.updates]), steps)
        self.times = self.steps.times
        self.count = self.steps.count // (hold * self.ticks)

    def _passes(self, settings: RateSettings) -> Steps:
        """One step per tick; the first tick of a row learns from the loss of the row before."""
        rows, ticks = self.rows, self.ticks
        if settings.timed:
            raise UnsupportedError("a schedule would stand still while one layer after the other moves")
        if rows.known is not None or self.ticker.carry.entering != bool(rows.target):
            raise MixedError
        tau = None if rows.tau is None else np.repeat(time_steps(rows.tau), ticks)[:, None]
        learns = np.tile(np.arange(ticks) == 0, rows.count) & bool(rows.target)
        return Steps(rows.count * ticks, tau, None, learns[:, None], np.ones(1, dtype=bool))

    def phi(self, row: int) -> float:
        """φ of a row."""
        return self.steps.phi((row + 1) * self.ticks - 1)

    def pace(self) -> Pace:
        """Rates and β of the rows: a loss weighs by the time step of its own sample."""
        pace, ticks = self.steps.pace(), self.ticks
        if ticks > 1:
            return Pace([rate[::ticks].contiguous() for rate in pace.rates], pace.betas, False, [])
        own = self._strides()
        due = np.concatenate([[entry.stride for entry in self.waiting], own])[: self.rows.count]
        if (due == own).all():
            return pace
        *rates, phi = pace.rates
        return Pace([*rates, phi * torch.from_numpy(due / own)], pace.betas, pace.varying, pace.drive)

    def _strides(self) -> np.ndarray:
        return np.broadcast_to(self.steps.rates[:, 0, 1], (self.rows.count,))

    def shown(self, index: int) -> Shown | None:
        """What is reported while a sample is shown: the last one whose output is to be reported then."""
        for row in range((index + 1) * self.hold - 1, index * self.hold - 1, -1):
            entered = row - self.due
            if entered < 0:
                entry = self.waiting[row]
                if entry.reported:
                    return Shown(row, entry.given or entry.sample, entry.t, entry.sample.target is not None)
            elif entered % self.hold == self.hold - 1:
                place = entered // self.hold
                t = self.times[(entered + 1) * self.ticks - 1]
                return Shown(row, self.block.sample(place), t, self.block.has_target(place))
        return None

    def carry(self, before: Any, ran: Carry) -> Any:
        """What the rule carries after the block: `ran` as a loop has left it, after it began with `before`."""
        rule, rows = self.rule, self.rows
        if isinstance(rule, Aligned):
            strides, entries = self._strides(), list[Entry | None]()
            for row in range(rows.count - 1, rows.count - 1 - rule.schedule.horizon, -1):
                if row < 0:
                    entries.append(before.entries[-row - 1])
                    continue
                given = self.block.sample(row // self.hold)
                stride, last = float(strides[row]), row % self.hold == self.hold - 1
                entries.append(Entry(own_copy(given), self.times[row], stride, last, given))
            return rule.unflattened(ran, before.number + rows.count, entries)
        if isinstance(rule, DelayFree):
            return rule.lent(ran)._replace(entering=bool(rows.target))
        return rule.empty() if self.block.ends(self.block.count - 1) else rule.lent(ran)


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


def _due(waiting: list[Any], rows: Block) -> Block:
    """The targets that each row compares: those of the samples under way, then those of the block."""
    targets, tau = waiting[: rows.count], rows.tau
    if not targets:
        return Block(rows.count, None, None, rows.target, rows.target_spec, rows.known, tau)
    rest = rows.count - len(targets)
    known = [target is not None for target in targets] + [rows.has_target(k) for k in range(rest)]
    if not any(known):
        return Block(rows.count, None, None, [], None, None, tau)
    example = next((target for target in targets if target is not None), None)
    if example is None:
        example = trees.unflatten([leaf[0] for leaf in rows.target], rows.target_spec)
    early = [trees.flatten(example if target is None else target) for target in targets]
    forms = {(str(spec), *((x.shape, x.dtype) for x in leaves)) for leaves, spec in early}
    late = [leaf.expand(rest, *leaf.shape) for leaf in early[0][0]]
    if rows.target and rest:
        late = [leaf[:rest] for leaf in rows.target]
        forms.add((str(rows.target_spec), *((x.shape[1:], x.dtype) for x in rows.target)))
    if len(forms) > 1:
        raise MixedError
    columns = zip(*(leaves for leaves, _ in early), strict=True)
    joined = [torch.cat([torch.stack(column), more]) for column, more in zip(columns, late, strict=True)]
    return Block(rows.count, None, None, joined, early[0][1], None if all(known) else known, tau)
