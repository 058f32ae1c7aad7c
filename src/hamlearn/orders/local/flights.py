"""Samples in flight through an aligned graph, and what nodes and stacks keep for them."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hamlearn._base.torch_private import tree_map
from hamlearn.orders.local.outer import Outer
from hamlearn.orders.local.stacked import LayerStack
from hamlearn.rates import Rates
from hamlearn.sample import Sample


@dataclass
class Flight:
    """A sample on its way, with the states it has given to nodes and the costates it has waiting there.

    Attributes:
        sample: A copy of what the stream gave: a source may use its memory again while the sample is on its way.
        t: Time at which it was taken.
        stride: Its time step, or the nominal one on the clock of events; it weighs the loss.
        reported: Whether its output is to be reported.
        h: External inputs and outputs of nodes, by name.
        z: Costates that have arrived at nodes.
        draws: Random state before each node that draws, for the second evaluation.
        loss: Sum of the losses taken so far.
        given: What the stream gave, to be named in the report.
    """

    sample: Sample
    t: float
    stride: float
    reported: bool
    h: dict[str, Any]
    z: dict[str, Tensor] = field(default_factory=dict)
    draws: dict[str, list[Tensor]] = field(default_factory=dict)
    loss: Tensor | None = None
    given: Sample | None = None

    def copy(self) -> Flight:
        """The same, safe from later writes."""
        return replace(self, h=dict(self.h), z=dict(self.z), draws=dict(self.draws))


def own_copy(sample: Sample) -> Sample:
    """The sample with memory of its own.

    Example:
        >>> import torch
        >>> u = torch.zeros(1)
        >>> own = own_copy(Sample(u))
        >>> own.u is u, own.target is None
        (False, True)
    """
    own: Sample = object.__new__(type(sample))  # a fifth of the time of copy.copy()
    for name in type(sample).__dataclass_fields__:
        setattr(own, name, getattr(sample, name))
    own.u, own.target = _own(sample.u), _own(sample.target)
    return own


def _own(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return tree.detach().clone()
    return None if tree is None else tree_map(_own_leaf, tree)


def _own_leaf(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else copy.deepcopy(leaf)


class Line:
    """Past inputs of the layers of a stack, each read back after a delay of its own.

    A slot is written in place. That is safe before a tick is accepted, because the slot held what no layer will
    ask for again, and a tick that is refused writes it anew.
    """

    def __init__(self, stack: LayerStack, h: Tensor, delays: list[int]) -> None:
        self.size = max(delays) + 1
        self.slots = h.new_zeros(self.size, *h.shape)
        layer = torch.arange(stack.length)
        ages = torch.tensor(delays)
        now = torch.arange(self.size).unsqueeze(1)
        self.index = (((now - ages) % self.size) * stack.length + layer).to(h.device)

    def copy(self) -> Line:
        """The same, safe from later writes."""
        twin = copy.copy(self)
        twin.slots = self.slots.clone()
        return twin

    def write(self, tick: int, x: Tensor) -> None:
        """Keep the inputs of this tick."""
        self.slots[tick % self.size] = x

    def place(self, tick: int) -> Tensor:
        """Where the inputs of a tick are kept, as a number beside the states."""
        return torch.tensor(float(tick % self.size), dtype=torch.float64, device=self.slots.device)

    def read(self, tick: int) -> Tensor:
        """For each layer the input whose costate is due at this tick."""
        return self.slots.flatten(0, 1).index_select(0, self.index[tick % self.size])


@dataclass
class Pipe:
    """What a stack carries from tick to tick: outputs, costates of all layers but the last, past inputs."""

    h: Tensor
    z: Tensor
    line: Line


@dataclass
class Tick:
    """What one tick finds and writes; nothing reaches a sample in flight before the tick is accepted."""

    number: int
    flights: dict[int, Flight]
    rates: Rates
    grads: list[Tensor | Outer | None]
    h: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    z: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    draws: dict[tuple[int, str], list[Tensor]] = field(default_factory=dict)
    losses: dict[int, Tensor] = field(default_factory=dict)
    pipes: dict[str, Pipe] = field(default_factory=dict)

    def at(self, age: int) -> tuple[int, Flight | None]:
        """The sample that entered `age` ticks ago, if there was one."""
        return self.number - age, self.flights.get(self.number - age)

    def send(self, entry: int, name: str, message: Tensor) -> None:
        """A costate for node `name` of the sample that entered at tick `entry`."""
        before = self.z.get((entry, name), self.flights[entry].z.get(name))
        self.z[entry, name] = message if before is None else before + message
