"""What is known of the ticks of a block before they run: rates, what is compared, and what is reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn.engines.blocks.step_runner import StepPlan
from hamlearn.engines.looped.registers import Compared, Registers
from hamlearn.engines.looped.tick_order import TickSystem
from hamlearn.engines.recorded import Pace
from hamlearn.engines.ticks.ticker import Ticker
from hamlearn.loops import UnsupportedError
from hamlearn.orders.local.flights import Flight, own_copy
from hamlearn.sample import Sample
from hamlearn.streams.blocks import Block


class MixedError(Exception):
    """Samples in flight have targets of other shapes than those to come, and are taken one by one."""


class Begun(NamedTuple):
    """Where the ticks of a block begin."""

    t: float
    updates: int
    fresh: bool = False


@dataclass
class Told:
    """The report of a sample: the row that shows its output, the time it was taken, and φ."""

    row: int
    sample: Sample
    t: float
    phi: float
    learned: bool


class TickPlan:
    """Rates of all ticks, and the rows of the loop, each of which is one tick, or one pass where one layer moves.

    Args:
        ticker: Time, updates and rates of the learner.
        system: What is learned.
        block: The samples.
        hold: Rows that each sample is shown for.
        ticks: Ticks in a row.

    Attributes:
        count: How many samples can be taken.
        rows: What the loop reads, one row after the other.
        told: What is reported of each sample.
    """

    def __init__(self, ticker: Ticker, system: TickSystem, block: Block, hold: int, ticks: int) -> None:
        self.ticker, self.hold, self.ticks = ticker, hold, ticks
        self.rows = self._shown(_held(block, hold))
        self.block = block
        begun = Begun(ticker.t, ticker.updates)
        timed = not ticker.usual.constant or system.velocity.scheduled
        self.steps = StepPlan(system, system.local.order, timed, begun, self._entering(self.rows))
        self.count = self.steps.count // (hold * ticks)
        if ticks > 1 and timed:
            raise UnsupportedError("a schedule would stand still while one layer after the other moves")

    def _shown(self, rows: Block) -> Block:
        """The rows, each with the target that its output is compared with."""
        return rows

    def _entering(self, rows: Block) -> Block:
        """One row per tick, with a target where a loss enters the costates in this tick."""
        return rows

    @property
    def phis(self) -> np.ndarray:
        """φ of each tick; one for all where it does not change."""
        return self.steps.phis

    @property
    def times(self) -> list[float]:
        """Time before each tick, and after the last one."""
        return self.steps.times

    @property
    def clock(self) -> np.ndarray:
        """The same as an array."""
        return self.steps.clock

    def phi(self, index: int) -> float:
        """φ of a tick."""
        return self.steps.phi(index)

    @property
    def t(self) -> float:
        """Time after the last tick."""
        return float(self.steps.clock[-1])

    @property
    def updates(self) -> int:
        """Updates that a loss has entered, after the last tick."""
        return self.steps.updates

    def pace(self, kept: dict[Any, Any]) -> Pace:
        """Rates and β of the rows, as tensors."""
        pace = self.steps.pace(kept)
        if self.ticks == 1:
            return pace
        return Pace([rate[:: self.ticks].contiguous() for rate in pace.rates], pace.betas, False, [])

    def told(self, index: int) -> Told:
        """What is reported of a sample: the last tick of its last row."""
        row = (index + 1) * self.hold - 1
        tick = (row + 1) * self.ticks - 1
        sample, learned = self.block.sample(index), self.block.has_target(index)
        return Told(row, sample, self.steps.times[tick], self.steps.phi(tick), learned)


class PassPlan(TickPlan):
    """Rates where one layer moves at a time: the loss of a pass enters in the first tick of the next."""

    def _entering(self, rows: Block) -> Block:
        some = bool(self.ticker.engine.pending)
        before = [some, *(rows.has_target(k) for k in range(rows.count - 1))]
        known = [entered and not tick for entered in before for tick in range(self.ticks)]
        tau = None if rows.tau is None else [tau for tau in rows.tau for _ in range(self.ticks)]
        return Block(len(known), None, None, [torch.empty(0)], None, known, tau)


class AlignedPlan(TickPlan):
    """Rates where a row compares the output of a sample that entered some ticks before.

    Args:
        registers: When that was.
    """

    def __init__(self, ticker: Ticker, system: TickSystem, block: Block, hold: int, registers: Registers) -> None:
        self.due, self.horizon = registers.due, registers.plan.horizon
        order = ticker.engine
        self._before: list[Flight] = [order.flights[order.number - age] for age in range(self.due, 0, -1)]
        super().__init__(ticker, system, block, hold, 1)

    def _shown(self, rows: Block) -> Block:
        known = [flight.sample.target is not None for flight in self._before]
        known = [*known, *(rows.has_target(k) for k in range(rows.count))][: rows.count]
        waiting = [flight.sample.target for flight in self._before if flight.sample.target is not None]
        target, spec = _joined(waiting, known, rows, len(self._before)) if any(known) else ([], None)
        seen = None if all(known) or not any(known) else known
        if not all(leaf.is_floating_point() for leaf in rows.target):
            # Real numbers of a shape that fits always fit; classes may be out of range.
            due = trees.unflatten([leaf[0] for leaf in target], spec) if target else ()
            entering = trees.unflatten([leaf[0] for leaf in rows.target], rows.target_spec)
            target, spec = [*target, *rows.target], trees.flatten(Compared(due, entering))[1]
            seen = None if all(known) else known
        return Block(rows.count, rows.u, rows.u_spec, target, spec, seen, rows.tau)

    def strides(self) -> np.ndarray:
        """The time step of the sample that each row compares, over that of the row itself."""
        own = np.broadcast_to(self.steps.rates[:, 1], (self.rows.count,))
        due = np.concatenate([[flight.stride for flight in self._before], own])[: self.rows.count]
        return due / own

    def pace(self, kept: dict[Any, Any]) -> Pace:
        """Rates and β of the rows: a loss weighs by the time step of its own sample."""
        pace, weigh = super().pace(kept), self.strides()
        if (weigh != 1).any():
            pace.rates[4] = pace.rates[4] * torch.from_numpy(weigh)
        return pace

    def flights(self, rows: int) -> dict[int, Flight]:
        """The samples that are in flight after so many rows, by the tick of their entry."""
        order, hold = self.ticker.engine, self.hold
        found = {n: flight for n, flight in order.flights.items() if n > order.number + rows - self.horizon}
        found = {n: Flight(f.sample, f.t, f.stride, f.reported, {}, given=f.given) for n, f in found.items()}
        strides = np.broadcast_to(self.steps.rates[:, 1], (self.rows.count,))
        for row in range(max(0, rows - self.horizon + 1), rows):
            sample, last = self.block.sample(row // hold), row % hold == hold - 1
            t, stride = self.steps.times[row], float(strides[row])
            found[order.number + row] = Flight(own_copy(sample), t, stride, last, {}, given=sample)
        return found

    def told(self, index: int) -> Told | None:  # type: ignore[override]
        """What is reported while a sample is shown: the last one whose output is to be reported then."""
        for row in range((index + 1) * self.hold - 1, index * self.hold - 1, -1):
            entered = row - self.due
            phi = self.steps.phi(row)
            if entered < 0:
                flight = self._before[entered + len(self._before)]
                if flight.reported:
                    learned = flight.sample.target is not None
                    return Told(row, flight.given or flight.sample, flight.t, phi, learned)
            elif entered % self.hold == self.hold - 1:
                place = entered // self.hold
                sample, learned = self.block.sample(place), self.block.has_target(place)
                return Told(row, sample, self.steps.times[entered], phi, learned)
        return None


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
