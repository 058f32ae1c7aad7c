"""All that an order holds from tick to tick, as tensors whose shapes stay: taken, lent to a recording, given.

A sample in flight through an aligned graph keeps states and costates under its own name. In a loop every tick must
find the same tensors: what one node has of all samples in flight becomes a register, by age, which moves on by one
place per tick. That is the same in every tick once the pipeline is full; before that, ticks are taken eagerly.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hamlearn._base.replay import generators
from hamlearn.orders.local.aligned import Aligned
from hamlearn.orders.local.delay_free import DelayFree
from hamlearn.orders.local.flights import Flight, Line, Pipe
from hamlearn.orders.local.nodes import Cell
from hamlearn.orders.local.stacked import LayerStack
from hamlearn.orders.local.unaligned import Unaligned
from hamlearn.rates import Rates
from hamlearn.sample import Sample
from hamlearn.streams.blocks import Block

Held = tuple[list[Tensor], list[Tensor]]
"""States, and costates."""


class Compared(NamedTuple):
    """Targets of one tick: of the sample whose output is compared with it, and of the one that enters.

    The latter is tried on a blank output, as the order does, where it may be refused for its value: such a sample
    must not be in flight. Where there is none to be compared with, `due` is the empty tuple.
    """

    due: Any
    entering: Any


class Shown:
    """What unaligned nodes hold: one state and one costate each."""

    due = 0
    """Ticks from a sample's entry to its loss."""

    def __init__(self, order: Unaligned) -> None:
        self.order = order

    def taken(self, order: Any) -> Held:
        """What the order holds now."""
        return list(order.h), list(order.z)

    def lent(self, held: Held, rates: Rates, target: Any) -> Any:
        """An order that is to be recorded, which holds this."""
        order = copy.copy(self.order)
        self.give(order, held)
        return order

    def give(self, order: Any, held: Held) -> None:
        """Let the order hold this."""
        order.h, order.z = held

    def start(self, u: Any, held: Held) -> list[Tensor]:
        """First states, where a sequence begins."""
        cells, wiring = self.order.system.cells, self.order.system.wiring
        zeros = {n: torch.zeros_like(x) for c, h in zip(cells, held[0], strict=True) for n, x in _nodes(c, h)}
        given = {n: (x if isinstance(x, Tensor) else x(u)).detach() for n, x in wiring.h0.items()}
        return [cell.start(zeros | given) for cell in cells]


class Passed(Shown):
    """What a net without delays holds: the derivative of a sample's loss waits for the step after its pass."""

    def lent(self, held: Held, rates: Rates, target: Any) -> Any:
        """An order that is to be recorded, at the beginning of a pass."""
        order = super().lent(held, rates, target)
        order.kappa = 0
        return order

    def taken(self, order: Any) -> Held:
        """What the order holds now; zeros stand for a derivative where there is none."""
        shown = order.seen(order.h)
        waits = [order.pending.get(name, torch.zeros_like(shown[name])) for name in order.system.wiring.outputs]
        return list(order.h), [*order.z, *waits]

    def give(self, order: Any, held: Held) -> None:
        """Let the order hold this."""
        h, z = held
        order.h, order.z = h, z[: len(h)]
        order.pending = dict(zip(order.system.wiring.outputs, z[len(h) :], strict=True))


