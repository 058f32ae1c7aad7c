"""Samples in flight as a checkpoint keeps them: tensors by name, and the rest as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.claims import Tensors, entries, flag, generator_state, number, record, whole
from hamlearn.orders.local.flights import Flight
from hamlearn.orders.local.local_system import LocalSystem
from hamlearn.orders.local.nodes import Cell
from hamlearn.orders.local.schedule import Timetable
from hamlearn.state.tokens import pack_sample, unpack_sample


def dump(flights: dict[int, Flight], inputs: tuple[str, ...]) -> tuple[dict[str, Tensor], list[Any]]:
    """Tensors by name, and the rest; the external inputs are found again in u."""
    tensors: dict[str, Tensor] = {}
    header = []
    for entry, flight in flights.items():
        prefix = f"flight/{entry}/"
        tensors |= {} if flight.loss is None else {f"{prefix}loss": flight.loss}
        tensors |= {f"{prefix}h/{n}": x for n, x in flight.h.items() if n not in inputs}
        tensors |= {f"{prefix}z/{n}": x for n, x in flight.z.items()}
        tensors |= {f"{prefix}draws/{n}/{i}": x for n, xs in flight.draws.items() for i, x in enumerate(xs)}
        parts, sample = pack_sample(flight.sample, prefix)
        tensors |= parts
        about = {"entry": entry, "t": flight.t, "stride": flight.stride, "reported": flight.reported}
        header.append(about | {"draws": list(flight.draws), "sample": sample})
    return tensors, header


def restore(
    tensors: Tensors, header: Any, values: Callable[[Any], dict[str, Any]], device: torch.device
) -> dict[int, Flight]:
    """The flights that `dump` took apart; `values` gives the external inputs of u by name.

    Raises:
        ValueError: If `dump` cannot have written this.
    """
    flights: dict[int, Flight] = {}
    for about in entries(header, "the list of samples in flight"):
        record(about, "a sample in flight", "entry", "t", "stride", "reported", "draws", "sample")
        entry = whole(about["entry"], "the entry of a sample in flight", least=max(flights, default=-1) + 1)
        left = tensors.under(f"flight/{entry}/")
        flights[entry] = _restore(left, about, values, device)
        left.done()
    return flights


def check(
    entry: int, flight: Flight, age: int, schedule: Timetable, system: LocalSystem, trial: dict[str, Tensor]
) -> None:
    """Raise `ValueError` unless a sample that entered `age` ticks ago can be in flight like this.

    Args:
        entry: The tick at which it entered.
        flight: What the file says of it.
        age: Ticks since then.
        schedule: When it passes which node.
        system: The nodes.
        trial: Outputs of the nodes for its input, for their shapes.
    """
    what = f"the sample of tick {entry}"
    if not 1 <= age < schedule.horizon:
        raise ValueError(f"{what} cannot be in flight after {age} ticks")
    passed = [cell for cell in system.cells if schedule.shown(cell.name) < age]
    known = {cell.name for cell in passed}
    if set(flight.h) - set(system.wiring.inputs) != known or not set(flight.z) <= known:
        raise ValueError(f"{what} has not the states of the nodes that it has passed")
    drew = {cell.name: 1 + len(cell.devices) for cell in passed if isinstance(cell, Cell) and cell.draws()}
    if {name: len(states) for name, states in flight.draws.items()} != drew:
        raise ValueError(f"{what} has not the random states of the nodes that drew")
    for name, x in [*((n, flight.h[n]) for n in known), *flight.z.items()]:
        if x.shape != trial[name].shape or x.dtype is not trial[name].dtype:
            raise ValueError(f"{what} has {trees.describe(x)} at node {name!r}")
    if flight.loss is not None and (flight.loss.dim() or not flight.loss.is_floating_point()):
        raise ValueError(f"{what} has the loss {trees.describe(flight.loss)}")


def _restore(
    left: Tensors, about: dict[str, Any], values: Callable[[Any], dict[str, Any]], device: torch.device
) -> Flight:
    sample = unpack_sample(left, about["sample"], "", device)
    flight = Flight(
        sample,
        number(about["t"], "the time of a sample in flight"),
        number(about["stride"], "the time step of a sample in flight", positive=True),
        flag(about["reported"], "reported of a sample in flight"),
        values(sample.u),
    )
    for place, kept in (("h/", flight.h), ("z/", flight.z)):
        arrived = left.under(place)
        for name in arrived.names():
            if name in kept:
                raise ValueError(f"a sample in flight brings {name!r} twice")
            kept[name] = arrived.keep(name, device)
    for name in entries(about["draws"], "the list of nodes that draw"):
        # States of random number generators stay on the CPU, wherever the weights are.
        flight.draws[name] = [
            generator_state(left.take(state), f"the random state of node {name!r}", None if index else "cpu")
            for index, state in enumerate(left.counted(f"draws/{name}/"))
        ]
    if "loss" in left:
        flight.loss = left.keep("loss", device)
    return flight
