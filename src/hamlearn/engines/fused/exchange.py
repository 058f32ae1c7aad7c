"""States, costates and samples in flight, from the eager engines to the fused ticks and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hamlearn.engines.fused.pace import Entry
from hamlearn.engines.fused.tick import Held, Ticks
from hamlearn.engines.ticks.ticker import Ticker
from hamlearn.orders.local.aligned import Aligned
from hamlearn.orders.local.flights import Flight
from hamlearn.orders.local.outer import dense
from hamlearn.orders.local.stacked import LayerStack
from hamlearn.orders.local.unaligned import Unaligned
from hamlearn.sample import Sample


def take_omega(ticks: Ticks, ticker: Ticker) -> None:
    """Copy ω of all slots."""
    for held in ticks.held:
        for slot, omega in zip(held.group.slots, held.omega, strict=True):
            omega.copy_(dense(ticker.omega[slot]).view(omega.shape))


def give_omega(ticks: Ticks, ticker: Ticker) -> None:
    """Copies of ω for the eager engine, in its shapes."""
    found = list(ticker.omega)
    for held in ticks.held:
        for slot, omega in zip(held.group.slots, held.omega, strict=True):
            found[slot] = omega.clone().view(ticker.system.theta[slot].shape)
    ticker.omega = found


def take_unaligned(ticks: Ticks, engine: Unaligned) -> bool:
    """Copy h and z; answers whether a sequence begins, and nothing is there to be copied."""
    for held in ticks.held if not engine.h else ():
        held.h.zero_()
        held.z.zero_()
    for held, h, z in zip(ticks.held, engine.h, engine.z, strict=bool(engine.h)):
        held.h[0], held.z[0] = h.reshape(held.h.shape[1:]), z.reshape(held.z.shape[1:])
    return not engine.h


def give_unaligned(ticks: Ticks, engine: Unaligned, fresh: bool) -> None:
    """Copies of h and z."""
    engine.h = [] if fresh else [_shaped(ticks, held, held.h[0]) for held in ticks.held]
    engine.z = [] if fresh else [_shaped(ticks, held, held.z[0]) for held in ticks.held]


def fits_unaligned(ticks: Ticks, engine: Unaligned) -> bool:
    """Whether what the engine holds has the shape of these ticks' batches."""
    return all(
        _shaped(ticks, held, held.h[0]).shape == h.shape for held, h in zip(ticks.held, engine.h, strict=False)
    )


def take_aligned(ticks: Ticks, engine: Aligned) -> dict[int, Entry]:
    """Copy pipes, and what samples in flight have left at the nodes; answers with those samples."""
    number, schedule, flights = engine.number, engine.schedule, engine.flights
    ticks.clock.fill_(number)
    for held in ticks.held:
        name, line = held.group.cell.name, held.line
        assert line is not None
        for zeroed in (held.h, held.z, line):
            zeroed.zero_()
        pipe = engine.pipes.get(name) if flights else None
        if pipe is not None:
            held.h[0] = pipe.h.reshape(held.h.shape[1:])
            held.z[0, :-1] = _rows(pipe.z, held)
            line.copy_(pipe.line.slots.reshape(line.shape))
        else:
            shown = flights.get(number - 1 - schedule.shown(name))
            if shown is not None:
                held.h[0, 0] = _flat(shown.h[name], held)
            source = held.group.cell.sources[0]
            for entry, flight in flights.items():
                age = number - entry - schedule.forward[name]
                if 1 <= age < line.shape[0] + 1 and source in flight.h:
                    line[(number - age) % line.shape[0], 0] = flight.h[source].reshape(line.shape[2:])
        due = flights.get(number - schedule.backward[name])
        if due is not None and name in due.z:
            held.z[0, -1] = _flat(due.z[name], held)
    return {entry: _entry(flight) for entry, flight in flights.items()}


def give_aligned(ticks: Ticks, engine: Aligned, number: int, entries: dict[int, Entry]) -> None:
    """Pipes and samples in flight as the eager engine keeps them.

    What a sample has left at a node and nobody will ask for again is not known any more, and given as zeros.
    """
    schedule = engine.schedule
    engine.number, engine.flights, engine.pipes = number, {}, {}
    for held in ticks.held:
        cell, line = held.group.cell, held.line
        assert line is not None
        if isinstance(cell, LayerStack) and entries:
            h = _shaped(ticks, held, held.h[0])
            engine._lay(cell, h)
            pipe = engine.pipes[cell.name]
            pipe.z = _shaped(ticks, held, held.z[0])[:-1].clone()
            pipe.line.slots = line.clone().view(pipe.line.slots.shape)
    for place, entry in entries.items():
        sample = Sample(entry.u.clone(), _cloned(entry.target), entry.tau, entry.boundary)
        values = engine.system.wiring.values(sample.u)
        flight = Flight(sample, entry.t, entry.stride, entry.reported, values, given=entry.given())
        sent = entry.target is not None
        for held in reversed(ticks.held):
            name = held.group.cell.name
            age = number - 1 - place - schedule.shown(name)
            if age >= 0:
                flight.h[name] = _shown(ticks, held, age, number)
            if sent and number - place == schedule.backward[name]:
                flight.z[name] = held.z[0, -1].clone().view(*ticks.lead, -1)
            # A stack passes on what it has, be it zeros.
            sent = sent or isinstance(held.group.cell, LayerStack)
        engine.flights[place] = flight


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


def _entry(flight: Flight) -> Entry:
    sample = flight.sample
    source: Any = flight.given or sample
    return Entry(
        flight.t, flight.stride, flight.reported, sample.u, sample.target, sample.tau, sample.boundary, source
    )


def _shaped(ticks: Ticks, held: Held, x: Tensor) -> Tensor:
    """A copy in the shape that the eager cell has."""
    layers, _, rows = x.shape
    shape = (*ticks.lead, rows)
    return x.clone().view((layers, *shape) if isinstance(held.group.cell, LayerStack) else shape)


def _rows(z: Tensor, held: Held) -> Tensor:
    return z.reshape(z.shape[0], held.z.shape[2], held.z.shape[3])


def _flat(x: Tensor, held: Held) -> Tensor:
    return x.reshape(held.h.shape[2:])


def _cloned(target: Tensor | None) -> Tensor | None:
    return None if target is None else target.clone()
