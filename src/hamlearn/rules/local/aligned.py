"""Aligned learning: every node at work on another sample, each costate met by the input of its own sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.replay import generators
from hamlearn._base.scale import is_one
from hamlearn.errors import ConfigError, SampleError
from hamlearn.rates import Rates
from hamlearn.rules.local.costates import Increment, add_at
from hamlearn.rules.local.dense import Dense
from hamlearn.rules.local.flights import Entry, FlightState, Lines, StackState, own_copy, past, written
from hamlearn.rules.local.local_system import LocalSystem
from hamlearn.rules.local.nodes import Cell
from hamlearn.rules.local.rule import Done, LocalRule, Now, Proposal
from hamlearn.rules.local.schedule import Timetable, schedule
from hamlearn.sample import Sample
from hamlearn.state.carry import Carry
from hamlearn.state.packing import sample_tree


class Tick:
    """One tick while it is computed: what the samples in flight have left, and what this tick adds.

    Attributes:
        number: Number of the tick.
        entries: Samples by age; the one that enters now has age 0.
        h: External inputs and states.
        z: Costates.
        draws: States of the random number generators.
        stacks: What the stacks hold.
        grads: Increments of ω by slot.
    """

    def __init__(self, carry: FlightState, entry: Entry | None, rates: Rates, slots: int) -> None:
        self.number, self.rates = carry.number, rates
        self.entries: list[Entry | None] = [entry, *carry.entries[:-1]]
        self.h, self.z, self.draws = carry.h.older(), carry.z.older(), carry.draws.older()
        self.stacks = dict(carry.stacks)
        self.grads: list[Increment | None] = [None] * slots
        self.new_h: list[Tensor] = []
        self.new_z: dict[tuple[int, str], Tensor] = {}

    def at(self, age: int) -> Entry | None:
        """The sample that entered `age` ticks ago, if there was one."""
        return self.entries[age] if age < len(self.entries) else None

    def show(self, age: int, name: str, h: Tensor) -> None:
        """A state that node `name` has computed for the sample of this age."""
        self.h.put(name, age, h)

    def send(self, age: int, name: str, message: Tensor) -> None:
        """A costate for node `name` of the sample of this age."""
        before = self.z.get(name, age)
        total = message if before is None else before + message
        self.z.put(name, age, total)
        self.new_z[age, name] = total

    def carry(self) -> FlightState:
        """What the next tick finds."""
        return FlightState(self.number + 1, self.entries, self.h, self.z, self.draws, self.stacks)


class Aligned(LocalRule[FlightState]):
    """A pipeline over an acyclic graph that takes a new sample at every tick.

    The states and costates of samples in flight stand in shift registers at the nodes: delay lines, and registers
    on skip edges. A costate loses τη_z of itself with every edge that it passes.

    Args:
        system: The nodes and their weights.
        plan: When each node meets each sample; `None`: as the graph says.
    """

    aligned = True

    def __init__(self, system: LocalSystem, plan: Timetable | None = None) -> None:
        if system.hyper.s != -1:
            raise ConfigError("s=+1 lets costates grow forward in time: an aligned learner takes s=-1 only")
        if system.running_cost is not None:
            raise ConfigError(
                "running_cost reads the state of one moment, and aligned nodes are each at another sample: use "
                "align=False, or delay_free"
            )
        super().__init__(system)
        self.schedule: Timetable = plan or schedule(system)
        self.h_spans, self.z_spans = self.spans()
        self.stacks = system.stacks
        drawing = [cell.name for cell in system.cells if isinstance(cell, Cell) and cell.may_draw()]
        plan = self.schedule
        self.draw_spans = {n: (plan.shown(n), max(plan.shown(n), plan.backward.get(n, 0))) for n in drawing}
        self._key: str | None = None
        self.trial: dict[str, Tensor] = {}
        self._fits: str | None = None

    @property
    def due(self) -> int:
        """Ticks from a sample's entry to the last of its losses."""
        return max(map(self.schedule.shown, self.system.wiring.outputs), default=0) + self.schedule.lag

    def spans(self) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]]]:
        """The ages at which states, and costates, are got first and read last, by node or input."""
        plan, system = self.schedule, self.system
        first = dict.fromkeys(system.wiring.inputs, 0) | {c.name: plan.shown(c.name) for c in system.cells}
        last = first | dict.fromkeys(system.wiring.outputs, self.due)
        arrives = {name: plan.shown(name) + plan.lag for name in system.wiring.outputs}
        for cell in system.cells:
            # Plain layers keep past inputs in a ring of their own.
            learns = plan.backward.get(cell.name, 0) if isinstance(cell, Cell) else 0
            for source in cell.sources:
                last[source] = max(last[source], plan.forward[cell.name], learns)
            for parent in cell.parents if cell.name in plan.backward else ():
                arrives[parent] = min(arrives.get(parent, plan.horizon), plan.first(cell.name))
        for cell in system.cells:
            # A node's present state is shown, whether or not another node will read it.
            last[cell.name] = max(last[cell.name], first[cell.name] + 1)
        # Nodes that lead to no output may compute samples that have left already.
        h = {name: (age, max(age, min(last[name], plan.horizon - 1))) for name, age in first.items()}
        z = {name: (age, plan.backward[name]) for name, age in arrives.items() if name in plan.backward}
        return h, z

    def empty(self) -> FlightState:
        """A pipeline without samples."""
        entries: list[Entry | None] = [None] * self.schedule.horizon
        return FlightState(0, entries, Lines(self.h_spans), Lines(self.z_spans), Lines(self.draw_spans), {})

    def own(self, sample: Sample) -> Sample:
        """A copy: a sample stays in flight long after its own step."""
        return own_copy(sample)

    def dropped(self, carry: FlightState) -> FlightState:
        """A pipeline without samples, at the same tick."""
        return self.empty()._replace(number=carry.number)

    def unshared(self, carry: FlightState) -> FlightState:
        """The same, with rings of its own."""
        stacks = {name: stack._replace(ring=stack.ring.clone()) for name, stack in carry.stacks.items()}
        return carry._replace(stacks=stacks)

    def in_flight(self, carry: FlightState) -> list[int]:
        """Ages of the samples that have not left, as of the last tick."""
        return [age for age, entry in enumerate(carry.entries[:-1]) if entry is not None]

    def begin(self, carry: FlightState, u: Any) -> FlightState:
        """A trial pass for each new shape of input, so that what does not fit is known before it enters."""
        key, flying = trees.describe(u), self.in_flight(carry)
        if key != self._key:
            trial = self.system.wiring.start(u)
            for name, stack in carry.stacks.items() if flying else ():
                if trial[name].shape != stack.h.shape[1:]:
                    raise SampleError(
                        f"u={key} leads to {list(trial[name].shape)} in node {name!r}, where samples of "
                        f"{list(stack.h.shape[1:])} are in flight: flush() before the batch size changes, or pass "
                        "stacked=False"
                    )
            self._key, self.trial, self._fits = key, trial, None
        if flying:
            return carry
        return self.dropped(carry)._replace(stacks={s.name: self._blank(s) for s in self.stacks})

    def _blank(self, stack: Dense) -> StackState:
        """What a stack holds before the first sample."""
        h = stack.start(self.trial)
        ring = h.new_zeros(max(self.delays(stack)) + 1, *h.shape[:-1], stack.width)
        return StackState(h, torch.zeros_like(h[1:]), ring)

    def delays(self, stack: Dense) -> list[int]:
        """Ticks from computing to learning; a stack that leads to no output never learns, and needs no past."""
        return self.schedule.delays(stack.name) if stack.name in self.schedule.backward else [0] * stack.length

    def tick(self, carry: FlightState, sample: Sample | None, now: Now) -> Proposal[FlightState]:
        """One tick of all nodes, each with a sample of its own; `None` lets those in flight move on.

        A boundary means nothing: in a graph without cycles samples do not see each other.
        """
        entry = None
        if sample is not None:
            self.check_target(sample)
            entry = Entry(sample, now.t, now.rates.stride, now.last, now.given)
        tick = Tick(carry, entry, now.rates, len(self.system.theta))
        if sample is not None:
            for name, value in self.system.wiring.values(sample.u).items():
                tick.h.put(name, 0, value)
        self.states_arrive(tick)
        for cell in self.system.cells:
            self._forward(tick, cell)
        self.states_leave(tick)
        loss = self._losses(tick)
        self.costates_arrive(tick)
        for cell in self.system.cells:
            if cell.name in self.schedule.backward:
                self._backward(tick, cell)
        self.costates_leave(tick)
        h = tick.new_h + [stack.h for stack in tick.stacks.values()]
        z = [*tick.new_z.values(), *(stack.z for stack in tick.stacks.values())]
        return Proposal(tick.carry(), tick.grads, h, z, loss, loss is not None, self._done(tick))

    def states_arrive(self, tick: Tick) -> None:
        """A part of a graph: take the states that its neighbours computed in the tick before."""

    def states_leave(self, tick: Tick) -> None:
        """A part of a graph: hand on the states that this tick has computed."""

    def costates_arrive(self, tick: Tick) -> None:
        """A part of a graph: as `states_arrive`, for costates."""

    def costates_leave(self, tick: Tick) -> None:
        """A part of a graph: as `states_leave`, for costates."""

    def pass_back(self, tick: Tick, age: int, parent: str, message: Tensor) -> None:
        """Hand a costate to the node that is to learn from it; in a part of a graph it may be on another rank."""
        tick.send(age, parent, message)

    def check_target(self, sample: Sample) -> None:
        """Try the loss on a blank output: a target that does not fit must not enter and fail many ticks later."""
        targets = self.system.targets(sample.target)
        key = f"{self._key} {trees.describe(targets)}"
        if targets and key != self._fits:
            self.system.compare({name: self.trial[name] for name in targets}, targets)
            # Real numbers of a shape that fits always fit; classes may be out of range.
            real = all(isinstance(x, Tensor) and x.is_floating_point() for x in targets.values())
            self._fits = key if real else None

    def _forward(self, tick: Tick, cell: Cell | Dense) -> None:
        age = self.schedule.forward[cell.name]
        entry = tick.at(age)
        if isinstance(cell, Cell):
            if entry is None:
                return
            if cell.name in self.draw_spans:
                tick.draws.put(cell.name, age, generators(cell.devices))
            h = cell.forward([tick.h.get(source, age) for source in cell.sources])
            tick.new_h.append(h)
            tick.show(age, cell.name, h)
            return
        stack = tick.stacks[cell.name]
        incoming = (
            stack.ring.new_zeros(stack.ring.shape[2:]) if entry is None else tick.h.get(cell.sources[0], age)
        )
        x = cell.gather(stack.h, [incoming])
        h = cell.forward(x)
        tick.stacks[cell.name] = stack._replace(h=h, ring=written(stack.ring, tick.number, x[0]))
        shown = self.schedule.shown(cell.name)
        if tick.at(shown) is not None:
            tick.show(shown, cell.name, h[-1])

    def _losses(self, tick: Tick) -> Tensor | None:
        total = None
        for name in self.system.wiring.outputs:
            age = self.schedule.shown(name) + self.schedule.lag
            entry = tick.at(age)
            if entry is None:
                continue
            gain = entry.stride * tick.rates.phi
            L, dL = self.system.losses({name: tick.h.get(name, age)}, entry.sample.target, gain, tick.grads)
            if L is None:
                continue
            tick.send(age, name, gain * dL[name])
            tick.entries[age] = replace(entry, loss=L if entry.loss is None else entry.loss + L)
            total = L if total is None else total + L
        return total

    def _backward(self, tick: Tick, cell: Cell | Dense) -> None:
        age = self.schedule.backward[cell.name]
        z = tick.z.get(cell.name, age)
        keep = 1 - tick.rates.stride * tick.rates.eta_z
        increments: Sequence[Increment]
        if isinstance(cell, Cell):
            if tick.at(age) is None or z is None:
                return
            inputs = [tick.h.get(source, age) for source in cell.sources]
            draws = tick.draws.get(cell.name, age) if cell.name in self.draw_spans else None
            messages, increments = cell.again(inputs, draws, z)
        else:
            stack = tick.stacks[cell.name]
            arrived = torch.zeros_like(stack.h[-1]) if z is None else z
            trace = cell.trace([past(stack.ring, tick.number, self.delays(cell))])
            messages, increments = trace.both(cell.join(stack.z if cell.length > 1 else None, arrived))
            inside, messages = cell.scatter(messages)
            if inside is not None:
                tick.stacks[cell.name] = stack._replace(z=inside if is_one(keep) else keep * inside)
            age = self.schedule.first(cell.name)
        add_at(tick.grads, cell.slots, increments)
        if tick.at(age) is not None:
            for parent, message in zip(cell.parents, messages, strict=True):
                self.pass_back(tick, age, parent, message if is_one(keep) else keep * message)

    def _done(self, tick: Tick) -> Done | None:
        outputs, entry = self.system.wiring.outputs, tick.at(self.due)
        if not outputs or entry is None or not entry.reported:
            return None
        y = self.system.read({name: tick.h.get(name, self.due) for name in outputs})
        return Done(entry.given or entry.sample, entry.t, y, entry.loss)

    def by_node(self, carry: FlightState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """States and costates by node, of the samples that the nodes are at; nodes without one are missing."""
        h: dict[str, Tensor] = {}
        z: dict[str, Tensor] = {}
        plan = self.schedule
        for cell in self.system.cells:
            name, shown, learned = cell.name, None, None
            if name in carry.stacks:
                h |= dict(zip(cell.names, carry.stacks[name].h, strict=True))
                z |= dict(zip(cell.names[:-1], carry.stacks[name].z, strict=True))
            if plan.shown(name) < plan.horizon - 1:
                shown = carry.h.get(name, plan.shown(name))
            if name in self.z_spans:
                learned = carry.z.get(name, plan.backward[name] - 1)
            h |= {} if shown is None else {name: shown}
            z |= {} if learned is None else {name: learned}
        return h, z

    def full(self, carry: FlightState, u: Any) -> bool:
        """Whether samples of the form of `u` are in flight at every age."""
        form = trees.describe(u)
        return all(entry is not None and trees.describe(entry.sample.u) == form for entry in carry.entries[:-1])

    def flat(self, carry: FlightState, omega: list[Tensor]) -> Carry:
        """The registers, one tensor each, and what the stacks hold; behind their rings the number of the tick."""
        held, number = carry.stacks.values(), carry.number
        h = [*carry.h.stacked(self.trial), *(stack.h for stack in held)]
        z = [*carry.z.stacked(self.trial), *(stack.z for stack in held)]
        rings = [stack.ring for stack in held]
        if rings and not isinstance(number, Tensor):
            number = torch.tensor(float(number), dtype=torch.float64, device=rings[0].device)
        return Carry(h, z, omega, None, E=[*rings, number] if rings else [])

    def view_of(self, flat: Carry, stride: Any = None, target: Any = None) -> FlightState:
        """A full pipeline in which only the sample that is due has a target and is reported."""
        entries: list[Entry | None] = [
            Entry(Sample(None, target if age == self.due else None), 0.0, stride, age == self.due)
            for age in range(1, self.schedule.horizon + 1)
        ]
        return self.unflattened(flat, flat.E[-1] if flat.E else 0, entries)

    def unflattened(self, flat: Carry, number: Any, entries: list[Entry | None]) -> FlightState:
        """What `flat` took apart, after so many ticks and with these samples in flight."""
        h, z = Lines.of(self.h_spans, flat.h), Lines.of(self.z_spans, flat.z)
        first, other, stacks = len(flat.h) - len(self.stacks), len(flat.z) - len(self.stacks), {}
        for index, cell in enumerate(self.stacks):
            stacks[cell.name] = StackState(flat.h[first + index], flat.z[other + index], flat.E[index])
        return FlightState(number, entries, h, z, Lines(self.draw_spans), stacks)

    def saved(self, carry: FlightState) -> Any:
        """All registers and stacks, and the samples in flight."""
        entries = [
            entry and [sample_tree(entry.sample), entry.t, entry.stride, entry.reported, entry.loss]
            for entry in carry.entries
        ]
        held, stacks = (carry.h.held, carry.z.held, carry.draws.held), self.unshared(carry).stacks
        for stack in stacks.values():
            # The next tick writes there before it reads; a tick that was not taken has left something behind.
            stack.ring[carry.number % len(stack.ring)] = 0
        return [carry.number, entries, *held, stacks]

    def loaded(self, tree: Any) -> FlightState:
        """What `saved` returned."""
        number, listed, h, z, draws, stacks = tree
        entries = [one and Entry(Sample(**one[0]), one[1], one[2], one[3], None, one[4]) for one in listed]
        for line in draws.values():
            # States of random number generators stay on the CPU, wherever the weights are.
            line[:] = [states and [state.cpu() for state in states] for states in line]
        u = next((entry.sample.u for entry in entries if entry is not None), None)
        if u is not None:
            self._key, self.trial = trees.describe(u), self.system.wiring.start(u)
        held = Lines(self.h_spans, h), Lines(self.z_spans, z), Lines(self.draw_spans, draws)
        return FlightState(number, entries, *held, stacks)
