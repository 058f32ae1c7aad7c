"""The rules of `LocalLearner` over a part of the graph: at its borders, messages stand for the neighbours."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from hamlearn.distributed.bundles import BundleReceiver, BundleSender
from hamlearn.distributed.parts import Part
from hamlearn.rules.local.aligned import Aligned, Tick
from hamlearn.rules.local.flights import Pipeline, own_copy
from hamlearn.rules.local.rule import Done, Now, Proposal
from hamlearn.rules.local.unaligned import Nodes, Unaligned, seen
from hamlearn.sample import Sample


@dataclass
class Border:
    """The four directions of a part; those that lead out of the pipeline are `None`.

    Attributes:
        states_in: From the rank before.
        costates_out: To the rank before.
        states_out: To the rank behind.
        costates_in: From the rank behind.
        template: Zeros in the form of the states that come in.
        entries: Entries of the samples whose states, and whose costates, have been asked for.
    """

    states_in: BundleReceiver | None = None
    costates_out: BundleSender | None = None
    states_out: BundleSender | None = None
    costates_in: BundleReceiver | None = None
    template: Tensor | None = None
    entries: tuple[deque[int], deque[int]] = field(default_factory=lambda: (deque(), deque()))

    def settle(self) -> None:
        """Wait until all that was sent has gone."""
        for sender in (self.costates_out, self.states_out):
            if sender is not None:
                sender.settle()

    def drop(self) -> None:
        """Let go of everything under way."""
        for end in (self.states_in, self.costates_out, self.states_out, self.costates_in):
            if end is not None:
                end.drop()


class PartAligned(Aligned):
    """Aligned ticks of one part. Messages of a tick are needed in the next one, and travel while this one lasts.

    Every rank knows of every sample in flight, so that all of them know who sends what to whom at which tick. A
    part keeps every state as long as its sample is in flight, for checkpoints that other ranks read.
    """

    def __init__(self, part: Part, border: Border) -> None:
        self.part = part
        self.border = border
        super().__init__(part.system, part.plan)

    def spans(self) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]]]:
        """All ages, for the part's own nodes and those at its borders."""
        plan, last = self.schedule, self.schedule.horizon - 1
        cells = self.part.system.cells
        h = dict.fromkeys(self.part.system.wiring.inputs, (0, last))
        h |= {cell.name: (plan.shown(cell.name), max(plan.shown(cell.name), last)) for cell in cells}
        names = [*(cell.name for cell in cells), *self.part.system.wiring.borders]
        return h, {name: (0, last) for name in names if name in plan.backward}

    def ticks_made(self, carry: Pipeline) -> int:
        """Ticks made so far."""
        return carry.number

    def fresh(self, carry: Pipeline) -> bool:
        """Whether no sample is in flight."""
        return not self.in_flight(carry)

    def begin(self, carry: Pipeline, u: Any) -> Pipeline:
        """As for a whole graph, with what comes from the rank before in the place of u."""
        return super().begin(carry, u if self.border.template is None else self.border.template)

    def own(self, sample: Sample) -> Sample:
        """What this rank keeps of a sample: u on the first rank, the target on the last."""
        inner = self.border.template
        target = None if self.part.shown is not None else sample.target
        own = own_copy(Sample(None if inner is not None else sample.u, target, sample.tau, sample.boundary))
        if inner is not None:
            own.u = inner
        return own

    def tick(self, carry: Pipeline, sample: Sample | None, now: Now) -> Proposal[Pipeline]:
        """As for a whole graph, after what the neighbours have sent for it."""
        return super().tick(self.take_states(carry), sample, now)

    def states_arrive(self, tick: Tick) -> None:
        """Ask for what the neighbours compute in this tick."""
        border, plan, part = self.border, self.schedule, self.part
        if border.states_in is not None:
            assert part.border is not None
            age = plan.shown(part.border)
            entry = tick.at(age)
            if entry is not None:
                border.states_in.expect(entry.sample.u, tick.number)
                border.entries[0].append(tick.number - age)
        if border.costates_in is not None:
            assert part.shown is not None
            age = plan.backward[part.shown] - 1
            if tick.at(age) is not None:
                border.costates_in.expect(tick.h.get(part.shown, age), tick.number)
                border.entries[1].append(tick.number - age)

    def states_leave(self, tick: Tick) -> None:
        """Send the state that the rank behind needs in the next tick."""
        if self.border.states_out is not None:
            assert self.part.shown is not None
            age = self.schedule.shown(self.part.shown)
            if tick.at(age) is not None:
                state = tick.h.get(self.part.shown, age)
                self.border.states_out.send(state, state, tick.number)

    def costates_arrive(self, tick: Tick) -> None:
        """Take the costates of the last tick."""
        waiting, part = self.border.entries[1], self.part
        while waiting and waiting[0] + self.schedule.backward[part.shown or ""] - 1 < tick.number:
            assert self.border.costates_in is not None
            z, age = self.border.costates_in.take(), tick.number - waiting.popleft()
            if z is not None and tick.at(age) is not None and part.shown is not None:
                tick.z.put(part.shown, age, z)

    def costates_leave(self, tick: Tick) -> None:
        """Send the costate that the rank before needs in the next tick."""
        if self.border.costates_out is not None:
            name = self.part.border
            assert name is not None
            age = self.schedule.backward[name] - 1
            entry = tick.at(age)
            if entry is not None:
                self.border.costates_out.send(tick.z.get(name, age), entry.sample.u, tick.number)

    def _done(self, tick: Tick) -> Done | None:
        if self.part.shown is None:
            return super()._done(tick)
        # The output is complete on the last rank in this very tick: every rank yields a report then.
        entry = tick.at(self.part.complete)
        if entry is None or not entry.reported:
            return None
        return Done(entry.given or entry.sample, entry.t, None, None)

    def take_states(self, carry: Pipeline) -> Pipeline:
        """What is carried, with the states that have come from the rank before."""
        border, plan, part = self.border, self.schedule, self.part
        waiting = border.entries[0]
        while waiting and waiting[0] + plan.shown(part.border or "") < carry.number:
            assert border.states_in is not None
            state, age = border.states_in.take(), carry.number - 1 - waiting.popleft()
            if state is not None and age in self.in_flight(carry) and part.border is not None:
                carry.h.put(part.border, age, state)
        return carry

    def take_costates(self, carry: Pipeline) -> Pipeline:
        """What is carried, with the costates that have come from the rank behind."""
        waiting, part = self.border.entries[1], self.part
        while waiting and waiting[0] + self.schedule.backward[part.shown or ""] - 1 < carry.number:
            assert self.border.costates_in is not None
            z, age = self.border.costates_in.take(), carry.number - 1 - waiting.popleft()
            if z is not None and age in self.in_flight(carry) and part.shown is not None:
                carry.z.put(part.shown, age, z)
        return carry

    def settle(self, carry: Pipeline) -> Pipeline:
        """What is carried once all that is under way has come, so that nothing of this learner is elsewhere."""
        carry = self.take_costates(self.take_states(carry))
        self.border.settle()
        return carry

    def dropped(self, carry: Pipeline) -> Pipeline:
        """Drop all samples in flight, once their messages have come."""
        return super().dropped(self.settle(carry))