class Registers:
    """What an aligned graph holds, once samples are in flight at every age.

    Args:
        order: The order.

    Attributes:
        due: Ticks from a sample's entry to its loss.
        states: By node or input, the ages of the samples whose states are held at the beginning of a tick.
        costates: Likewise for costates that have arrived, and wait.
    """

    def __init__(self, order: Aligned) -> None:
        self.order, self.plan = order, order.schedule
        plan, system = order.schedule, order.system
        wiring = system.wiring
        self.due = plan.shown(wiring.outputs[0]) + plan.lag
        self.stacks = [cell for cell in system.cells if isinstance(cell, LayerStack)]
        first = dict.fromkeys(wiring.inputs, 1) | {c.name: plan.shown(c.name) + 1 for c in system.cells}
        # A node's present state is shown, whether or not anybody will read it again.
        last = dict.fromkeys(wiring.inputs, 0) | {cell.name: first[cell.name] for cell in system.cells}
        arrives = dict.fromkeys(wiring.outputs, self.due + 1)
        last[wiring.outputs[0]] = max(last[wiring.outputs[0]], self.due)
        for cell in system.cells:
            learns = plan.backward.get(cell.name, 0) if isinstance(cell, Cell) else 0
            for source in cell.sources:
                last[source] = max(last[source], plan.forward[cell.name], learns)
            for parent in cell.parents if cell.name in plan.backward else ():
                arrives[parent] = min(arrives.get(parent, plan.horizon), plan.first(cell.name) + 1)
        self.states = {n: range(first[n], min(last[n], plan.horizon - 1) + 1) for n in first}
        self.costates = {n: range(age, plan.backward[n] + 1) for n, age in arrives.items() if n in plan.backward}
        self.states = {n: ages for n, ages in self.states.items() if ages}
        self.costates = {n: ages for n, ages in self.costates.items() if ages}

    def full(self, order: Any, u: Any) -> bool:
        """Whether samples like `u` are in flight at every age, each with all that it has to have."""
        number, flights = order.number, order.flights
        if any(number - age not in flights for age in range(1, self.plan.horizon)):
            return False
        entering = order.system.wiring.values(u)
        for name, ages in self.states.items():
            held = [flights[number - age].h.get(name) for age in ages]
            held += [entering[name]] if name in entering else []
            forms = {(x.shape, x.dtype) if isinstance(x, Tensor) else None for x in held}
            if len(forms) > 1 or None in forms:
                return False
        return True

    def check_target(self, order: Any, block: Block) -> None:
        """Raise where targets of this form cannot enter, as the order would."""
        some = next((k for k in range(block.count) if block.has_target(k)), None)
        if some is not None:
            order.check_target(block.sample(some))

    def taken(self, order: Any) -> Held:
        """What the order holds before its next tick; zeros stand for costates of samples that had no target."""
        number, flights = order.number, order.flights
        h = [torch.stack([flights[number - a].h[name] for a in ages]) for name, ages in self.states.items()]
        z = []
        for name, ages in self.costates.items():
            some = flights[number - 1 - self.plan.shown(name)].h[name]
            found = [flights[number - age].z.get(name) for age in ages]
            z.append(torch.stack([torch.zeros_like(some) if x is None else x for x in found]))
        for stack in self.stacks:
            pipe = order.pipes[stack.name]
            h += [pipe.h, pipe.line.slots, pipe.line.place(number)]
            z.append(pipe.z)
        return h, z

    def lent(self, held: Held, rates: Rates, target: Any) -> Any:
        """An order that is to be recorded, which holds this."""
        order = copy.copy(self.order)
        order.number = self.plan.horizon
        order.flights = {
            order.number - age: Flight(
                Sample(None, target if age == self.due else None), 0.0, rates.stride, age == self.due, {}
            )
            for age in range(1, self.plan.horizon)
        }
        self._fill(order, held)
        h, z = (part[len(ages) :] for part, ages in zip(held, (self.states, self.costates), strict=True))
        order.pipes = {}
        for place, stack in enumerate(self.stacks):
            shown, slots, now = h[3 * place : 3 * place + 3]
            line: Any = LentLine(slots, now, self._delays(stack))
            order.pipes[stack.name] = Pipe(shown, z[place], line)
        return order

    def give(self, order: Any, held: Held, number: int, flights: dict[int, Flight]) -> None:
        """Let the order hold this at tick `number`, with these samples in flight.

        What a sample has left at a node and nobody will ask for again is not known any more, and given as zeros.
        """
        trial, cells = order._trial, order.system.cells
        order.number, order.flights = number, flights
        for entry, flight in flights.items():
            passed = [cell for cell in cells if self.plan.shown(cell.name) < number - entry]
            flight.h = order.system.wiring.values(flight.sample.u)
            flight.h |= {cell.name: torch.zeros_like(trial[cell.name]) for cell in passed}
            # Nothing has been drawn: any state of the generators is the one that was there.
            drew = [cell for cell in passed if isinstance(cell, Cell) and cell.may_draw()]
            flight.draws = {cell.name: generators(cell.devices) for cell in drew}
        self._fill(order, held)
        for flight in flights.values():
            got = self._getting(flight.sample.target is not None)
            flight.z = {name: x for name, x in flight.z.items() if name in got}
        h, z = (part[len(ages) :] for part, ages in zip(held, (self.states, self.costates), strict=True))
        for place, stack in enumerate(self.stacks):
            shown, slots, _ = h[3 * place : 3 * place + 3]
            line = Line(stack, shown, self._delays(stack))
            line.slots = slots
            order.pipes = order.pipes | {stack.name: Pipe(shown, z[place], line)}

    def _fill(self, order: Any, held: Held) -> None:
        for part, (registers, ages_of) in enumerate(zip(held, (self.states, self.costates), strict=True)):
            for register, (name, ages) in zip(registers, ages_of.items(), strict=False):
                for x, age in zip(register.unbind(), ages, strict=True):
                    flight = order.flights[order.number - age]
                    (flight.z if part else flight.h)[name] = x

    def _getting(self, target: bool) -> set[str]:
        """The nodes that get a costate of a sample, with a target or without: a stack passes on what it has."""
        got = set(self.order.system.wiring.outputs) if target else set()
        for cell in reversed(self.order.system.cells):
            if cell.name in got or isinstance(cell, LayerStack):
                got |= set(cell.parents)
        return got

    def _delays(self, stack: LayerStack) -> list[int]:
        known = stack.name in self.plan.backward
        return self.plan.delays(stack.name) if known else [0] * stack.length


