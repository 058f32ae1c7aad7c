"""Running members that each have a stream of their own."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hamlearn.engines.blocks.runner import tell_changes, tell_eager, usual_modes
from hamlearn.engines.eager.stepping import Stepper
from hamlearn.engines.lanes.agent_reports import AgentsReport, Passed
from hamlearn.engines.lanes.agent_runs import SideBySide
from hamlearn.engines.lanes.agent_sheet import Sheet
from hamlearn.engines.recorded import UnsupportedError
from hamlearn.errors import AuditError, HamlearnError, StreamError
from hamlearn.learner.learner import Learner
from hamlearn.sample import Sample, StepReport
from hamlearn.streams.base import END
from hamlearn.streams.blocks import Block
from hamlearn.streams.reader import Progress

BYTES = 1 << 27
"""Bytes of samples and rates that a block of steps may have, unless a chunk is given."""


class Round:
    """Some steps of all members: those that go on as lanes have taken theirs, the others take them one by one.

    Attributes:
        count: Number of steps.
        passed: What the lanes have taken; `None` where there are none.
        before: How far each lane's reading had come.
        alone: Members that go on by themselves.
        delivered: Number of reports handed out.
        asked: Whether somebody looked at the members meanwhile.
        settled: Whether they were brought back before all reports were handed out.
    """

    def __init__(self, count: int, alone: set[int]) -> None:
        self.count, self.alone = count, alone
        self.passed: Passed | None = None
        self.before: list[Progress] = []
        self.undo: Any = None
        self.delivered = 0
        self.asked = self.settled = False


class Agents(SideBySide):
    """Takes samples from as many streams as there are members.

    Args:
        learners: The members.
        members: What they step by.
        streams: A stream for each of them.

    Attributes:
        aside: Why members were set aside in the last run, by their numbers.
    """

    def __init__(
        self, learners: Sequence[Learner], members: list[Stepper], streams: Sequence[Iterable[Sample]]
    ) -> None:
        super().__init__(members)
        self.learners, self.streams = learners, list(streams)
        self.aside: dict[int, Exception] = {}
        self.resting: set[int] = set()
        self.round: Round | None = None
        self.turn = 0

    def eager(self, max_steps: int | None, resume: bool) -> Iterator[AgentsReport]:
        """Each member runs as if it were alone, one sample at a time."""
        self._begin()
        self._give()
        runs: dict[int, Iterator[StepReport]] = {}
        for number, learner in enumerate(self.learners):
            with _Aside(self, number):
                runs[number] = iter(learner.run(self.streams[number], max_steps, resume=resume))
        while True:
            found = {}
            for number, run in list(runs.items()):
                report = END
                with _Aside(self, number):
                    report = next(run, END)
                if report is END:
                    del runs[number]
                else:
                    found[number] = report
            if not found:
                return
            yield AgentsReport(len(self.members), None, 0, found)

    def compiled(
        self, max_steps: int | None, resume: bool, chunk: int | None, most: int
    ) -> Iterator[AgentsReport]:
        """Members whose samples are alike are lanes of one loop; the others go on by themselves."""
        turn, turns = self._begin(), {}
        for number, member in enumerate(self.members):
            with _Aside(self, number):
                turns[number] = member.reader.open_blocks(self.streams[number], resume)
        if chunk is None:
            most = min(most, self._affordable(most))
        done, since, size, compiles = 0, 0, chunk or most, True
        most = size
        try:
            while max_steps is None or done < max_steps:
                self._check_turn(turn)
                now, reason = None, None
                try:
                    now = self._next(size if max_steps is None else min(size, max_steps - done), compiles)
                except UnsupportedError as error:
                    self.make_whole()
                    reason = error
                if reason is not None:
                    tell_eager(reason)
                    compiles = False
                    continue
                if now is None:
                    return
                self.round, self.repair = now, None
                try:
                    for index in range(now.count):
                        report = self._report(now, index)
                        if report is None:
                            break
                        now.delivered = index + 1
                        yield report
                        if now.settled:
                            break
                finally:
                    self._back()
                if now.passed is not None and not now.settled:
                    tell_changes(now.passed.ran, "population.members")
                done += now.delivered
                since += now.delivered
                if now.asked:
                    size, since = min(since, most), 0
                else:
                    size = min(2 * size, most)
        finally:
            for number, opened in turns.items():
                self.members[number].reader.close(opened)

    def settle(self) -> None:
        """Bring all members to the last report that was handed out, since somebody asks for them."""
        self.make_whole()
        if self.round is not None:
            self.round.asked = True
            self._back()

    def spread(self, number: int | None = None) -> None:
        """Give each member, or one, what is its own; it may be changed from then on."""
        if number is None:
            self._give()
            self.alike.clear()
            return
        if self.lanes is not None and number in self.lanes.lane:
            self.lanes.give(self.lanes.lane[number])
        self.alike.discard(number)

    def count(self) -> None:
        """Tell each reader how many samples have been taken, as far as reports have been handed out."""
        now = self.round
        if now is not None and now.passed is not None:
            for lane, number in enumerate(now.passed.who):
                if number not in now.alone and now.passed.sheet.blocks[lane] is not None:
                    self._count(now, lane, min(now.delivered, int(now.passed.counts[lane])))

    def make_whole(self) -> None:
        """Undo a block that was interrupted before it was done."""
        repair = self.repair
        if repair is not None:
            repair()
            self.repair = None

    def _begin(self) -> int:
        self.settle()
        self.aside, self.resting = {}, set()
        self.turn += 1
        return self.turn

    def _check_turn(self, turn: int) -> None:
        if turn != self.turn:
            raise StreamError(
                "this run was overtaken by a newer one of the same population, and samples that it has read ahead "
                "are lost: finish one run before the next, or use engine='eager'"
            )

    def _affordable(self, most: int) -> int:
        """How many steps of all members fit into memory comfortably."""
        for number, member in enumerate(self.members):
            block: Block | None = None
            with _Aside(self, number):
                block = member.reader.peek(1)
            if block is not None and block.u is not None:
                each = sum(leaf[0].nbytes for leaf in (*block.u, *block.target)) + 40
                return max(1, BYTES // (each * len(self.members)))
        return most

    def _next(self, size: int, compiles: bool) -> Round | None:
        """Read what comes, and let the lanes take it; `None` where nobody has anything."""
        blocks: dict[int, Block] = {}
        for number, member in enumerate(self.members):
            if number in self.resting:
                continue
            with _Aside(self, number):
                block = member.reader.peek(size)
                if block is None:
                    self._end(number)
                else:
                    blocks[number] = block
        if not blocks:
            return None
        joined = self._joined(blocks, size) if compiles else []
        count = min([size, *(blocks[n].count for n in joined if blocks[n].more or _waits(self.streams[n]))])
        if joined:
            count = min(count, max(blocks[n].count for n in joined))
        now = Round(count, set(blocks) - set(joined))
        self._give(now.alone)
        if joined:
            try:
                self._fill(joined, blocks)
            except HamlearnError:
                # No state can be made for the first sample of one of them, which its member says itself.
                self._give(blocks)
                return Round(1, set(blocks))
            assert self.lanes is not None
            rows = [blocks[n] if n in blocks and n not in now.alone else None for n in self.lanes.who]
            sheet = Sheet.of(rows, count, self.lanes.layout)
            now.before = [self.members[n].reader.progress for n in self.lanes.who]
            # Where the sample that was tried is wrong, the others go on when its member has been set aside.
            self.engine.steps.pin(False)
            try:
                ran = self._run(sheet)
            except AuditError:
                raise
            except HamlearnError:
                ran = None
            if ran is None:
                self.make_whole()
                self._give(blocks)
                return Round(1, set(blocks))
            now.passed, now.undo = ran
        return now

    def _end(self, number: int) -> None:
        self.resting.add(number)
        self.members[number].reader.end(0)

    def _report(self, now: Round, index: int) -> AgentsReport | None:
        """The next step of all members; `None` where nobody is left."""
        passed, lanes = now.passed, self.lanes
        found: dict[int, StepReport] = {}
        if passed is not None and index in passed.leaving:
            assert lanes is not None
            for lane in passed.leaving[index]:
                # Its next sample is taken as any other, and says itself what is wrong.
                self._count(now, lane, index)
                lanes.give(lane)
                now.alone.add(passed.who[lane])
        if now.alone:
            for number in sorted(now.alone - self.resting):
                report = self._alone(number)
                if report is not None:
                    found[number] = report
        if not found and (passed is None or index >= passed.last):
            return None
        return AgentsReport(len(self.members), passed, index, found)

    def _alone(self, number: int) -> StepReport | None:
        reader = self.members[number].reader
        with _Aside(self, number):
            block = reader.peek(1)
            if block is None:
                self._end(number)
                return None
            return reader.counted(self.learners[number].step, block.sample(0))
        return None

    def _back(self) -> None:
        """Be where the last report says."""
        self.count()
        now = self.round
        if now is not None and now.passed is not None and now.delivered < now.count:
            # Interrupted within, it begins anew the next time.
            now.settled = True
            with usual_modes():
                now.undo()
                if now.delivered:
                    self.engine.steps.pin(True)
                    self._run(now.passed.sheet.head(now.delivered))
                    self.repair = None
        self.round = None

    def _count(self, now: Round, lane: int, taken: int) -> None:
        assert now.passed is not None
        block = now.passed.sheet.blocks[lane]
        assert block is not None
        ends = None if block.boundary is None else block.boundary[:taken]
        self.members[now.passed.who[lane]].reader.progress = now.before[lane].after(taken, ends)


class _Aside:
    """Within, whatever goes wrong concerns one member: it is set aside, and the others go on."""

    def __init__(self, agents: Agents, number: int) -> None:
        self.agents, self.number = agents, number

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> bool:
        if not isinstance(error, Exception):
            return False
        agents, number = self.agents, self.number
        agents.aside[number] = error
        agents.resting.add(number)
        warnings.warn(
            f"member {number} of {len(agents.members)} is set aside, and the others go on: {error}",
            RuntimeWarning,
            stacklevel=4,
        )
        return True


def _waits(stream: Any) -> bool:
    """Whether a short block of the stream may be followed by others."""
    return bool(getattr(stream, "live", False))
