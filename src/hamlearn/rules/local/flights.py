"""Samples in flight through an aligned graph: what they are, and what they have left at the nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hamlearn._base import trees
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

    A register begins at the age at which its node gets the value and ends at the last age at which the value is
    read. `None` stands for a value that is not there.

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

    def stacked(self, like: Mapping[str, Tensor]) -> list[Tensor]:
        """What the next tick can read: one tensor per register, zeros for values that are not there."""
        lines = ((name, line[:-1]) for name, line in self.held.items() if len(line) > 1)
        return [torch.stack([torch.zeros_like(like[n]) if x is None else x for x in line]) for n, line in lines]

    @classmethod
    def of(cls, spans: Mapping[str, tuple[int, int]], stacked: Sequence[Tensor]) -> Lines:
        """The registers that `stacked` took apart."""
        rest = iter(stacked)
        ages = {name: last - first for name, (first, last) in spans.items()}
        return cls(spans, {name: [*(next(rest).unbind() if more else ()), None] for name, more in ages.items()})


class StackState(NamedTuple):
    """What a stack carries from tick to tick.

    Attributes:
        h: Outputs.
        z: Costates of all layers but the last.
        ring: Inputs of the last ticks; that of tick number k is at place k mod their count.
    """

    h: Tensor
    z: Tensor
    ring: Tensor


class FlightState(NamedTuple):
    """What an aligned graph carries from tick to tick; a value that no later tick changes, but for the rings.

    Attributes:
        number: Ticks made so far; inside a recorded tick a tensor.
        entries: The samples in flight by age, as of the last tick.
        h: External inputs and states.
        z: Costates that have arrived at their nodes.
        draws: States of the random number generators before each node that draws, for its second evaluation.
        stacks: What the stacks hold, by name.
    """

    number: Any
    entries: list[Entry | None]
    h: Lines
    z: Lines
    draws: Lines
    stacks: dict[str, StackState]


def written(ring: Tensor, number: int | Tensor, x: Tensor) -> Tensor:
    """A ring with the inputs of this tick.

    They are written in place: no layer reads what stood there, and a tick that raises leaves nothing that
    matters. Inside a recorded tick nothing is written in place.
    """
    if isinstance(number, Tensor):
        return ring.index_put((torch.remainder(number.long(), ring.shape[0]).view(1),), x.unsqueeze(0))
    ring[number % ring.shape[0]] = x
    return ring


def past(ring: Tensor, number: int | Tensor, delays: Sequence[int]) -> Tensor:
    """For each layer the input whose costate is due at this tick.

    Example:
        >>> ring = torch.zeros(3, 2, 1)
        >>> for tick in range(3):
        ...     ring = written(ring, tick, torch.tensor([[1.0], [2.0]]) + 2 * tick)
        >>> past(ring, 2, [2, 0])
        tensor([[1.],
                [6.]])
    """
    size = ring.shape[0]
    if not isinstance(number, Tensor):
        if len(delays) == 1:
            # A copy: the place may be written to before ω is used.
            return ring[(number - delays[0]) % size].clone()
        return ring.flatten(0, 1).index_select(0, _places(size, tuple(delays), ring.device)[number % size])
    layer = torch.arange(len(delays), device=ring.device)
    # A layer learns two ticks before the one that it reads.
    return ring[torch.remainder(number.long() + size - delays[0] + 2 * layer, size), layer]


@lru_cache(maxsize=64)
def _places(size: int, delays: tuple[int, ...], device: torch.device) -> Tensor:
    """For each place of the present tick, where each layer's past input is, in a ring without its first axis.

    To work these out in every tick takes a tenth of the time of a deep chain.
    """
    now, layers = torch.arange(size).unsqueeze(1), len(delays)
    return ((now - torch.tensor(delays)) % size * layers + torch.arange(layers)).to(device)


def own_copy(sample: Sample) -> Sample:
    """The sample with memory of its own.

    Example:
        >>> import torch
        >>> u = torch.zeros(1)
        >>> own = own_copy(Sample(u))
        >>> own.u is u, own.target is None
        (False, True)
    """
    target = None if sample.target is None else trees.copied(sample.target)
    return Sample(trees.copied(sample.u), target, sample.tau, sample.boundary, sample.id, sample.scale)
