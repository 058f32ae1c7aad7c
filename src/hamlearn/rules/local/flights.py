"""Samples in flight through an aligned graph: what they are, and what they have left at the nodes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hamlearn._base.torch_private import tree_map
from hamlearn.sample import Sample


@dataclass(frozen=True, slots=True)
class Entry:
    """A sample in flight.

    Attributes:
        sample: A copy of what the stream gave: a source may use its memory again while the sample is in flight.
        t: Time at which it was taken.
        stride: Its time step, or the nominal one on the event clock; it weighs the loss.
        reported: Whether its output is to be reported.
        given: What the stream gave, for the report.
        loss: Sum of the losses taken so far.
    """

    sample: Sample
    t: float
    stride: float
    reported: bool
    given: Sample | None = None
    loss: Tensor | None = None


class Lines:
    """Values that samples have left at nodes: for each node a shift register over the ages of the samples.

    An age is the number of ticks since a sample entered. A register begins at the age at which its node gets the
    value and ends at the last age at which the value is read. `None` stands for a value that is not there.

    Args:
        spans: The first and the last age of each register.
        held: The registers.

    Example:
        >>> lines = Lines({"a": (1, 2)})
        >>> lines.put("a", 1, torch.ones(1))
        >>> lines = lines.older()
        >>> lines.get("a", 1), lines.get("a", 2)
        (None, tensor([1.]))
    """

    __slots__ = ("held", "spans")

    def __init__(self, spans: Mapping[str, tuple[int, int]], held: dict[str, list[Any]] | None = None) -> None:
        self.spans = spans
        self.held = {n: [None] * (b - a + 1) for n, (a, b) in spans.items()} if held is None else held

    def older(self) -> Lines:
        """The registers one tick later, for the new values of that tick; these stay as they are."""
        return Lines(self.spans, {name: [None, *line[:-1]] for name, line in self.held.items()})

    def get(self, name: str, age: int) -> Any:
        """The value of the sample that is so old, or `None`."""
        place = age - self.spans[name][0]
        return self.held[name][place] if 0 <= place < len(self.held[name]) else None

    def put(self, name: str, age: int, value: Any) -> None:
        """Keep a value, unless it is not read at this age or later."""
        line = self.held.get(name, [])
        place = age - self.spans[name][0] if line else 0
        if 0 <= place < len(line):
            line[place] = value

    def items(self) -> list[tuple[str, int, Any]]:
        """All values that are there, with their nodes and ages."""
        return [
            (name, self.spans[name][0] + place, value)
            for name, line in self.held.items()
            for place, value in enumerate(line)
            if value is not None
        ]

    def stacked(self, like: Mapping[str, Tensor]) -> list[Tensor]:
        """What the next tick can read: one tensor per register, zeros for values that are not there."""
        lines = ((name, line[:-1]) for name, line in self.held.items() if len(line) > 1)
        return [torch.stack([torch.zeros_like(like[n]) if x is None else x for x in line]) for n, line in lines]

    @classmethod
    def of(cls, spans: Mapping[str, tuple[int, int]], stacked: Sequence[Tensor]) -> Lines:
        """The registers that `stacked` took apart."""
        rest = iter(stacked)
        held: dict[str, list[Any]] = {}
        for name, (first, last) in spans.items():
            held[name] = [*(next(rest).unbind() if last > first else ()), None]
        return cls(spans, held)


class Ring:
    """Past inputs of the layers of a stack, each read back after a delay of its own.

    The present slot is written in place: no layer reads what stood there, and a tick that is refused leaves
    nothing that matters. Inside a recorded step `place` is a tensor, and nothing is written in place.

    Args:
        slots: Inputs of the last ticks.
        delays: Ticks after which each layer reads back its own.
        place: The slot of the present tick.

    Example:
        >>> ring = Ring(torch.zeros(3, 2, 1), [2, 0], 0)
        >>> for tick in range(3):
        ...     ring = ring.written(torch.tensor([[1.0], [2.0]]) + 2 * tick)
        ...     found, ring = ring.read(), ring.next()
        >>> found
        tensor([[1.],
                [6.]])
    """

    __slots__ = ("delays", "index", "place", "slots")

    def __init__(
        self, slots: Tensor, delays: Sequence[int], place: int | Tensor, index: Tensor | None = None
    ) -> None:
        self.slots, self.delays, self.place = slots, delays, place
        if index is None and isinstance(place, int):
            now, layers = torch.arange(len(slots)).unsqueeze(1), len(delays)
            index = ((now - torch.tensor(delays)) % len(slots) * layers + torch.arange(layers)).to(slots.device)
        self.index = index

    def copy(self) -> Ring:
        """The same, in memory of its own."""
        return Ring(self.slots.clone(), self.delays, self.place, self.index)

    def written(self, x: Tensor) -> Ring:
        """The same, with the inputs of this tick."""
        if isinstance(self.place, int):
            self.slots[self.place] = x
            return self
        slots = self.slots.index_put((self.place.long().view(1),), x.unsqueeze(0))
        return Ring(slots, self.delays, self.place)

    def read(self) -> Tensor:
        """For each layer the input whose costate is due at this tick."""
        if isinstance(self.place, int):
            assert self.index is not None
            return self.slots.flatten(0, 1).index_select(0, self.index[self.place])
        size, layer = len(self.slots), torch.arange(len(self.delays), device=self.slots.device)
        # A layer learns two ticks before the one that it reads.
        place = torch.remainder(self.place.long() + size - self.delays[0] + 2 * layer, size)
        return self.slots[place, layer]

    def next(self) -> Ring:
        """The ring of the next tick."""
        size = len(self.slots)
        if isinstance(self.place, int):
            return Ring(self.slots, self.delays, (self.place + 1) % size, self.index)
        return Ring(self.slots, self.delays, torch.where(self.place + 1 == size, 0.0, self.place + 1))


class StackState(NamedTuple):
    """What a stack carries from tick to tick: outputs, costates of all layers but the last, and past inputs."""

    h: Tensor
    z: Tensor
    ring: Ring


class Pipeline(NamedTuple):
    """What an aligned graph carries from tick to tick; a value that no later tick changes, but for the rings.

    Attributes:
        number: Ticks made so far.
        entries: The samples in flight by age, as of the last tick.
        h: External inputs and states.
        z: Costates that have arrived at their nodes.
        draws: States of the random number generators before each node that draws, for its second evaluation.
        stacks: What the stacks hold, by name.
    """

    number: int
    entries: list[Entry | None]
    h: Lines
    z: Lines
    draws: Lines
    stacks: dict[str, StackState]


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
