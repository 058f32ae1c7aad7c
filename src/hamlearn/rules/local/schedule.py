"""When each node meets each sample: the delays of an aligned graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hamlearn.errors import ConfigError
from hamlearn.rules.local.local_system import LocalSystem


@dataclass(frozen=True)
class Timetable:
    """Ticks after a sample's entry at which a cell's first layer computes it, and its last one learns from it.

    Node g computes sample s at tick s + d_g, with d_g the longest path from an input. The loss at an output is
    taken at s + d + 1 in parallel order and at s + d in sequential order; the costate then needs one tick per edge
    back, and a node waits for the last of its messages. In a chain of G nodes in parallel order node g learns
    2(G − g) ticks after it computed.

    Attributes:
        forward: d of the first layer of each cell, by the cell's name.
        backward: Ticks until the last layer of the cell learns; cells that lead to no output are missing.
        lag: Ticks from an output's state to its loss.
        horizon: Ticks that a sample is in flight.
        length: Layers of each cell.
    """

    forward: dict[str, int]
    backward: dict[str, int]
    lag: int
    horizon: int
    length: dict[str, int]

    def shown(self, name: str) -> int:
        """Tick at which a cell's last layer has computed."""
        return self.forward[name] + self.length[name] - 1

    def first(self, name: str) -> int:
        """Tick at which a cell's first layer learns."""
        return self.backward[name] + self.length[name] - 1

    def delays(self, name: str) -> list[int]:
        """Ticks from computing to learning, layer by layer."""
        return [self.first(name) - self.forward[name] - 2 * i for i in range(self.length[name])]


def schedule(system: LocalSystem) -> Timetable:
    """The delays of an acyclic graph."""
    cycle = system.wiring.cycle()
    if cycle:
        raise ConfigError(
            f"a graph with a cycle cannot be aligned, and this one has {' → '.join(cycle)}: a sample would "
            "meet its own past. Use align=False, or cut the cycle"
        )
    return schedule_of(system.cells, system.wiring.outputs, system.order)


def schedule_of(cells: Sequence[Any], outputs: Sequence[str], order: str) -> Timetable:
    """The delays of cells in topological order.

    A cell has a name, that of its last layer, its `parents`, the cells that it reads, and its `length` in layers.
    """
    lag = 0 if order == "sequential" else 1
    forward: dict[str, int] = {}
    length = {cell.name: cell.length for cell in cells}
    for cell in cells:
        reads = [forward[p] + length[p] for p in cell.parents]
        forward[cell.name] = max(reads, default=0)
    backward: dict[str, int] = {}
    for cell in reversed(cells):
        arrivals = [
            backward[child.name] + child.length
            for child in cells
            if cell.name in child.parents and child.name in backward
        ]
        if cell.name in outputs:
            arrivals.append(forward[cell.name] + cell.length - 1 + 2 * lag)
        if arrivals:
            backward[cell.name] = max(arrivals)
    horizon = max(backward[name] + length[name] for name in backward)
    return Timetable(forward, backward, lag, horizon, length)
