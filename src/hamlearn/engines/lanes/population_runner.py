"""Blocks of samples for a population: one loop for all members."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn.engines.blocks.driven import drive_rows
from hamlearn.engines.blocks.reports import Ahead
from hamlearn.engines.blocks.runner import PlannedRunner
from hamlearn.engines.blocks.step_runner import first_watch, require_moving, run_watched
from hamlearn.engines.eager.parts import LearnerParts
from hamlearn.engines.eager.stepping import Stepper
from hamlearn.engines.lanes.alike import difference
from hamlearn.engines.lanes.lanes import Lanes, Layout
from hamlearn.engines.lanes.population_reports import PopulationBlockReport
from hamlearn.engines.recorded import Engine, Pace, Ran, Trial, UnsupportedError, Watch
from hamlearn.rates import Rates
from hamlearn.sample import Sample
from hamlearn.state.carry import Carry
from hamlearn.state.undo import Undo
from hamlearn.streams.blocks import Block
from hamlearn.streams.reader import Reader


class PopulationRunner(PlannedRunner["PopulationPlan"]):
    """Takes blocks of samples by one loop for all members."""

    def __init__(self, members: list[Stepper], reader: Reader, step: Callable[[Sample], Any]) -> None:
        super().__init__(reader, step)
        self.members = members
        self.parts = [member.parts for member in members]
        self.choices, order = self.parts[0].choices, self.parts[0].order
        self.layout = Layout(len(members), self.parts[0].system.theta[0].dtype)
        reset, carries = self.choices.reset_h == "sample", self.choices.credit.carries
        self.engine = Engine(order, reset, carries, self.layout.width)
        self.lanes: Lanes | None = None
        self._kept: dict[str, Any] = {}

    def spread(self) -> None:
        """Give each member what is its own, and keep nothing."""
        if self.lanes is not None:
            self.lanes.spread(self.members, self.engine)
            self.lanes = None

    def plan(self, block: Block) -> PopulationPlan | None:
        """Rates and β of all members; `None` where these are not at the same place of a sequence."""
        require_moving(self.parts)
        if self.lanes is None:
            if len({(m.state.fresh, len(m.state.carry.h)) for m in self.members}) > 1:
                # A member that skipped its first sample waits for the next: until then each goes by itself.
                return None
            for number, parts in enumerate(self.parts[1:], start=1):
                differs = how_members_differ(self.parts[0], parts)
                if differs is not None:
                    raise UnsupportedError(f"members 0 and {number} have come to differ: {differs}")
            self.lanes = Lanes(self.members, self.engine, self.layout)
        for parts in () if self.again else self.parts:
            parts.check_network()
        plan = PopulationPlan(self.parts, self.lanes, block, self._kept)
        for number, parts in enumerate(self.parts):
            parts.usual.overshoot.look(step[number] for step in plan.rates)
        return plan

    def undo(self) -> Undo:
        """What brings all members back to where they are."""
        assert self.lanes is not None
        return self.lanes.undo()

    def take(self, block: Block, plan: PopulationPlan, undo: Callable[[], None]) -> tuple[Ran, int]:
        """All steps of all members by one loop."""
        lanes = self.lanes
        assert lanes is not None
        start = lanes.carry
        if self.parts[0].stateful and (lanes.fresh or not start.h):
            start = self._anew(block.sample(0).u, start)
        pace = plan.pace()

        first = self.members[0]
        trial = Trial(lambda: first.rehearse(block.sample(0)), first.parts.network)

        def run(watch: Watch) -> Ran:
            weights = (lanes.theta, lanes.buffers, lanes.frozen)
            return self.engine.run(*weights, start, plan.fresh, pace, block, watch, trial)

        return run_watched(run, undo, lanes.theta, block, plan.watch(self.choices.on_nonfinite))

    def accept(self, block: Block, plan: PopulationPlan, ran: Ran) -> None:
        """Where the lanes are after the last step."""
        lanes = self.lanes
        assert lanes is not None
        lanes.carry, lanes.fresh = ran.carry, block.ends(block.count - 1)
        if self.parts[0].stateful and lanes.fresh:
            lanes.carry = self._anew(block.sample(block.count - 1).u, ran.carry)
        lanes.times, lanes.updates = plan.all_times[-1], plan.updates

    def row(self, ahead: Ahead, index: int) -> Any:
        """The report of a step."""
        return PopulationBlockReport(ahead, index, self.layout.flat)

    def _anew(self, u: Any, before: Carry) -> Carry:
        starts = [trees.flatten(parts.network.initial_state(u)) for parts in self.parts]
        firsts = [parts.order.first(h, spec) for parts, (h, spec) in zip(self.parts, starts, strict=True)]
        h = [self.layout.pack(leaves) for leaves in zip(*(leaves for leaves, _ in starts), strict=True)]
        E = [self.layout.pack(leaves) for leaves in zip(*firsts, strict=True)]
        return before.anew(h, starts[0][1], E)


def how_members_differ(one: LearnerParts, other: LearnerParts) -> str | None:
    """What stands in the way of one recorded step for both."""
    found = difference("the network", one.network, other.network)
    if found is not None:
        return found
    # A loss may hold weights, each member's its own.
    tensors = ((*net.parameters(), *net.buffers()) for net in (one.network, other.network))
    return difference("the loss", one.system.loss, other.system.loss, zip(*tensors, strict=True))


class PopulationPlan:
    """Times, rates and β of all members for each step of a block, as far as they are valid.

    Where nothing depends on time they are found once, and `kept` for the blocks to come.
    """

    def __init__(self, members: list[LearnerParts], lanes: Lanes, block: Block, kept: dict[str, Any]) -> None:
        self.block, self.layout, self.kept = block, lanes.layout, kept
        if "constant" not in kept:
            kept["scheduled"] = any(parts.system.velocity.scheduled for parts in members)
            kept["constant"] = not any(parts.timed for parts in members)
            kept["first"] = np.array([parts.hyper.phi_first is not None for parts in members])
            # A tensor may be written to from block to block.
            kept["numbers"] = not any(parts.system.velocity.has_tensors for parts in members)
            kept["driven"] = any(parts.system.drive is not None for parts in members)
        self.hypers, self.order = [parts.hyper for parts in members], members[0].choices.order
        self.begun = lanes.updates
        self.scheduled, self.steady = kept["scheduled"], kept["constant"] and block.tau is None
        first = bool(((lanes.updates == 0) & kept["first"]).any())
        # A first φ of its own holds until something has been learned: that step is taken by itself.
        self.count = 1 if self.steady and first else block.count
        self.rates: list[list[Rates]] = []
        self.betas: list[list[list[float | Tensor]]] = []
        times, updates = lanes.times, lanes.updates
        for index in range(1 if self.steady else self.count):
            tau = None if block.tau is None else block.tau[index]
            if self.steady and not first and "rates" in kept:
                self.rates, self.betas = kept["rates"]
                break
            try:
                settings = zip(members, times.tolist(), updates.tolist(), strict=True)
                rates = [m.hyper.at(t, tau, first=n == 0) for m, t, n in settings]
                clock = zip(members, times.tolist(), strict=True)
                betas = [parts.system.velocity.values(t) for parts, t in clock]
            except Exception:
                # The sample is taken by itself when its turn comes, and says what is wrong.
                self.count = index
                break
            self.rates.append(rates)
            self.betas.append(betas)
            times, updates = times + [r.tau for r in rates], updates + block.has_target(index)
        if self.steady and not first:
            kept.setdefault("rates", (self.rates, self.betas))
        if self.count == 0:
            return
        self.updates = lanes.updates + block.targets(self.count)
        self.all_times = _clock(lanes.times, self._taus(first), self.count)
        self.fresh = block.begins(lanes.fresh, self.count)

    @property
    def clock(self) -> np.ndarray:
        """Times of the first member."""
        return self.all_times[:, 0]

    @property
    def times(self) -> list[float]:
        """The same as a list."""
        return self.clock.tolist()

    def _taus(self, first: bool) -> np.ndarray:
        if self.steady and not first and "taus" in self.kept:
            return self.kept["taus"]
        taus = np.array([[r.tau for r in rates] for rates in self.rates])
        if self.steady and not first:
            self.kept["taus"] = taus
        return taus

    @property
    def phis(self) -> np.ndarray:
        """φ of the first member, step by step; one for all where it does not change."""
        return np.array([rates[0].phi for rates in self.rates])

    def phi(self, index: int) -> float:
        """φ of the first member."""
        return self.member_phi(index, 0)

    def member_phi(self, index: int, member: int) -> float:
        """φ of a member at a step."""
        return self.rates[0 if self.steady else index][member].phi

    def watch(self, on_nonfinite: str) -> Watch:
        """What has to be looked at step by step."""
        if on_nonfinite == "ignore":
            return "nothing"
        if self.steady and self.kept["numbers"] and "watch" in self.kept:
            return self.kept["watch"]
        rates = np.array([[each[:5] for each in step] for step in self.rates])
        watch = first_watch(rates, (betas for step in self.betas for betas in step), self.hypers)
        if self.steady:
            self.kept["watch"] = watch
        return watch

    def pace(self) -> Pace:
        """Rates and β as tensors."""
        known, pack = self.block.known, self.layout.pack
        key = (id(self.rates), self.count)
        if self.steady and self.kept["numbers"] and self.kept.get("key") == key:
            rows, betas = self.kept["pace"]
        else:
            table = torch.tensor([[r[:5] for r in rates] for rates in self.rates], dtype=torch.float64)
            if self.steady:
                table = table.expand(self.count, -1, -1)
            rows = [pack(part.unbind(1), dim=1) for part in table.unbind(2)]
            given = self.betas if self.scheduled else self.betas[:1]
            steps = [[pack(alike_betas(column)) for column in zip(*betas, strict=True)] for betas in given]
            betas = [torch.stack(column) for column in zip(*steps, strict=True)] if self.scheduled else steps[0]
            if self.steady:
                self.kept["key"], self.kept["pace"] = key, (rows, betas)
        if known is not None:
            mask = torch.tensor(known[: self.count], dtype=torch.float64)
            rows = [*rows[:4], rows[4] * mask[:, None, None]]
        return Pace(rows, betas, self.scheduled, self._drive(rows[4]))

    def _drive(self, phi: Tensor) -> list[Tensor]:
        if not self.kept["driven"]:
            return []
        learned = self.block.mask(self.count).numpy().astype(bool)
        enters = phi.flatten(1)[:, : self.layout.members].numpy() != 0
        members = zip(self.hypers, self.begun.tolist(), enters.T, strict=True)
        tables = [drive_rows(hyper, self.order, n, learned, each) for hyper, n, each in members]
        columns = torch.from_numpy(np.stack(tables)).unbind(2)
        return [self.layout.pack(column.unbind(0), dim=1) for column in columns]


def _clock(times: np.ndarray, taus: np.ndarray, count: int) -> np.ndarray:
    """Times of all members before each step and after the last, as repeated addition gives them."""
    together = bool((times == times[0]).all() and (taus == taus[:, :1]).all())
    members = 1 if together else len(times)
    clock = np.empty((count + 1, members))
    clock[0], clock[1:] = times[:members], taus[:, :members]
    np.add.accumulate(clock, out=clock)
    return np.broadcast_to(clock, (count + 1, len(times)))


def alike_betas(betas: Sequence[float | Tensor]) -> Sequence[Tensor]:
    """β of one weight for all members; a number among tensors takes their shape."""
    return torch.broadcast_tensors(*(torch.as_tensor(beta, dtype=torch.float64) for beta in betas))