class LentLine:
    """Past inputs of the layers of a stack, as `Line` keeps them, where the tick's place among them is a tensor.

    Args:
        slots: Inputs of the ticks before, one after the other in a ring.
        now: The place of this tick, a whole number in a type that may count among the states.
        delays: Ticks after which each layer reads back its own.

    Example:
        >>> line = LentLine(torch.zeros(3, 2, 1), torch.tensor(0.0), [2, 0])
        >>> for tick in range(3):
        ...     line.write(tick, torch.tensor([[1.0], [2.0]]) + 2 * tick)
        ...     found, line = line.read(tick), LentLine(line.slots, line.place(tick), line.delays)
        >>> found
        tensor([[1.],
                [6.]])
    """

    def __init__(self, slots: Tensor, now: Tensor, delays: Sequence[int]) -> None:
        self.slots, self.now, self.delays, self.size = slots, now, delays, len(slots)

    def place(self, tick: int) -> Tensor:
        """The place of the tick after this one."""
        return torch.where(self.now + 1 == self.size, 0.0, self.now + 1)

    def write(self, tick: int, x: Tensor) -> None:
        """Keep the inputs of this tick."""
        self.slots = self.slots.index_put((self.now.long().view(1),), x.unsqueeze(0))

    def read(self, tick: int) -> Tensor:
        """For each layer the input whose costate is due at this tick."""
        layer = torch.arange(len(self.delays), device=self.slots.device)
        # A layer learns two ticks before the one that it reads.
        place = torch.remainder(self.now.long() + self.size - self.delays[0] + 2 * layer, self.size)
        return self.slots[place, layer]


def _nodes(cell: Cell | LayerStack, h: Tensor) -> list[tuple[str, Tensor]]:
    return list(zip(cell.names, cell.split(h), strict=True))


def own_copy(held: Any) -> Any:
    """What `snapshot` of an order told, in memory of its own; samples are the same."""
    if isinstance(held, Tensor):
        return held.clone()
    if isinstance(held, Flight):
        return replace(held, h=own_copy(held.h), z=own_copy(held.z), loss=own_copy(held.loss))
    if isinstance(held, Pipe):
        return Pipe(held.h.clone(), held.z.clone(), held.line.copy())
    if isinstance(held, dict):
        return {name: own_copy(x) for name, x in held.items()}
    return type(held)(map(own_copy, held)) if type(held) in (list, tuple) else held


def held_by(order: Unaligned | Aligned | DelayFree) -> Shown | Registers:
    """How what an order holds is carried through a loop."""
    if isinstance(order, Aligned):
        return Registers(order)
    return Passed(order) if isinstance(order, DelayFree) else Shown(order)
