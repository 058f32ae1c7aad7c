"""The engines of `LocalLearner` over a part of the graph: at its borders, messages stand for the neighbours."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from hamlearn.distributed.bundles import BundleReceiver, BundleSender
from hamlearn.distributed.parts import Part
from hamlearn.orders.local.aligned import Aligned
from hamlearn.orders.local.flights import Tick, own_copy
from hamlearn.orders.local.proposal import Done
from hamlearn.orders.local.unaligned import Unaligned
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

    Every rank knows of every sample in flight, so that all of them know who sends what to whom at which tick.
    """

    def __init__(self, part: Part, border: Border) -> None:
        super().__init__(part.system, part.plan)
        self.part = part
        self.border = border

    @property
    def fresh(self) -> bool:
        """Whether no sample is in flight."""
        return not self.flights

    def begin(self, u: Any) -> None:
        """As for a whole graph, with what comes from the rank before in the place of u."""
        super().begin(u if self.border.template is None else self.border.template)

    def own(self, sample: Sample) -> Sample:
        """What this rank keeps of a sample: u on the first rank, the target on the last."""
        inner = self.border.template
        target = None if self.part.shown is not None else sample.target
        own = own_copy(Sample(None if inner is not None else sample.u, target, sample.tau, sample.boundary))
        if inner is not None:
            own.u = inner
        return own

    def states_arrive(self, tick: Tick) -> None:
        """Ask for what the neighbours compute in this tick, and take the states of the last one."""
        border, plan, part = self.border, self.schedule, self.part
        if border.states_in is not None:
            assert part.border is not None
            entry, flight = tick.at(plan.shown(part.border))
            if flight is not None:
                border.states_in.expect(flight.sample.u, tick.number)
                border.entries[0].append(entry)
        if border.costates_in is not None:
            assert part.shown is not None
            entry, flight = tick.at(plan.backward[part.shown] - 1)
            if flight is not None:
                border.costates_in.expect(flight.h[part.shown], tick.number)
                border.entries[1].append(entry)
        self._take_states(tick.number)

    def states_leave(self, tick: Tick) -> None:
        """Send the state that the rank behind needs in the next tick."""
        if self.border.states_out is not None:
            assert self.part.shown is not None
            entry, flight = tick.at(self.schedule.shown(self.part.shown))
            if flight is not None:
                state = tick.h[entry, self.part.shown]
                self.border.states_out.send(state, state, tick.number)

    def costates_arrive(self, tick: Tick) -> None:
        """Take the costates of the last tick."""
        self._take_costates(tick.number)

    def costates_leave(self, tick: Tick) -> None:
        """Send the costate that the rank before needs in the next tick."""
        if self.border.costates_out is not None:
            name = self.part.border
            assert name is not None
            entry, flight = tick.at(self.schedule.backward[name] - 1)
            if flight is not None:
                z = tick.z.get((entry, name), flight.z.get(name))
                self.border.costates_out.send(z, flight.sample.u, tick.number)

    def _done(self, tick: Tick) -> Done | None:
        if self.part.shown is None:
            return super()._done(tick)
        # The output is complete on the last rank in this very tick: every rank yields a report then.
        _, flight = tick.at(self.part.complete)
        if flight is None or not flight.reported:
            return None
        return Done(flight.given or flight.sample, flight.t, None, None)

    def _take_states(self, now: int) -> None:
        border, plan, part = self.border, self.schedule, self.part
        waiting = border.entries[0]
        while waiting and waiting[0] + plan.shown(part.border or "") < now:
            assert border.states_in is not None
            state, entry = border.states_in.take(), waiting.popleft()
            if state is not None and entry in self.flights and part.border is not None:
                self.flights[entry].h[part.border] = state

    def _take_costates(self, now: int) -> None:
        border, plan, part = self.border, self.schedule, self.part
        waiting = border.entries[1]
        while waiting and waiting[0] + plan.backward[part.shown or ""] - 1 < now:
            assert border.costates_in is not None
            z, entry = border.costates_in.take(), waiting.popleft()
            if z is not None and entry in self.flights and part.shown is not None:
                self.flights[entry].z[part.shown] = z

    def settle(self) -> None:
        """Have all that is under way, so that nothing of this learner is anywhere else."""
        self._take_states(self.number)
        self._take_costates(self.number)
        self.border.settle()

    def reset(self) -> None:
        """Drop all samples in flight, once their messages have come."""
        self.settle()
        super().reset()


class PartUnaligned(Unaligned):
    """Unaligned ticks of one part: states travel from tick to tick, messages of costates within a tick."""

    def __init__(self, part: Part, border: Border) -> None:
        super().__init__(part.system)
        self.part = part
        self.border = border
        self.number = 0
        self.arrived: Tensor | None = None

    @property
    def fresh(self) -> bool:
        """Whether there are no states."""
        return not self.h

    def begin(self, u: Any) -> None:
        """As for a whole graph, with what comes from the rank before in the place of u; that begins at zero."""
        inner = self.border.template
        if inner is not None and not self.h:
            self.arrived = inner
        super().begin(u if inner is None else inner)

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
            state = self.seen(h1)[self.part.shown or ""]
            border.states_out.send(state, state, self.number)
        if border.states_in is not None and not over:
            assert border.template is not None
            border.states_in.expect(border.template, self.number)

    def costates_meet(self, incoming: dict[str, Tensor]) -> None:
        """Exchange the messages of this tick: they come from costates that all ranks have had since the last."""
        border, part = self.border, self.part
        if border.costates_in is not None:
            assert part.shown is not None
            border.costates_in.expect(self.seen(self.h)[part.shown], self.number)
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

    def settle(self) -> None:
        """Have all that is under way, so that nothing of this learner is anywhere else."""
        self._take_states()
        self.border.settle()

    def reset(self) -> None:
        """Start afresh with the next sample, once the messages under way have come."""
        self.settle()
        super().reset()
        self.arrived = None

    def snapshot(self, *, ticks: int) -> Any:
        """What `restore` takes."""
        return super().snapshot(ticks=ticks), self.number, self.arrived

    def restore(self, snapshot: Any) -> None:
        """Return to an earlier moment."""
        states, self.number, self.arrived = snapshot
        super().restore(states)


Engine = PartAligned | PartUnaligned
