"""Aligned ticks of `LocalLearner` over a part of the graph: at its borders, messages stand for the neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hamlearn.distributed.messages import Item, Receiver, Sender
from hamlearn.distributed.parts import Part
from hamlearn.rules.local.aligned import Aligned, Tick
from hamlearn.rules.local.flights import FlightState, own_copy
from hamlearn.rules.local.rule import Done, Now, Proposal
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
    """

    states_in: Receiver | None = None
    costates_out: Sender | None = None
    states_out: Sender | None = None
    costates_in: Receiver | None = None
    template: Tensor | None = None

    def settle(self) -> None:
        """Wait until all that was sent has gone."""
        for sender in (self.costates_out, self.states_out):
            if sender is not None:
                sender.settle()


class PartAligned(Aligned):
    """Aligned ticks of one part. A message is needed in the tick after it was sent, and travels in between.

    Every rank keeps a list of all samples in flight, from which it follows who sends what to whom at which tick.
    """

    def __init__(self, part: Part, border: Border) -> None:
        self.part = part
        self.border = border
        # Costates for the rank before, by the entry of their sample, which this tick computes.
        self._back: dict[int, Tensor] = {}
        super().__init__(part.system, part.plan)

    def spans(self) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]]]:
        """All ages, for the part's own nodes and the states that come in."""
        plan, last = self.schedule, self.schedule.horizon - 1
        cells = self.part.system.cells
        h = dict.fromkeys(self.part.system.wiring.inputs, (0, last))
        h |= {cell.name: (plan.shown(cell.name), max(plan.shown(cell.name), last)) for cell in cells}
        return h, {cell.name: (0, last) for cell in cells if cell.name in plan.backward}

    def fresh(self, carry: FlightState) -> bool:
        """Whether no sample is in flight."""
        return not self.in_flight(carry)

    def begin(self, carry: FlightState, u: Any) -> FlightState:
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

    def tick(self, carry: FlightState, sample: Sample | None, now: Now) -> Proposal[FlightState]:
        """As for a whole graph, after what the neighbours have sent for it; what leaves is checked too."""
        self._back = {}
        proposal = super().tick(self._take_states(carry), sample, now)
        proposal.z += self._back.values()
        return proposal

    def states_arrive(self, tick: Tick) -> None:
        """Ask for what the neighbours compute in this tick."""
        border, part = self.border, self.part
        if border.states_in is not None:
            age = self.schedule.shown(part.border or "")
            entry = tick.at(age)
            if entry is not None:
                border.states_in.expect([Item(tick.number, tick.number - age, entry.sample.u)], tick.number)
        if border.costates_in is not None:
            due = [
                Item(tick.number, tick.number - age, tick.h.get(part.shown or "", age))
                for age in part.takes
                if tick.at(age) is not None
            ]
            border.costates_in.expect(due, tick.number)

    def states_leave(self, tick: Tick) -> None:
        """Send the state for the rank behind."""
        name, out = self.part.shown, self.border.states_out
        if out is None or name is None:
            return
        age = self.schedule.shown(name)
        if tick.at(age) is not None:
            state = tick.h.get(name, age)
            out.send([Item(tick.number, tick.number - age, state, state)])

    def costates_arrive(self, tick: Tick) -> None:
        """Take the costates of the last message."""
        for age, z in self._arrived(tick.number):
            if tick.at(age) is not None:
                tick.send(age, self.part.shown or "", z)

    def pass_back(self, tick: Tick, age: int, parent: str, message: Tensor) -> None:
        """Hand a costate to another group, here or on the rank before."""
        if parent == self.part.border:
            entry = tick.number - age
            before = self._back.get(entry)
            self._back[entry] = message if before is None else before + message
        else:
            tick.send(age, parent, message)

    def costates_leave(self, tick: Tick) -> None:
        """Send the costates for the rank before, of all ages at which this part computes some."""
        out = self.border.costates_out
        if out is None:
            return
        sent = [(tick.number - age, entry) for age in self.part.gives if (entry := tick.at(age)) is not None]
        out.send([Item(tick.number, number, entry.sample.u, self._back.get(number)) for number, entry in sent])

    def _done(self, tick: Tick) -> Done | None:
        if self.part.shown is None:
            return super()._done(tick)
        # The output is complete on the last rank in this very tick: every rank yields a report then.
        entry = tick.at(self.part.complete)
        if entry is None or not entry.reported:
            return None
        return Done(entry.given or entry.sample, entry.t, None, None)

    def _take_states(self, carry: FlightState) -> FlightState:
        """The carry, with the states of the last message."""
        states, border = self.border.states_in, self.part.border
        for item in () if states is None else states.take(carry.number):
            age = carry.number - 1 - item.entry
            if item.value is not None and age in self.in_flight(carry) and border is not None:
                carry.h.put(border, age, item.value)
        return carry

    def _take_costates(self, carry: FlightState) -> FlightState:
        """The carry, with the costates of the last message."""
        shown = self.part.shown or ""
        for age, z in self._arrived(carry.number):
            if age - 1 in self.in_flight(carry):
                before = carry.z.get(shown, age - 1)
                carry.z.put(shown, age - 1, z if before is None else before + z)
        return carry

    def _arrived(self, number: int) -> Iterator[tuple[int, Tensor]]:
        """Costates that were sent before tick `number`, by the age of their sample."""
        costates = self.border.costates_in
        for item in () if costates is None else costates.take(number):
            if item.value is not None:
                yield number - item.entry, item.value

    def settle(self, carry: FlightState) -> FlightState:
        """The carry once all messages have come, so that nothing of this learner is elsewhere."""
        carry = self._take_costates(self._take_states(carry))
        self.border.settle()
        return carry

    def dropped(self, carry: FlightState) -> FlightState:
        """Drop all samples in flight, once their messages have come."""
        return super().dropped(self.settle(carry))
