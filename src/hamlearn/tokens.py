"""Tokens that wait for their echo, and how they are written down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from hamlearn import _tree
from hamlearn._claims import Tensors, entries, flag, generator_state, number, record, shown
from hamlearn._described import build, describe
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
        """τφ."""
        return self.rates.tau * self.rates.phi

    def without_graph(self) -> Token:
        """The same token as it can be copied: what `Echoed.take_back` runs it again from."""
        sample = replace(self.sample, u=_tree.detach(self.sample.u), target=_tree.detach(self.sample.target))
        h = [leaf.detach() for leaf in self.h]
        return replace(self, sample=sample, h=h, h_next=[], loss=None, y=None)


def pack(tokens: Iterable[Token]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Samples, rates and states of tokens, as tensors and JSON; graphs are left out."""
    tensors: dict[str, Tensor] = {}
    described = []
    for index, token in enumerate(tokens):
        tensors |= {f"{index}/h/{i}": leaf for i, leaf in enumerate(token.h)}
        tensors |= {f"{index}/random/{i}": state for i, state in enumerate(token.random)}
        parts, sample = pack_sample(token.sample, f"{index}/")
        tensors |= parts
        described.append({"rates": list(token.rates), "fresh": token.fresh, "sample": sample})
    return tensors, described


def unpack(tensors: Tensors, described: Any, device: torch.device) -> Iterator[Token]:
    """The tokens that `pack` wrote down, without graphs; raises `ValueError` where it cannot have written this."""
    for index, about in enumerate(entries(described, "the list of tokens")):
        what = f"token {index}"
        record(about, what, "rates", "fresh", "sample")
        sample = unpack_sample(tensors, about["sample"], f"{index}/", device)
        h = [tensors.keep(name, device) for name in tensors.counted(f"{index}/h/")]
        random = [
            generator_state(tensors.take(name), f"the random state of {what}", None if i else "cpu")
            for i, name in enumerate(tensors.counted(f"{index}/random/"))
        ]
        fresh = flag(about["fresh"], f"fresh of {what}")
        yield Token(sample, _rates(about["rates"], what), h, [], None, None, fresh, random)


def pack_sample(sample: Sample, prefix: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A sample as tensors, their names beginning with `prefix`, and JSON."""
    tensors: dict[str, Tensor] = {}
    about: dict[str, Any] = {"tau": sample.tau, "boundary": sample.boundary}
    for part in ("u", "target"):
        kept: list[Tensor] = []

        def keep(tensor: Tensor, kept: list[Tensor] = kept) -> int:
            kept.append(tensor)
            return len(kept) - 1

        about[part] = describe(getattr(sample, part), keep)
        tensors |= {f"{prefix}{part}/{i}": tensor for i, tensor in enumerate(kept)}
    return tensors, about


def unpack_sample(tensors: Tensors, described: Any, prefix: str, device: torch.device) -> Sample:
    """The sample that `pack_sample` wrote down."""
    about = record(described, "a sample", "tau", "boundary", "u", "target")
    u, target = (
        build(about[part], lambda i, part=part: tensors.keep(f"{prefix}{part}/{i}", device))  # type: ignore[misc]
        for part in ("u", "target")
    )
    tau = None if about["tau"] is None else number(about["tau"], "tau of a sample", positive=True)
    return Sample(u, target, tau, flag(about["boundary"], "boundary of a sample"))


def _rates(value: Any, what: str) -> Rates:
    rates = entries(value, f"the rates of {what}")
    if len(rates) != len(Rates._fields) or rates[-1] != -1 or type(rates[-1]) is not int:
        raise ValueError(f"the rates of {what} are {shown(rates)}, not those of {Rates._fields} with s = -1")
    tau, eta, eta_z, phi = (number(rate, f"a rate of {what}") for rate in rates[:-1])
    return Rates(number(tau, f"tau of {what}", positive=True), eta, eta_z, phi, -1)


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
