"""The eager step of a block's first sample, which the compiled step is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hamlearn._base import trees
from hamlearn._base.finite import all_finite
from hamlearn.rules.system import Outcome
from hamlearn.state.carry import Carry

Groups = dict[str, list[Tensor]]
"""Tensors by what they are."""


class EagerReference(NamedTuple):
    """The start and the results of an eager step.

    Attributes:
        start: The tensors that it started from.
        led_to: Its results, copied. Weights and v are left out: they follow from ω, and Adam divides the rounding
            of tiny gradients by their size.
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
        """Whether it started where the compiled step starts, and led to finite values."""
        pairs = [(self.start[name], first.get(name)) for name in self.start]
        # A group that one of the two steps does without is empty or absent.
        same = all(_equal(a, b) for one, other in pairs if one and other for a, b in zip(one, other, strict=True))
        return same and all_finite([x for group in self.led_to.values() for x in group if x.is_floating_point()])


class ReferenceStep(NamedTuple):
    """Makes the eager step of a block's first sample, and raises what that step raises.

    Attributes:
        run: Makes the step, and leaves everything as it was; `None`: there is nothing to compare.
        network: The network whose step it is: the one that is recorded, or that of another member.
        member: Its place among the members of a population.
    """

    run: Callable[[], EagerReference | None]
    network: nn.Module
    member: int = 0


def _equal(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.dtype == other.dtype and torch.equal(one.detach(), other.detach()))


@contextmanager
def weights_kept(network: nn.Module) -> Iterator[None]:
    """Within, a step may write to weights and buffers, as an embedding with `max_norm` does; they are put back."""
    before = [(own, own.detach().clone()) for own in (*network.parameters(), *network.buffers())]
    try:
        yield
    finally:
        with torch.no_grad():
            for own, copy in before:
                if not torch.equal(own, copy):
                    own.copy_(copy)