class PartUnaligned(Unaligned):
    """Unaligned ticks of one part: states travel from tick to tick, messages of costates within a tick.

    Attributes:
        number: Ticks made so far.
        arrived: The state that the rank before showed after the last tick.
    """

    def __init__(self, part: Part, border: Border) -> None:
        super().__init__(part.system)
        self.part = part
        self.border = border
        self.number = 0
        self.arrived: Tensor | None = None

    def ticks_made(self, carry: Nodes) -> int:
        """Ticks made so far."""
        return self.number

    def fresh(self, carry: Nodes) -> bool:
        """Whether there are no states."""
        return not carry.h

    def begin(self, carry: Nodes, u: Any) -> Nodes:
        """As for a whole graph, with what comes from the rank before in the place of u; that begins at zero."""
        inner = self.border.template
        if inner is not None and not carry.h:
            self.arrived = inner
        return super().begin(carry, u if inner is None else inner)

    def own(self, sample: Sample) -> Sample:
        """What this rank needs of a sample: the target on the last rank only."""
        if self.part.shown is None or sample.target is None:
            return sample
        return Sample(sample.u, None, sample.tau, sample.boundary)

    def inputs(self, sample: Sample) -> dict[str, Any]:
        """The states that the rank before showed after the last tick."""
        if self.part.border is None:
            return super().inputs(sample)
        self._take_states()
        assert self.arrived is not None
        return {self.part.border: self.arrived}

    def states_leave(self, h1: list[Tensor], *, over: bool) -> None:
        """Send the state that the rank behind needs in the next tick, and ask for that of the rank before."""
        border = self.border
        if border.states_out is not None and not over:
            state = seen(self.system.cells, h1)[self.part.shown or ""]
            border.states_out.send(state, state, self.number)
        if border.states_in is not None and not over:
            assert border.template is not None
            border.states_in.expect(border.template, self.number)

    def costates_meet(self, carry: Nodes, incoming: dict[str, Tensor]) -> None:
        """Exchange the messages of this tick: they come from costates that all ranks have had since the last."""
        border, part = self.border, self.part
        if border.costates_in is not None:
            assert part.shown is not None
            border.costates_in.expect(seen(self.system.cells, carry.h)[part.shown], self.number)
        if border.costates_out is not None:
            assert border.template is not None
            border.costates_out.send(incoming.get(part.border or ""), border.template, self.number)
        if border.costates_in is not None:
            message = border.costates_in.take()
            if message is not None:
                incoming[part.shown or ""] = message
        self.number += 1

    def _take_states(self) -> None:
        states = self.border.states_in
        while states is not None and len(states):
            self.arrived = states.take()

    def settle(self, carry: Nodes) -> Nodes:
        """What is carried once all that is under way has come, so that nothing of this learner is elsewhere."""
        self._take_states()
        self.border.settle()
        return carry

    def dropped(self, carry: Nodes) -> Nodes:
        """Start afresh with the next sample, once the messages under way have come."""
        self.settle(carry)
        self.arrived = None
        return super().dropped(carry)


Engine = PartAligned | PartUnaligned
