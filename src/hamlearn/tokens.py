"""Tokens that wait for their echo, and how they are written down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from hamlearn import _tree
from hamlearn.hyper import Rates
from hamlearn.state import Sample


@dataclass(slots=True)
class Token:
    """One token with the state it met, and the graph from that state to the next one and to the loss."""

    sample: Sample
    rates: Rates
    h: list[Tensor]
    h_next: list[Tensor]
    loss: Tensor | None
    y: Any
    fresh: bool
    random: list[Tensor]

    @property
    def gain(self) -> float:
        """τφ, with the nominal τ on the clock of events."""
        return self.rates.stride * self.rates.phi


def pack(tokens: Iterable[Token]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Inputs, targets, rates and states of tokens, as tensors and JSON; graphs are left out."""
    tensors: dict[str, Tensor] = {}
    described = []
    for index, token in enumerate(tokens):
        about: dict[str, Any] = {"rates": list(token.rates), "fresh": token.fresh}
        parts = (("u", token.sample.u), ("target", token.sample.target), ("h", token.h), ("random", token.random))
        for part, tree in parts:
            leaves, spec = ([], None) if tree is None else _tree.flatten(tree)
            about[part] = {"absent": tree is None, "count": len(leaves), "tree": _tree.dumps(spec)}
            tensors |= {f"{index}/{part}/{i}": leaf for i, leaf in enumerate(leaves)}
        described.append(about)
    return tensors, described


def unpack(tensors: dict[str, Tensor], described: list[dict[str, Any]]) -> Iterator[Token]:
    """The tokens that `pack` wrote down, without graphs."""
    for index, about in enumerate(described):
        parts: dict[str, Any] = {}
        for part in ("u", "target", "h", "random"):
            leaves = [tensors[f"{index}/{part}/{i}"] for i in range(about[part]["count"])]
            absent = about[part]["absent"]
            parts[part] = None if absent else _tree.unflatten(leaves, _tree.loads(about[part]["tree"]))
        sample = Sample(parts["u"], parts["target"])
        random = [state.cpu() for state in parts["random"]]
        yield Token(sample, Rates(*about["rates"]), parts["h"], [], None, None, about["fresh"], random)


class Rerun:
    """Lets a token be run again under the conditions of its first run, with no trace left in the network.

    Random numbers are replayed where the network holds dropout modules in training mode; running statistics are
    put back.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.draws = [module for module in network.modules() if isinstance(module, _DropoutNd)]
        self.devices = sorted({weight.get_device() for weight in network.parameters() if weight.is_cuda})

    def random_state(self) -> list[Tensor]:
        """State of the generators, where anything may be drawn from them."""
        if not any(module.training for module in self.draws):
            return []
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in self.devices)]

    @contextmanager
    def as_at(self, random: list[Tensor]) -> Iterator[None]:
        """Within, generators are as in `random`; afterwards, they and the buffers are as they were before."""
        buffers = [(buffer, buffer.clone()) for buffer in self.network.buffers()]
        try:
            if not random:
                yield
                return
            with torch.random.fork_rng(self.devices):
                torch.set_rng_state(random[0])
                for device, state in zip(self.devices, random[1:], strict=True):
                    torch.cuda.set_rng_state(state, device)
                yield
        finally:
            for buffer, value in buffers:
                # Through `.data`, as normalisation layers write theirs: graphs that hold the buffer stay valid.
                buffer.data.copy_(value)
