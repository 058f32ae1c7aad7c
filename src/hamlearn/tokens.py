"""Tokens that wait for their echo, and how they are written down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hamlearn import _tree
from hamlearn._slots import Slots
from hamlearn.hyper import Rates
from hamlearn.state import Sample


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
    """

    sample: Sample
    rates: Rates
    h: list[Tensor]
    h_next: list[Tensor]
    loss: Tensor | None
    y: Any
    fresh: bool
    random: list[Tensor]
    buffers: list[Tensor]

    @property
    def gain(self) -> float:
        """τφ."""
        return self.rates.tau * self.rates.phi


_PARTS = ("u", "target", "h", "random", "buffers")


def pack(tokens: Iterable[Token]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Inputs, targets, rates and states of tokens, as tensors and JSON; graphs are left out."""
    tensors: dict[str, Tensor] = {}
    described = []
    for index, token in enumerate(tokens):
        about: dict[str, Any] = {"rates": list(token.rates), "fresh": token.fresh}
        sample = token.sample
        trees = (sample.u, sample.target, token.h, token.random, token.buffers)
        for part, tree in zip(_PARTS, trees, strict=True):
            leaves, spec = ([], None) if tree is None else _tree.flatten(tree)
            about[part] = {"absent": tree is None, "count": len(leaves), "tree": _tree.dumps(spec)}
            tensors |= {f"{index}/{part}/{i}": leaf for i, leaf in enumerate(leaves)}
        described.append(about)
    return tensors, described


def unpack(tensors: dict[str, Tensor], described: list[dict[str, Any]]) -> Iterator[Token]:
    """The tokens that `pack` wrote down, without graphs."""
    for index, about in enumerate(described):
        parts: dict[str, Any] = {}
        for part in _PARTS:
            leaves = [tensors[f"{index}/{part}/{i}"] for i in range(about[part]["count"])]
            absent = about[part]["absent"]
            parts[part] = None if absent else _tree.unflatten(leaves, _tree.loads(about[part]["tree"]))
        sample = Sample(parts["u"], parts["target"])
        random = [state.cpu() for state in parts["random"]]
        rates = Rates(*about["rates"])
        yield Token(sample, rates, parts["h"], [], None, None, about["fresh"], random, parts["buffers"])


class Rerun:
    """Lets a token be run again as it was run first, with no trace left in the network or the generators."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.devices = sorted({weight.get_device() for weight in slots.parameters.values() if weight.is_cuda})

    def met(self) -> tuple[list[Tensor], list[Tensor]]:
        """State of the generators, and copies of the buffers."""
        buffers = self.slots.present()
        return self.generators(), [buffer.clone() for buffer in buffers]

    def generators(self) -> list[Tensor]:
        """State of the generators."""
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in self.devices)]

    def drawn(self, before: list[Tensor]) -> list[Tensor]:
        """`before` again if anything has been drawn since, else nothing."""
        now = self.generators()
        return before if any(not torch.equal(a, b) for a, b in zip(before, now, strict=True)) else []

    @contextmanager
    def as_at(self, token: Token) -> Iterator[None]:
        """Within, generators and buffers are as the token met them; afterwards, they are as they were before."""
        before = self.slots.present()
        held = [buffer.clone() for buffer in (token.buffers or before)]
        with self.slots.holding(held):
            if not token.random:
                yield
                return
            with torch.random.fork_rng(self.devices):
                torch.set_rng_state(token.random[0])
                for device, state in zip(self.devices, token.random[1:], strict=True):
                    torch.cuda.set_rng_state(state, device)
                yield
