"""A step taken eagerly before it is recorded, and the recording held against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn

from hamlearn._base import trees
from hamlearn._base.finite import all_finite
from hamlearn.engines.recorded.trace import Inputs
from hamlearn.loops.verified import outputs, require_alike
from hamlearn.orders.system import Outcome
from hamlearn.state.carry import Carry


class Tried(NamedTuple):
    """What an eager step started from, and what it led to.

    Attributes:
        theta: The weights.
        start: What it met.
        led_to: Results of it, copied.
    """

    theta: Sequence[Tensor]
    start: Carry
    led_to: dict[str, list[Tensor]]

    @classmethod
    def of(cls, theta: Sequence[Tensor], start: Carry, outcome: Outcome) -> Tried:
        """A step that proposes `outcome`."""
        led_to = {
            "ω": outcome.omega,
            "h": outcome.h,
            "z": outcome.z,
            "∂h/∂θ": outcome.E,
            "y": trees.flatten(outcome.y)[0],
            "loss": [] if outcome.loss is None else [outcome.loss],
        }
        return cls(
            theta, start, {name: [trees.copied(x) for x in group] for name, group in led_to.items() if group}
        )

    def began_as(self, inputs: Inputs) -> bool:
        """Whether it started where a recorded step starts."""
        met = self.start
        pairs = [(self.theta, inputs.theta), (met.omega, inputs.omega)]
        pairs += [(met.h, inputs.h), (met.z, inputs.z), (met.E, inputs.E)]
        # What one of the two steps does without is not there.
        return all(_equal(a, b) for one, other in pairs if one and other for a, b in zip(one, other, strict=True))

    def is_finite(self) -> bool:
        """Whether all that it led to is finite; a step that is refused has nothing to compare."""
        return all_finite([x for group in self.led_to.values() for x in group if x.is_floating_point()])


class Trial(NamedTuple):
    """Takes the first sample as the eager engine would, since a recording may take what that refuses.

    Attributes:
        run: Raises where the sample is refused; `None` where there was nothing to try.
        network: Whose step is tried: the one that is recorded, or another member's of its kind.
        member: Its place among the members of a population.
    """

    run: Callable[[], Tried | None]
    network: nn.Module
    member: int = 0


def require_as_tried(
    graph: fx.GraphModule, inputs: Inputs, tried: Tried, read: Callable[[list[Tensor]], Mapping[str, list[Tensor]]]
) -> None:
    """Raise where the recorded step leads elsewhere than the eager one did.

    Members of a population learn in lanes, and their own weights may be behind; then there is nothing to compare,
    nor where the step is one that would be refused, as its numbers are not finite.

    Args:
        graph: The recorded step.
        inputs: What it is given first.
        tried: The eager step with the same sample.
        read: What the results of the graph are, by name.

    Raises:
        UnsupportedError: If a result differs by more than rounding.
    """
    if tried.began_as(inputs) and tried.is_finite():
        found = read(outputs(graph, inputs.flat()))
        require_alike({name: group for name, group in tried.led_to.items() if name in found}, found)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.dtype == other.dtype and torch.equal(one.detach(), other.detach()))
