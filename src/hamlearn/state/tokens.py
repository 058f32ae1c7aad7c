"""Tokens that wait for their echo, and how they are written down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from hamlearn._base.replay import devices_of, drawing, generators, same_generators
from hamlearn._base.slots import Slots
from hamlearn.rates import Rates
from hamlearn.sample import Sample
from hamlearn.state.packing import sample_tree


@dataclass(slots=True)
class Token:
    """One token with the state it met, and the graph from that state to the next one and to the loss.

    Attributes:
        sample: Input and target, copies of those of the stream.
        rates: Rates of its step.
        h: State that it met.
        h_next: State that it led to.
        loss: L(y, target), if there was a target.
        y: Output.
        fresh: Whether it began its sequence.
        random: Generators as it met them, where it drew from them.
        buffers: Buffers of the network as it met them.
        running: The running cost, if there is one.
    """

    sample: Sample
    rates: Rates
    h: list[Tensor]
    h_next: list[Tensor]
    loss: Tensor | None
    y: Any
    fresh: bool
    random: list[Tensor] = field(default_factory=list)
    buffers: list[Tensor] = field(default_factory=list)
    running: Tensor | None = None

    @property
    def gain(self) -> float:
        """τφ, with the nominal τ on the clock of events."""
        return self.rates.stride * self.rates.phi


def token_tree(token: Token) -> dict[str, Any]:
    """Sample, rates and state of a token as a tree; its graph is left out."""
    kept = {"rates": tuple(token.rates), "h": token.h, "random": token.random, "buffers": token.buffers}
    return kept | {"sample": sample_tree(token.sample), "fresh": token.fresh}


def token_of(tree: dict[str, Any]) -> Token:
    """The token of such a tree, without a graph."""
    sample, rates, random = Sample(**tree["sample"]), Rates(*tree["rates"]), [x.cpu() for x in tree["random"]]
    return Token(sample, rates, tree["h"], [], None, None, tree["fresh"], random, tree["buffers"])


class Rerun:
    """Lets a token be run again as it was run first, with no trace left in the network or the generators."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.devices = devices_of(slots.parameters.values())

    def met(self) -> tuple[list[Tensor], list[Tensor]]:
        """State of the generators, and copies of the buffers."""
        buffers = self.slots.present()
        return generators(self.devices), [buffer.clone() for buffer in buffers]

    @contextmanager
    def on_copies(self, buffers: list[Tensor]) -> Iterator[None]:
        """Within, the network works on copies of its buffers; afterwards its own have the values of the copies.

        The graph of a token keeps the buffers that it was computed with, which the next token changes.
        """
        if not buffers:
            yield
            return
        copies = [buffer.clone() for buffer in buffers]
        with self.slots.exchanged(dict(zip(self.slots.buffers, copies, strict=True))):
            yield
            left = self.slots.present()
        for own, new in zip(self.slots.present(), left, strict=True):
            own.data.copy_(new.detach())

    def drawn(self, before: list[Tensor]) -> list[Tensor]:
        """`before` again if anything has been drawn since, else nothing."""
        return [] if same_generators(before, generators(self.devices)) else before

    @contextmanager
    def as_at(self, token: Token) -> Iterator[None]:
        """Within, generators and buffers are as the token met them; afterwards, they are as they were before."""
        before = self.slots.present()
        held = [buffer.clone() for buffer in (token.buffers or before)]
        with self.slots.exchanged(dict(zip(self.slots.buffers, held, strict=True))):
            if not token.random:
                yield
                return
            with drawing(self.devices, token.random):
                yield
