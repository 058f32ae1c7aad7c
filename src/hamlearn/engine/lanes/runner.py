"""Blocks of steps of a population: what all members take next, and one loop for all of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn._base.interrupts import defer_sigint
from hamlearn.engine.blocks.runner import (
    BlockRunner,
    PendingBlock,
    Undo,
    good_steps,
    planned,
    settings_of,
)
from hamlearn.engine.eager.stepping import EagerEngine
from hamlearn.engine.lanes.lanes import LaneBatch, LaneLayout, Lanes, how_members_differ
from hamlearn.engine.lanes.reports import LaneReport, PopulationReport
from hamlearn.engine.rates_table import RatesTable, Steps
from hamlearn.engine.recorded import BlockResult, EagerReference, Engine, ReferenceStep, UnsupportedError
from hamlearn.errors import HamlearnError
from hamlearn.loops.draws import Draws
from hamlearn.sample import Sample, StepReport
from hamlearn.streams.blocks import Block
from hamlearn.streams.reader import Reader, ReadPosition

BYTES = 1 << 27
"""Bytes of samples that a block may have, unless a chunk is given."""


class LaneReader:
    """Reads blocks for all members, as `Reader` does for one learner.

    Args:
        readers: The reader of a shared stream, or that of each member.
        members: Number of members.
        layout: Where their lanes lie.
        own: Whether each member has a stream of its own.

    Attributes:
        aside: Why members were frozen in this run, by their numbers.
        ended: Members whose streams have ended.
        limit: Bytes of samples that a block of all members may have.
    """

    def __init__(self, readers: Sequence[Reader], members: int, layout: LaneLayout, own: bool) -> None:
        self.readers, self.members, self.layout, self.own = readers, members, layout, own
        self.aside: dict[int, Exception] = {}
        self.ended: set[int] = set()
        self.limit: float = math.inf

    @property
    def progress(self) -> list[ReadPosition]:
        """How far the reading of each stream has come."""
        return [reader.progress for reader in self.readers]

    def advance(self, before: Sequence[ReadPosition], batch: LaneBatch, steps: int) -> None:
        """Set the progress to so many steps of a batch that began at `before`."""
        blocks = batch.blocks if self.own else [batch.example]
        for reader, progress, block in zip(self.readers, before, blocks, strict=True):
            if block is not None:
                taken = min(steps, block.count)
                reader.progress = progress.after(taken, block.boundary and block.boundary[:taken])

    def open_blocks(self, streams: Sequence[Iterable[Sample]], resume: bool) -> dict[int, int]:
        """Begin to read the streams; all members take part again, but for those whose own cannot be opened."""
        self.aside, self.ended, found = {}, set(), {}
        for number, (reader, stream) in enumerate(zip(self.readers, streams, strict=True)):
            with self.freezing(number):
                found[number] = reader.open_blocks(stream, resume)
        return found

    def check_turn(self, turns: dict[int, int]) -> None:
        """Raise if another run has begun since."""
        for number, turn in turns.items():
            self.readers[number].check_turn(turn)

    def close(self, turns: dict[int, int]) -> None:
        """End the run that began at these turns."""
        for number, turn in turns.items():
            self.readers[number].close(turn)

    def peek(self, size: int) -> LaneBatch | None:
        """The samples to come, at most `size` of each member; `None` at the end."""
        if not self.own:
            block = self.readers[0].peek(size)
            if block is None:
                return None
            blocks = [None if number in self.aside else block for number in range(self.members)]
            return LaneBatch(blocks, self.layout, False)
        found = self._blocks(size)
        if not found:
            return None
        # A block ends for all where the first one of them ends.
        count = min(block.count for block in found.values())
        parts = [found[n].part(0, count) if n in found else None for n in range(self.members)]
        return LaneBatch(parts, self.layout, True)

    def counted(self, step: Callable[[Any], Any], row: Any) -> Any:
        """Take the samples of a step by `step`, which counts them itself if members have their own streams."""
        return step(row) if self.own else self.readers[0].counted(step, row)

    def end(self, waiting: int) -> None:
        """Raise if a shared stream has ended within a sequence."""
        if not self.own:
            self.readers[0].end(waiting)

    def freeze(self, number: int, error: Exception) -> None:
        """Let a member rest from now on, because of an error."""
        self.aside[number] = error
        text = f"member {number} of {self.members} is frozen, and the others continue: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=4)

    @contextmanager
    def freezing(self, number: int) -> Iterator[None]:
        """Within, an error of a member's own stream freezes the member."""
        try:
            yield
        except Exception as error:
            if not self.own:
                raise
            self.freeze(number, error)

    def _blocks(self, size: int) -> dict[int, Block]:
        found: dict[int, Block] = {}
        for number, reader in enumerate(self.readers):
            if number in self.aside or number in self.ended:
                continue
            with self.freezing(number):
                block = reader.peek(size)
                if block is None:
                    self.ended.add(number)
                    reader.end(0)
                    continue
                if not found and block.u is not None:
                    # As many steps of all members as `limit` allows, by the samples of the first one.
                    each = sum(leaf[0].nbytes for leaf in (*block.u, *block.target))
                    size = int(min(size, max(1, self.limit // (self.members * max(each, 1)))))
                found[number] = block
        return found


class LaneRunner(BlockRunner):
    """Takes the next samples of all members, a block of steps at a time.

    Args:
        learners: The members.
        eagers: Returns what they step by, after each has been brought to its last report.
        shared: Reads the stream that they share; `None` if each has a stream of its own.

    Attributes:
        lanes: Where the members are; `None` while they are in the hands of the user.
    """

    reader: LaneReader  # type: ignore[assignment]

    def __init__(
        self, learners: Sequence[Any], eagers: Callable[[], list[EagerEngine]], shared: Reader | None
    ) -> None:
        self.learners, self.eagers, self.own = learners, eagers, shared is None
        self.members: list[EagerEngine] = eagers()
        self.parts = [member.parts for member in self.members]
        first, theta = self.parts[0], self.parts[0].system.theta
        # On a GPU each member has a block of threads, and narrow groups keep its numbers close together.
        self.layout = LaneLayout(len(self.parts), theta[0].dtype, 2 if self.own and first.devices else None)
        readers = [member.reader for member in self.members] if shared is None else [shared]
        reader = LaneReader(readers, len(self.parts), self.layout, self.own)
        super().__init__(reader, self.each)  # type: ignore[arg-type]
        choices = first.choices
        reset, carries = choices.reset_h == "sample", not choices.credit.clears
        self.engine: Engine = Engine(first.order, reset, carries, self.layout.width, self.own)
        self.settings = settings_of(self.parts, self.layout.fold)
        self.engine.numbers = self._random
        self.lanes: Lanes | None = None

    def reports(self, stream: Any, max_steps: int | None, resume: bool, chunk: int) -> Iterator[Any]:
        """Yield a report for each step; `stream` is a list of the streams."""
        reports: Any = super().reports(stream, max_steps, resume, chunk)
        with closing(reports):
            for report in reports:
                # Every member that had a sample may have failed at it.
                if report is not None:
                    yield report

    def show(self) -> None:
        """Bring all members to the last report and write their lanes back: the user may change them."""
        self.settle()
        self.spread()

    def spread(self) -> None:
        """Write all lanes back to their members; they are packed again before the next block."""
        if self.lanes is not None:
            self.lanes.spread()
            self.lanes = None

    def each(self, row: Any) -> PopulationReport | None:
        """Let each member take its sample eagerly, those that rest excepted; returns `None` if none could."""
        if self.own:
            return self.take_each(row, counted=True)
        return self.take_each([None if n in self.reader.aside else row for n in range(len(self.learners))])

    def take_each(self, samples: Sequence[Any], *, counted: bool = False) -> PopulationReport | None:
        """Let members take these samples eagerly, one after the other; a member that cannot is frozen.

        Args:
            samples: One for each member, `None` for those that rest.
            counted: Whether they come from the members' own streams; else an error is raised if no member is left.
        """
        self.spread()
        found: list[StepReport | None] = [None] * len(samples)
        failed: dict[int, Exception] = {}
        with defer_sigint():
            for number, (learner, sample) in enumerate(zip(self.learners, samples, strict=True)):
                if sample is None:
                    continue
                reader = self.reader.readers[number] if counted else None
                try:
                    found[number] = reader.counted(learner.step, sample) if reader else learner.step(sample)
                except Exception as error:
                    failed[number] = error
        took = any(report is not None for report in found)
        if failed and not took and not counted:
            raise next(iter(failed.values()))
        for number, problem in failed.items():
            self.reader.freeze(number, problem)
        return PopulationReport(found) if took else None

    def plan(self, block: Any) -> RatesTable | None:
        """Rates of all members; `None` if there is no first state for their samples."""
        batch: LaneBatch = block
        if self.lanes is None:
            try:
                self.lanes = self._packed(batch)
            except HamlearnError:
                # The member whose sample it is raises this when it takes it eagerly.
                return None
        steps, state = Steps(batch.count, batch.tau, batch.known, batch.learns, batch.active), self.lanes.state
        return planned(self.settings, self.parts, state.times, state.updates, steps)

    def undo(self) -> Undo:
        """Return what brings all members back to where they are."""
        assert self.lanes is not None
        self._before = self.lanes.undo()
        return self._before

    def take(self, block: Any, plan: RatesTable) -> tuple[BlockResult, int]:
        """All steps of all members by one loop, and how many of them went well for every member."""
        batch, lanes, watch = block, self.lanes, self.parts[0].watch
        assert lanes is not None
        lane = int(batch.active.argmax())
        sample = batch.lane_sample(0, lane)
        reference = ReferenceStep(lambda: self._rehearsed(lane, sample), self.parts[lane].network, lane)
        fresh = batch.begins(lanes.state.fresh, lanes.held.theta[0].device)
        ran = self.engine.run(lanes.held, lanes.state.carry, fresh, plan.pace(), batch.packed(), watch, reference)
        if not batch.active.all():
            lanes.keep_resting(batch.active, self._before.copies, ran.carry)
        return ran, good_steps(ran, batch.count, watch, lanes.held.theta, lambda: self._masks(batch))

    def accept(self, block: Any, plan: RatesTable, ran: BlockResult) -> None:
        """Where the lanes are after the last step."""
        assert self.lanes is not None
        self.lanes.advance(ran.carry, plan.clock[-1].copy(), block, self.engine.drawn)

    def row(self, ahead: PendingBlock, index: int) -> Any:
        """The report of a step."""
        return LaneReport(ahead, index)

    def count(self) -> None:
        """Set the progress of all readers to the last report that was handed out."""
        if self.ahead is not None:
            batch: Any = self.ahead.block
            self.reader.advance(self.ahead.before, batch, self.ahead.delivered)  # type: ignore[arg-type]

    def pending(self) -> int:
        """How many tokens of each member wait for the end of their sequence."""
        resting = self.reader.aside
        taking = [member for number, member in enumerate(self.members) if number not in resting]
        return taking[0].parts.order.pending(taking[0].state.carry.memory) if taking else 0

    def _random(self, draws: Draws, count: int) -> list[Tensor]:
        """Random numbers of the next steps, as the lanes lie; each member has a seed of its own."""
        assert self.lanes is not None
        device = self.lanes.held.theta[0].device
        each = [
            draws.rows(member.seed, drawn, count)
            for member, drawn in zip(self.members, self.lanes.state.drawn, strict=True)
        ]
        return [self.layout.fold(torch.stack(rows, 1).to(device), 1) for rows in zip(*each, strict=True)]

    def _rehearsed(self, lane: int, sample: Sample) -> EagerReference:
        """The eager step of a member, from where its lane is."""
        assert self.lanes is not None
        if self.lanes.state.moved[lane]:
            self.lanes.write_back(lane)
        return self.members[lane].rehearse(sample)

    def _packed(self, batch: LaneBatch) -> Lanes:
        """All members as lanes; a member that rests begins with the input of another one."""
        self.members = members = self.eagers()
        for number, member in enumerate(members):
            member.parts.check_network()
            differs = how_members_differ(self.parts[0], member.parts) if number else None
            if differs is not None:
                raise UnsupportedError(f"members 0 and {number} have come to differ: {differs}")
        usual = batch.example.sample(0).u
        rows = (batch.lane_sample(0, lane) for lane in range(len(members)))
        return Lanes(members, [usual if row is None else row.u for row in rows], self.engine, self.layout)

    def _masks(self, batch: LaneBatch) -> tuple[Tensor, Tensor]:
        """Where a lane takes part, and where it has a target, by step and lane as the engine has them."""
        taking = np.broadcast_to(batch.active, batch.learns.shape)
        active, learns = (self.layout.fold(torch.from_numpy(rows.copy()), 1) for rows in (taking, batch.learns))
        return active, learns
