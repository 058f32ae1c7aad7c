"""States, costates and samples in flight, from what a rule carries to the fused ticks and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hamlearn.engine.fused.pace import Taken
from hamlearn.engine.fused.tick import Held, Ticks
from hamlearn.engine.ticks.ticker import Ticker
from hamlearn.rules.local.aligned import Aligned
from hamlearn.rules.local.costates import dense
from hamlearn.rules.local.flights import Entry, Pipeline, StackState
from hamlearn.rules.local.stacked import LayerStack
from hamlearn.rules.local.unaligned import Nodes
from hamlearn.sample import Sample


def take_omega(ticks: Ticks, ticker: Ticker) -> None:
    """Copy ω of all slots."""
    for held in ticks.held:
        for slot, omega in zip(held.group.slots, held.omega, strict=True):
            omega.copy_(dense(ticker.omega[slot]).view(omega.shape))


def give_omega(ticks: Ticks, ticker: Ticker) -> None:
    """Copies of ω for the eager ticks, in their shapes."""
    found = list(ticker.omega)
    for held in ticks.held:
        for slot, omega in zip(held.group.slots, held.omega, strict=True):
            found[slot] = omega.clone().view(ticker.system.theta[slot].shape)
    ticker.omega = found


def take_unaligned(ticks: Ticks, carry: Nodes) -> bool:
    """Copy h and z; returns whether a sequence begins, so that there is nothing to copy."""
    for held in ticks.held if not carry.h else ():
        held.h.zero_()
        held.z.zero_()
    for held, h, z in zip(ticks.held, carry.h, carry.z, strict=bool(carry.h)):
        held.h[0], held.z[0] = h.reshape(held.h.shape[1:]), z.reshape(held.z.shape[1:])
    return not carry.h


def give_unaligned(ticks: Ticks, fresh: bool) -> Nodes:
    """Copies of h and z."""
    if fresh:
        return Nodes([], [])
    h = [_shaped(ticks, held, held.h[0]) for held in ticks.held]
    return Nodes(h, [_shaped(ticks, held, held.z[0]) for held in ticks.held])


def fits_unaligned(ticks: Ticks, carry: Nodes) -> bool:
    """Whether what is carried has the shape of these ticks' batches."""
    pairs = zip(ticks.held, carry.h, strict=False)
    return all(_shaped(ticks, held, held.h[0]).shape == h.shape for held, h in pairs)


def take_aligned(ticks: Ticks, rule: Aligned, carry: Pipeline) -> dict[int, Taken]:
    """Copy stacks, and what samples in flight have left at the nodes; returns those samples by their tick."""
    number, schedule = carry.number, rule.schedule
    flying = rule.in_flight(carry)
    ticks.clock.fill_(number)
    for held in ticks.held:
        name, line = held.group.cell.name, held.line
        assert line is not None
        for zeroed in (held.h, held.z, line):
            zeroed.zero_()
        stack = carry.stacks.get(name) if flying else None
        if stack is not None:
            held.h[0] = stack.h.reshape(held.h.shape[1:])
            held.z[0, :-1] = stack.z.reshape(held.z[0, :-1].shape)
            line.copy_(stack.ring.slots.reshape(line.shape))
        else:
            shown, source = carry.h.get(name, schedule.shown(name)), held.group.cell.sources[0]
            if shown is not None:
                held.h[0, 0] = shown.reshape(held.h.shape[2:])
            for age in range(len(line)):
                # Its input, `age` ticks ago, is what its source had for the sample that it saw then.
                x = carry.h.get(source, schedule.forward[name] + age)
                if x is not None:
                    line[(number - 1 - age) % len(line), 0] = x.reshape(line.shape[2:])
        due = carry.z.get(name, schedule.backward[name] - 1)
        if due is not None:
            held.z[0, -1] = due.reshape(held.h.shape[2:])
    entries = ((age, carry.entries[age]) for age in flying)
    return {number - 1 - age: Taken.of(entry) for age, entry in entries if entry is not None}


def give_aligned(ticks: Ticks, rule: Aligned, number: int, taken: dict[int, Taken]) -> Pipeline:
    """What the rule carries, of these samples in flight by their tick."""
    entries = [_entry(taken.get(number - 1 - age)) for age in range(rule.schedule.horizon)]
    carry = rule.empty()._replace(number=number, entries=entries)
    for age in rule.in_flight(carry):
        for name, value in rule.system.wiring.values(entries[age].sample.u).items():  # type: ignore[union-attr]
            carry.h.put(name, age, value)
    for held in ticks.held if taken else ():
        cell, line = held.group.cell, held.line
        assert line is not None
        if isinstance(cell, LayerStack):
            blank = rule.blank(cell, _shaped(ticks, held, held.h[0]), number)
            blank.ring.slots.copy_(line.view(blank.ring.slots.shape))
            z = _shaped(ticks, held, held.z[0])[:-1].clone()
            carry.stacks[cell.name] = StackState(blank.h, z, blank.ring)
    for held in ticks.held:
        _give_lines(ticks, rule, held, carry)
    return carry


def _give_lines(ticks: Ticks, rule: Aligned, held: Held, carry: Pipeline) -> None:
    """States and costates of one group for the samples that have passed it."""
    name = held.group.cell.name
    shown, backward = rule.schedule.shown(name), rule.schedule.backward[name]
    for age in rule.in_flight(carry):
        entry = carry.entries[age]
        assert entry is not None
        if age >= shown:
            carry.h.put(name, age, _shown(ticks, held, age - shown, carry.number))
        gets = name in rule.gets_costates(entry.sample.target is not None)
        if age == backward - 1 and gets:
            carry.z.put(name, age, held.z[0, -1].clone().view(*ticks.lead, -1))


def _shown(ticks: Ticks, held: Held, age: int, number: int) -> Tensor:
    """What a group showed `age` ticks ago: its state, or what the group behind it keeps of it."""
    found = torch.zeros_like(held.h[0, -1])
    if age == 0:
        found.copy_(held.h[0, -1])
    elif held.behind is not None:
        line = held.behind.line
        assert line is not None
        if age <= line.shape[0]:
            found.copy_(line[(number - age) % line.shape[0], 0])
    return found.view(*ticks.lead, -1)


def _entry(taken: Taken | None) -> Entry | None:
    if taken is None:
        return None
    target = None if taken.target is None else taken.target.clone()
    sample = Sample(taken.u.clone(), target, taken.tau, taken.boundary)
    return Entry(sample, taken.t, taken.stride, taken.reported, taken.given())


def _shaped(ticks: Ticks, held: Held, x: Tensor) -> Tensor:
    """A copy in the shape that the eager cell has."""
    layers, _, rows = x.shape
    shape = (*ticks.lead, rows)
    whole: Any = x.clone()
    return whole.view((layers, *shape) if isinstance(held.group.cell, LayerStack) else shape)
