"""Tokens that wait for their echo, and how they are written down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hamlearn._base.claims import Tensors, entries, flag, generator_state, number, record, shown
from hamlearn._base.replay import devices_of, drawing, generators, same_generators
from hamlearn._base.slots import Slots
from hamlearn.rates import Rates
from hamlearn.sample import Sample, Scale
from hamlearn.state.described import build, describe


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
        """τφ, with the nominal τ on the clock of events."""
        return self.rates.stride * self.rates.phi


def pack(tokens: Iterable[Token]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Samples, rates and states of tokens, as tensors and JSON; graphs are left out."""
    tensors: dict[str, Tensor] = {}
    described = []
    for index, token in enumerate(tokens):
        tensors |= {f"{index}/h/{i}": leaf for i, leaf in enumerate(token.h)}
        tensors |= {f"{index}/random/{i}": state for i, state in enumerate(token.random)}
        tensors |= {f"{index}/buffers/{i}": buffer for i, buffer in enumerate(token.buffers)}
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
        buffers = [tensors.keep(name, device) for name in tensors.counted(f"{index}/buffers/")]
        fresh = flag(about["fresh"], f"fresh of {what}")
        yield Token(sample, _rates(about["rates"], what), h, [], None, None, fresh, random, buffers)


def pack_sample(sample: Sample, prefix: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A sample as tensors, their names beginning with `prefix`, and JSON."""
    tensors: dict[str, Tensor] = {}
    about: dict[str, Any] = {"tau": sample.tau, "boundary": sample.boundary}
    # What a late prediction is put back into the unit of the data by is part of its sample.
    parts = {"u": sample.u, "target": sample.target, "scale": sample.scale and tuple(sample.scale)}
    for part, value in parts.items():
        kept: list[Tensor] = []

        def keep(tensor: Tensor, kept: list[Tensor] = kept) -> int:
            kept.append(tensor)
            return len(kept) - 1

        about[part] = describe(value, keep)
        tensors |= {f"{prefix}{part}/{i}": tensor for i, tensor in enumerate(kept)}
    return tensors, about


def unpack_sample(tensors: Tensors, described: Any, prefix: str, device: torch.device) -> Sample:
    """The sample that `pack_sample` wrote down."""
    about = record(described, "a sample", "tau", "boundary", "u", "target", "scale")
    u, target, scale = (
        build(about[part], lambda i, part=part: tensors.keep(f"{prefix}{part}/{i}", device))  # type: ignore[misc]
        for part in ("u", "target", "scale")
    )
    tau = None if about["tau"] is None else number(about["tau"], "tau of a sample", positive=True)
    scale = None if scale is None else Scale(*scale)
    return Sample(u, target, tau, flag(about["boundary"], "boundary of a sample"), scale=scale)


def _rates(value: Any, what: str) -> Rates:
    rates = entries(value, f"the rates of {what}")
    if len(rates) != len(Rates._fields) or rates[-1] != -1 or type(rates[-1]) is not int:
        raise ValueError(f"the rates of {what} are {shown(rates)}, not those of {Rates._fields} with s = -1")
    tau, stride, eta, eta_z, phi = (number(rate, f"a rate of {what}") for rate in rates[:-1])
    for step in (tau, stride):
        number(step, f"a time step of {what}", positive=True)
    return Rates(tau, stride, eta, eta_z, phi, -1)


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
