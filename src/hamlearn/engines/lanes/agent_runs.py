"""Members whose samples stand side by side: who they are, and how their lanes take a block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from hamlearn._base.finite import all_finite
from hamlearn.engines.blocks.step_runner import require_moving
from hamlearn.engines.eager.commit import keeps_mode
from hamlearn.engines.eager.stepping import Stepper
from hamlearn.engines.lanes.agent_lanes import AgentLanes
from hamlearn.engines.lanes.agent_plan import AgentPlan, Settings
from hamlearn.engines.lanes.agent_reports import Passed
from hamlearn.engines.lanes.agent_sheet import Sheet, fits, form_of
from hamlearn.engines.lanes.lanes import Layout
from hamlearn.engines.lanes.population_runner import how_members_differ
from hamlearn.engines.recorded import LEFT, TAKEN, Engine, Guard, Ran, Trial, UnsupportedError, Watch
from hamlearn.state.learner_state import LearnerState
from hamlearn.streams.blocks import Block

SHORT = 8
"""A block that is cut before this part of what was asked for holds nobody up: its member goes on by itself."""


class SideBySide:
    """Learners as lanes of one loop, as far as their samples have one form; `Agents` reads their streams.

    Args:
        members: What the learners step by.
    """

    def __init__(self, members: list[Stepper]) -> None:
        first = members[0].parts
        self.members, self.choices = members, first.choices
        self.parts = [member.parts for member in members]
        self.dtype = first.system.theta[0].dtype
        # On a GPU each member has a block of threads, and narrow groups keep its numbers close together.
        self.width = 2 if first.devices else Layout(len(members), self.dtype).width
        reset, carries = self.choices.reset_h == "sample", self.choices.credit.carries
        self.engine = Engine(first.order, reset, carries, self.width, own=True)
        self.lanes: AgentLanes | None = None
        self.settings: Settings | None = None
        self.alike: set[int] = set()
        self.repair: Any = None
        self.cautious = False

    def _give(self, numbers: Iterable[int] | None = None) -> None:
        """Let these members, or all, go on by themselves."""
        lanes = self.lanes
        if lanes is not None:
            for number in lanes.who if numbers is None else numbers:
                if number in lanes.lane:
                    lanes.give(lanes.lane[number])

    def _joined(self, blocks: dict[int, Block], size: int) -> list[int]:
        """The members whose samples stand side by side."""
        require_moving(self.parts)
        able = {n: b for n, b in blocks.items() if b.u is not None and not (b.more and b.count * SHORT < size)}
        if not able:
            able = {n: b for n, b in blocks.items() if b.u is not None}
        told = {n: b for n, b in able.items() if b.target} or able
        if not told:
            return []
        example = next(iter(told.values()))
        joined = [n for n, block in able.items() if fits(block, example)]
        if 2 * len(joined) < len(able):
            most = Counter(map(form_of, told.values())).most_common(1)[0][0]
            example = next(b for b in told.values() if form_of(b) == most)
            joined = [n for n, block in able.items() if fits(block, example)]
        shapes: Any = None
        found = []
        for number in joined:
            member = self.members[number]
            if number not in self.alike:
                member.parts.check_network()
                differs = how_members_differ(self.parts[0], member.parts)
                if differs is not None:
                    raise UnsupportedError(f"members 0 and {number} have come to differ: {differs}")
                self.alike.add(number)
            # In the middle of a sequence a state has the batch size of its own samples.
            mine = None if self._in_lane(number) else _shapes(member.state)
            if mine is not None and self.lanes is not None and self.lanes.carry.h and not shapes:
                shapes = [leaf.shape[1:-1] for leaf in self.lanes.carry.h]
            if mine is not None and shapes is not None and mine != shapes:
                continue
            shapes = shapes or mine
            found.append(number)
        return found

    def _in_lane(self, number: int) -> bool:
        lanes = self.lanes
        return lanes is not None and number in lanes.lane and lanes.lane[number] not in lanes.left

    def _fill(self, joined: list[int], blocks: dict[int, Block]) -> None:
        """Have each of them in a lane."""
        lanes = self.lanes
        missing = [n for n in joined if not self._in_lane(n)]
        fits_in = lanes is not None and all(n in lanes.lane for n in joined)
        if lanes is not None and fits_in and 2 * len(missing) <= len(lanes.who) <= 2 * len(joined):
            for number in missing:
                lanes.take(lanes.lane[number], blocks[number].sample(0).u)
            return
        self._give()
        layout = Layout(len(joined), self.dtype, self.width)
        inputs = [blocks[n].sample(0).u for n in joined]
        self.lanes = AgentLanes(self.members, joined, inputs, self.engine, layout)
        self.settings = Settings([self.parts[n] for n in joined])

    @keeps_mode
    def _run(self, sheet: Sheet) -> tuple[Passed, Any] | None:
        """Let the lanes take a sheet, each as far as it goes well; `None` where none can."""
        lanes, settings = self.lanes, self.settings
        assert lanes is not None
        assert settings is not None
        members = [self.members[n] for n in lanes.who]
        plan = AgentPlan([self.parts[n] for n in lanes.who], lanes, sheet, settings)
        if not plan.counts.any():
            return None
        plan.warn()
        self.repair = undo = lanes.undo()
        policy, pace = self.choices.on_nonfinite, plan.pace()
        fresh, whole = sheet.begins(lanes.fresh, lanes.layout), bool((plan.counts == sheet.count).all())
        tried = int(np.argmax(plan.counts > 0))

        one = members[tried]
        trial = Trial(lambda: one.rehearse(sheet.sample(0, tried)), one.parts.network, tried)

        def run(watch: Watch, guard: Guard | None) -> Ran:
            weights = (lanes.theta, lanes.buffers, lanes.frozen)
            return self.engine.run(*weights, lanes.carry, fresh, pace, sheet.together, watch, trial, guard)

        def sound(ran: Ran) -> bool:
            return all_finite([*ran.carry.omega, *ran.carry.v, *(weight.detach() for weight in lanes.theta)])

        ran, watch = None, plan.watch(policy)
        if whole and not self.cautious:
            ran = run(watch, None)
            if not _clean(ran, watch, sheet, lanes.layout) or (watch == "state" and not sound(ran)):
                undo()
                ran = None
        verdicts = None
        if ran is None:
            trouble = "skip" if policy == "skip" and plan.alone else "leave"
            active = torch.from_numpy(np.arange(sheet.count)[:, None] < plan.counts)
            guard = Guard(lanes.layout.fold(active, 1), trouble)  # type: ignore[arg-type]
            ran = run(watch, guard)
            if watch == "state" and not sound(ran):
                undo()
                ran = run("all", guard)
            assert ran.verdict is not None
            verdicts = _columns(ran.verdict, lanes.layout).cpu().numpy()
            self.cautious = bool((verdicts > TAKEN).any())
        return self._noted(sheet, plan, ran, verdicts), undo

    def _noted(self, sheet: Sheet, plan: AgentPlan, ran: Ran, verdicts: np.ndarray | None) -> Passed:
        """Write down where the lanes are after a block."""
        lanes = self.lanes
        assert lanes is not None
        counts, taken = plan.counts, None
        if verdicts is not None:
            left, taken = verdicts == LEFT, verdicts == TAKEN
            counts = np.where(left.any(0), left.argmax(0), counts)
        times = plan.clock(taken)
        passed = Passed(lanes.who, sheet, plan, ran, counts, verdicts, times, lanes.layout)
        lanes.carry, lanes.times, lanes.updates = ran.carry, times[-1].copy(), lanes.updates + sheet.learned(taken)
        there = counts > 0
        fresh = lanes.fresh & ~there
        if sheet.boundary is not None:
            fresh |= there & sheet.boundary[np.maximum(counts - 1, 0), np.arange(len(counts))]
        if verdicts is not None:
            fresh |= there & _columns(ran.kept[1][None], lanes.layout)[0].cpu().numpy()
        lanes.fresh = fresh
        lanes.moved |= set(np.flatnonzero(there).tolist())
        for lane in np.flatnonzero(fresh & there).tolist():
            if sheet.boundary is None or not sheet.boundary[: counts[lane], lane].any():
                continue
            last = int(np.flatnonzero(sheet.boundary[: counts[lane], lane])[-1])
            lanes.ended(lane, None if passed.skipped(last, lane) else sheet.sample(last, lane).u)
        return passed


def _shapes(state: LearnerState) -> list[torch.Size] | None:
    """Sizes of a state in the middle of a sequence."""
    return None if state.fresh or not state.carry.h else [leaf.shape for leaf in state.carry.h]


def _columns(packed: torch.Tensor, layout: Layout) -> torch.Tensor:
    """One number per step and lane, as rows of lanes."""
    return packed.flatten(1)[:, : layout.members]


def _clean(ran: Ran, watch: Watch, sheet: Sheet, layout: Layout) -> bool:
    """Whether every step of every lane went well, as far as it was looked at."""
    if ran.mark is not None and bool(ran.mark.any()):
        return False
    if watch == "nothing" or ran.loss is None:
        return True
    wrong = ~ran.loss.isfinite()
    if sheet.known is not None and bool(wrong.any()):
        wrong &= layout.fold(torch.from_numpy(sheet.known), 1).to(wrong.device)
    return not bool(wrong.any())
