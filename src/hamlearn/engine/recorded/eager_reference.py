"""The eager step of the first sample, which a recording is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn

from hamlearn._base import trees
from hamlearn._base.finite import all_finite
from hamlearn.loops.comparison import outputs, require_alike
from hamlearn.rules.system import Outcome
from hamlearn.state.carry import Carry

Groups = dict[str, list[Tensor]]
"""Tensors by what they are."""


class EagerReference(NamedTuple):
    """The start and the results of an eager step.

    Attributes:
        start: What it met.
        led_to: Results of it, copied.
    """

    start: Groups
    led_to: Groups

    @classmethod
    def of(cls, theta: Sequence[Tensor], start: Carry, outcome: Outcome) -> EagerReference:
        """A step that proposes `outcome`."""
        met = {"theta": list(theta), "omega": start.omega, "h": start.h, "z": start.z, "E": start.E}
        led_to = {
            "omega": outcome.omega,
            "h": outcome.h,
            "z": outcome.z,
            "E": outcome.E,
            "y": trees.flatten(outcome.y)[0],
            "loss": [] if outcome.loss is None else [outcome.loss],
        }
        return cls(met, {name: [trees.copied(x) for x in group] for name, group in led_to.items() if group})

    def comparable(self, first: Groups) -> bool:
        """Whether it started where a recorded step starts, and led to finite values.

        Weights of a member may be behind those of its lane in a population.
        """
        pairs = [(self.start[name], first.get(name)) for name in self.start]
        # What one of the two steps does without is not there.
        same = all(_equal(a, b) for one, other in pairs if one and other for a, b in zip(one, other, strict=True))
        return same and all_finite([x for group in self.led_to.values() for x in group if x.is_floating_point()])


class ReferenceStep(NamedTuple):
    """Makes the eager step of the first sample, which raises for what a recording might take.

    Attributes:
        run: Makes the step; `None`: there is nothing to compare.
        network: The network whose step it is: the one that is recorded, or that of another member.
        member: Its place among the members of a population.
    """

    run: Callable[[], EagerReference | None]
    network: nn.Module
    member: int = 0


def require_as_reference(
    graph: fx.GraphModule,
    first: Groups,
    tried: EagerReference,
    read: Callable[[list[Tensor]], Mapping[str, list[Tensor]]],
) -> None:
    """Raise if the recorded step has other results than the eager one.

    Args:
        graph: The recorded step.
        first: What it is given first.
        tried: The eager step with the same sample.
        read: What the results of the graph are, by name.

    Raises:
        UnsupportedError: If a result differs by more than rounding.
    """
    if tried.comparable(first):
        found = read(outputs(graph, [tensor for group in first.values() for tensor in group]))
        require_alike({name: group for name, group in tried.led_to.items() if name in found}, found)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.dtype == other.dtype and torch.equal(one.detach(), other.detach()))
