"""Blocks of a stream by ticks in one loop, with the reports, errors and checkpoints of the eager engine."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.finite import all_finite
from hamlearn._base.scale import scaled
from hamlearn.engine.blocks.runner import BlockRunner, PendingBlock, Undo, good_steps, known_in
from hamlearn.engine.rates_table import RateSettings, Steps
from hamlearn.engine.recorded import (
    BlockResult,
    EagerReference,
    Engine,
    Pace,
    ReferenceStep,
    UnsupportedError,
    Watch,
)
from hamlearn.engine.recorded.trace import SubstitutedWeights
from hamlearn.engine.ticks.ticker import Ticker
from hamlearn.rules.local.aligned import Aligned
from hamlearn.rules.local.costates import Increment, dense
from hamlearn.rules.local.delay_free import DelayFree
from hamlearn.rules.local.flights import Entry, own_copy
from hamlearn.rules.local.local_system import LocalSystem
from hamlearn.rules.local.rule import LocalRule, Now
from hamlearn.rules.system import Instant, Order, Outcome
from hamlearn.sample import Sample, StepReport
from hamlearn.state.carry import Carry
from hamlearn.streams.blocks import Block, copied
from hamlearn.streams.reader import Reader


class MixedError(Exception):
    """Samples differ in what a loop of equal ticks cannot take: the first one is taken by itself."""


class RecordedRule(Order):
    """One tick of a local rule as an order of the compiled engine, which records it like any other.

    Args:
        rule: The local rule.
    """

    system: LocalSystem  # type: ignore[assignment]

    def __init__(self, rule: LocalRule[Any]) -> None:
        super().__init__(rule.system)  # type: ignore[arg-type]
        self.rule = rule

    @torch.no_grad()
    def propose(self, carry: Carry, now: Instant) -> Outcome:
        """States, costates and weights after the tick, and what was shown."""
        system, rates, theta = self.system, now.rates, list(self.system.theta)
        rule, due = copy.copy(self.rule), now.sample.target
        rule.system = system.over(theta)
        if isinstance(rule, Aligned):
            # A recorded tick draws no random numbers.
            rule.draw_spans = {}
        # The target is that of a sample that entered some ticks ago, unless samples are compared as they enter.
        own = Sample(now.sample.u, None if rule.due else due)
        with self._lending(theta):
            proposal = rule.tick(rule.view_of(carry, rates.stride, due), own, Now(0.0, rates))
        done = proposal.done
        if done is None:
            raise UnsupportedError("its ticks show no output")
        omega = _costates(list(carry.omega), proposal.grads, 1 - rates.stride * rates.eta, -float(rates.s))
        moving = omega if system.order == "sequential" else list(carry.omega)
        theta = [x.detach() for x in system.velocity.moved(theta, moving, 0.0, rates.stride)]
        coupling = None if done.coupling is None else done.coupling()
        after = rule.flat(proposal.carry, omega)
        return Outcome(after.h, after.z, omega, done.y, done.loss, coupling, theta=theta, E=after.E)

    @contextmanager
    def _lending(self, theta: list[Tensor]) -> Iterator[None]:
        """Within, the network and functions that hold its weights have these, and gradients pass to them."""
        slots, named = self.system.slots, self.system.held(theta)
        pairs = [(own, named[name]) for name, own in slots.parameters.items() if name in named]
        with slots.exchanged(named), SubstitutedWeights(pairs, ()):
            yield

    def start(self, u: Any, h: list[Tensor], spec: trees.Spec) -> list[Tensor]:
        """The states that a sequence begins with."""
        system = self.system
        zeros = {name: torch.zeros_like(part) for name, part in system.named(h).items()}
        given = {n: (x if isinstance(x, Tensor) else x(u)).detach() for n, x in system.wiring.h0.items()}
        return [cell.start(zeros | given) for cell in system.cells]

    def also_reads(self) -> dict[str, Any]:
        """First states, how outputs are read, and the running cost."""
        wiring = self.system.wiring
        return super().also_reads() | {"h0": dict(wiring.h0), "the reading of the output": wiring.read}


def _costates(omega: list[Tensor], grads: list[Increment | None], decay: float, gain: float) -> list[Tensor]:
    """ω⁺ = decay·ω + gain·g, and decay·ω where g is missing."""
    pairs = zip(scaled(omega, decay), grads, strict=True)
    return [w if g is None else w + gain * dense(g) for w, g in pairs]


class TickPlan:
    """Rates of all rows of a loop, and what each of them compares and reports.

    A row is one tick; each sample is shown for `hold` rows. Row r compares the output of the sample that entered
    with row r − `due`; before the block began, if that is below 0.

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
        self.rule, self.block, self.hold = ticker.rule, block, hold
        self.due = self.rule.due  # Asked for with every report.
        self.rows = rows = _held(block, hold)
        # Samples under way that are due within the block, the oldest first.
        self.waiting: list[Entry] = ticker.carry.entries[: self.due][::-1] if self.due else []
        self.compared = _due([entry.sample.target for entry in self.waiting], rows)
        self.steps = settings.table(np.array([ticker.t]), np.array([ticker.updates]), Steps.of(self.compared))
        self.times = self.steps.times
        self.count = self.steps.count // hold

    def pace(self) -> Pace:
        """Rates and β of the rows: a loss weighs by the time step of its own sample."""
        pace, own = self.steps.pace(), self._strides()
        due = np.concatenate([[entry.stride for entry in self.waiting], own])[: self.rows.count]
        if (due == own).all():
            return pace
        *rates, phi = pace.rates[:5]
        return replace(pace, rates=[*rates, phi * torch.from_numpy(due / own), *pace.rates[5:]])

    def _strides(self) -> np.ndarray:
        return np.broadcast_to(self.steps.rates[:, 0, 1], (self.rows.count,))

    def shown(self, index: int) -> tuple[int, Sample, float, bool] | None:
        """What is reported while a sample is shown: row, sample, time, and whether it learned.

        It is the last sample whose output is to be reported then; `None`: outputs are still under way.
        """
        for row in range((index + 1) * self.hold - 1, index * self.hold - 1, -1):
            entered = row - self.due
            if entered < 0:
                entry = self.waiting[row]
                if entry.reported:
                    return row, entry.given or entry.sample, entry.t, entry.sample.target is not None
            elif entered % self.hold == self.hold - 1:
                place = entered // self.hold
                return row, self.block.sample(place), self.times[entered], self.block.has_target(place)
        return None

    def carry(self, before: Any, ran: Carry) -> Any:
        """What the rule carries after the block: `ran` as a loop has left it, after it began with `before`."""
        rule, rows = self.rule, self.rows
        if not isinstance(rule, Aligned):
            return rule.empty() if self.block.ends(self.block.count - 1) else rule.view_of(ran)
        strides, entries = self._strides(), list[Entry | None]()
        for row in range(rows.count - 1, rows.count - 1 - rule.schedule.horizon, -1):
            if row < 0:
                entries.append(before.entries[-row - 1])
                continue
            given = self.block.sample(row // self.hold)
            stride, last = float(strides[row]), row % self.hold == self.hold - 1
            entries.append(Entry(own_copy(given), self.times[row], stride, last, given))
        return rule.unflattened(ran, before.number + rows.count, entries)


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


class TickRunner(BlockRunner):
    """Takes blocks of samples in ticks that are recorded from the rule, and run as one loop.

    Args:
        ticker: Time, ω and θ, and what the rule carries.
        hold: Ticks that each sample is shown for.
        reader: Reads the stream and keeps count.
        step: Takes one sample eagerly.
    """

    def __init__(self, ticker: Ticker, hold: int, reader: Reader, step: Callable[[Sample], Any]) -> None:
        super().__init__(reader, step)
        self.ticker, self.hold, self.rule, self.system = ticker, hold, ticker.rule, ticker.system
        system, timed = self.system, self.system.running_cost is not None
        self.settings = RateSettings([system.hyper], [system.velocity], system.order, reads_time=timed)
        self.prepare()

    def prepare(self) -> None:
        """Make the engine of the loop."""
        require_recordable(self.ticker)
        self.engine = engine = Engine(RecordedRule(self.rule), reset_each=False, carries=True)
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
        ticker, rows, first, begins = self.ticker, plan.rows, block.sample(0), None
        ticker.carry = begun = self.rule.begin(ticker.carry, first.u)
        if isinstance(self.rule, Aligned):
            for k in _telling_targets(block):
                self.rule.check_target(block.sample(k))
        elif rows.boundary is not None:
            begins = rows.begins(False, rows.count)
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
        row, sample, t, learned = shown
        y = trees.unflatten([leaf[row] for leaf in ran.y], ran.y_spec)
        loss = ran.loss[row] if ran.loss is not None and learned else None
        coupling = None if ran.coupling is None else ran.coupling[row]
        return StepReport(t, y, loss, sample, phi=plan.steps.phi(row), coupling=coupling)

    def _tried(self, start: Carry, sample: Sample) -> EagerReference | None:
        """One row, taken eagerly, to hold the recording against it."""
        found = self.ticker.rehearse(sample)
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
    if isinstance(ticker.rule, DelayFree):
        raise UnsupportedError("with delay_free one layer moves at a time, and all weights with each of them")
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
