"""Aligned ticks of one part with one message for several ticks: what leaves a group is longer on its way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from hamlearn._base.torch_private import foreach_mul
from hamlearn.distributed.bundles import Item
from hamlearn.distributed.engines import Border, Engine, PartAligned, PartUnaligned
from hamlearn.distributed.parts import Part
from hamlearn.rules.local.aligned import Tick
from hamlearn.rules.local.flights import Pipeline
from hamlearn.rules.local.rule import Now, Proposal
from hamlearn.sample import Sample

Way = dict[tuple[int, int, str], Tensor]
"""Costates by the tick with which they arrive, the entry of their sample, and the node that they arrive at."""


@dataclass(slots=True)
class Block:
    """What was computed since the last message, and what is to come from the neighbours for the same ticks."""

    ticks: int = 0
    states: list[Item] = field(default_factory=list)
    costates: list[Item] = field(default_factory=list)
    states_due: list[Item] = field(default_factory=list)
    costates_due: list[Item] = field(default_factory=list)


class PartBlocked(PartAligned):
    """K ticks pass between a group's computing of a state or costate and the next group's use of it.

    So what a rank computes in K ticks can go in one message after the last of them: its neighbours need the first
    of it in the tick that follows. A costate loses τη_z of itself in each tick that it is on its way, as it would
    at K − 1 nodes between the groups that hand it on unchanged. Between groups of one rank the delay is the same,
    so that results do not depend on how groups are shared out.

    Attributes:
        way: Costates that are on their way to nodes of this part.
        block: What has been computed since the last message.
    """

    def __init__(self, part: Part, border: Border) -> None:
        super().__init__(part, border)
        self.way: Way = {}
        self.block = Block()
        self._inside: Way = {}
        self._back: dict[int, Tensor] = {}

    def tick(self, carry: Pipeline, sample: Sample | None, now: Now) -> Proposal[Pipeline]:
        """As for all groups without delays; what sets out in this tick is looked at before it is accepted."""
        proposal = super().tick(carry, sample, now)
        proposal.z += [*self._inside.values(), *self._back.values()]
        return proposal

    def states_arrive(self, tick: Tick) -> None:
        """Know what the neighbours compute in this tick."""
        border, part, block = self.border, self.part, self.block
        self._inside, self._back = {}, {}
        block.ticks += 1
        if border.states_in is not None:
            assert part.border is not None
            age = self.schedule.shown(part.border)
            entry = tick.at(age)
            if entry is not None:
                block.states_due.append(Item(tick.number, tick.number - age, entry.sample.u))
        if border.costates_in is not None:
            assert part.shown is not None
            for age in part.takes:
                if tick.at(age) is not None:
                    form = tick.h.get(part.shown, age)
                    block.costates_due.append(Item(tick.number, tick.number - age, form))
        if block.ticks == part.every:
            if border.states_in is not None:
                border.states_in.expect_all(block.states_due, tick.number)
            if border.costates_in is not None:
                border.costates_in.expect_all(block.costates_due, tick.number)

    def states_leave(self, tick: Tick) -> None:
        """Keep the state for the rank behind; with the last tick of a block send all of them."""
        shown, out, block = self.part.shown, self.border.states_out, self.block
        if out is None:
            return
        assert shown is not None
        age = self.schedule.shown(shown)
        if tick.at(age) is not None:
            state = tick.h.get(shown, age)
            block.states.append(Item(tick.number, tick.number - age, state, state))
        if block.ticks == self.part.every:
            out.send_all(block.states)

    def costates_arrive(self, tick: Tick) -> None:
        """Take the costates of the last message."""
        for age, z in self._arrived(tick.number):
            if tick.at(age) is not None:
                tick.send(age, self.part.shown or "", z)

    def pass_back(self, tick: Tick, age: int, parent: str, message: Tensor) -> None:
        """Let a costate set out on its way to another group, here or on the rank before."""
        entry = tick.number - age
        if parent == self.part.border:
            before = self._back.get(entry)
            self._back[entry] = message if before is None else before + message
        else:
            _add(self._inside, (tick.number + self.part.every - 1, entry, parent), message)

    def costates_leave(self, tick: Tick) -> None:
        """Move all costates on by one tick; with the last tick of a block send those for the rank before."""
        part, out, block = self.part, self.border.costates_out, self.block
        keep = 1 - tick.rates.stride * tick.rates.eta_z
        moved: Way = {}
        for (arrives, entry, name), z in zip(self.way, faded(list(self.way.values()), keep), strict=True):
            if arrives > tick.number:
                moved[arrives, entry, name] = z
            elif tick.at(tick.number - entry) is not None:
                tick.send(tick.number - entry, name, z)
        self.way = moved | self._inside
        if out is not None:
            told = [item for item in block.costates if item.value is not None]
            for item, z in zip(told, faded([item.value for item in told], keep), strict=True):  # type: ignore[misc]
                item.value = z
            for age in part.gives:
                sent = tick.at(age)
                if sent is not None:
                    item = Item(tick.number, tick.number - age, sent.sample.u, self._back.get(tick.number - age))
                    block.costates.append(item)
        if block.ticks == part.every:
            if out is not None:
                out.send_all(block.costates)
            self.block = Block()

    def take_states(self, carry: Pipeline) -> Pipeline:
        """What is carried, with the states of the last message."""
        states, border = self.border.states_in, self.part.border
        for item in () if states is None else states.take_all(carry.number):
            age = carry.number - 1 - item.entry
            if item.value is not None and age in self.in_flight(carry) and border is not None:
                carry.h.put(border, age, item.value)
        return carry

    def take_costates(self, carry: Pipeline) -> Pipeline:
        """What is carried, with the costates of the last message."""
        shown = self.part.shown or ""
        for age, z in self._arrived(carry.number):
            if age - 1 in self.in_flight(carry):
                before = carry.z.get(shown, age - 1)
                carry.z.put(shown, age - 1, z if before is None else before + z)
        return carry

    def _arrived(self, number: int) -> Iterator[tuple[int, Tensor]]:
        """Costates that have arrived before tick `number`, by the age of their sample; others set out."""
        costates, shown = self.border.costates_in, self.part.shown
        for item in () if costates is None else costates.take_all(number):
            arrives = item.tick + self.part.every - 1
            if item.value is None or shown is None:
                continue
            if arrives < number:
                # All of its way was within one block of the rank that sent it.
                yield number - item.entry, item.value
            else:
                _add(self.way, (arrives, item.entry, shown), item.value)

    def dropped(self, carry: Pipeline) -> Pipeline:
        """Drop all samples in flight, and what is on its way for them."""
        empty = super().dropped(carry)
        self.way, self.block = {}, Block()
        return empty

    def under_way(self) -> Way:
        """All costates that no node has yet and that no other rank holds, for a checkpoint."""
        back = {
            (item.tick + self.part.every - 1, item.entry, self.part.border or ""): item.value
            for item in self.block.costates
            if item.value is not None
        }
        return self.way | back


def _add(way: Way, key: tuple[int, int, str], z: Tensor) -> None:
    way[key] = way[key] + z if key in way else z


def faded(costates: list[Tensor], keep: float) -> list[Tensor]:
    """What is left of costates after one tick more on their way.

    Example:
        >>> import torch
        >>> faded([torch.ones(2)], 0.5)
        [tensor([0.5000, 0.5000])]
    """
    return costates if keep == 1.0 or not costates else list(foreach_mul(costates, keep))


def eager_of(part: Part, border: Border, *, align: bool) -> Engine:
    """The engine of a part."""
    if not align:
        return PartUnaligned(part, border)
    return PartAligned(part, border) if part.every == 1 else PartBlocked(part, border)
