"""The eager step of the first sample, which a recording is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn

from hamlearn._base import trees
from hamlearn._base.finite import all_finite
from hamlearn.engine.recorded.trace import Inputs
from hamlearn.loops.comparison import outputs, require_alike
from hamlearn.rules.system import Outcome
from hamlearn.state.carry import Carry


class EagerReference(NamedTuple):
    """The start and the results of an eager step.

    Attributes:
        theta: The weights.
        start: What it met.
        led_to: Results of it, copied.
    """

    theta: Sequence[Tensor]
    start: Carry
    led_to: dict[str, list[Tensor]]

    @classmethod
    def of(cls, theta: Sequence[Tensor], start: Carry, outcome: Outcome) -> EagerReference:
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
    inputs: Inputs,
    tried: EagerReference,
    read: Callable[[list[Tensor]], Mapping[str, list[Tensor]]],
) -> None:
    """Raise if the recorded step has other results than the eager one.

    Nothing is compared if the weights of a member are behind those of its lane in a population, or if the numbers
    are not finite.

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
