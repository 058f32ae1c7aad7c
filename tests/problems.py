"""Random networks, hyper-parameters and streams that every path is compared on."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import hamlearn as hl


class RateNet(nn.Module):
    """A leaky continuous-time net: ḣ = −h + tanh(Wu + Vh)."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.inputs = nn.Linear(inputs, size)
        self.recurrent = nn.Linear(size, size, bias=False)

    def forward(self, u: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inputs(u) + self.recurrent(h)) - h


class TreeRateNet(nn.Module):
    """A state of two parts, in a dict."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.fast = nn.Linear(inputs + size, size)
        self.slow = nn.Linear(size, 2)

    def forward(self, u: torch.Tensor, h: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        fast = torch.tanh(self.fast(torch.cat([u, h["fast"]], -1)))
        return {"fast": fast - h["fast"], "slow": 0.3 * (torch.sin(self.slow(h["fast"])) - h["slow"])}


class InputAndState(nn.Module):
    """An output net that reads both the input and the state."""

    def __init__(self, inputs: int, size: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs + size, outputs)

    def forward(self, u: torch.Tensor, h: Any) -> torch.Tensor:
        h = torch.cat([h["fast"], h["slow"]], -1) if isinstance(h, dict) else h
        return self.linear(torch.cat([u, h], -1))


@dataclass
class Problem:
    network: hl.Network
    loss: Callable[..., torch.Tensor]
    hyper: hl.Hyper
    samples: list[hl.Sample]

    def learner(self, **kwargs: Any) -> hl.Learner:
        """Algorithm 1, the literal equations, but for what is said."""
        setting = {"order": "parallel", "credit": hl.Forward(), **kwargs}
        return hl.Learner(copy.deepcopy(self.network), self.loss, self.hyper, **setting)


NETWORKS = ("rate", "tree", "next", "gru", "lstm", "output", "state", "split", "tied", "frozen")


def make_network(kind: str, inputs: int, size: int, outputs: int, batch: tuple[int, ...]) -> hl.Network:
    if kind == "rate":
        output = InputAndState(inputs, size, outputs)
        return hl.Network(RateNet(inputs, size), output, h0=torch.randn(*batch, size))
    if kind == "tree":
        h0 = {"fast": torch.randn(*batch, size), "slow": torch.randn(*batch, 2)}
        return hl.Network(TreeRateNet(inputs, size), InputAndState(inputs, size + 2, outputs), h0=h0)
    if kind == "next":
        return hl.Network.recurrent(nn.RNNCell(inputs, size), nn.Linear(size, outputs))
    if kind == "gru":
        return hl.Network.recurrent(nn.GRUCell(inputs, size), nn.Linear(size, outputs))
    if kind == "lstm":
        return hl.Network.recurrent(nn.LSTMCell(inputs, size), nn.Linear(size, outputs))
    body = nn.Sequential(nn.Linear(inputs, size), nn.Tanh())
    head = nn.Linear(size, outputs)
    if kind == "output":
        return hl.Network.feedforward(nn.Sequential(*body, head))
    if kind == "state":
        return hl.Network.feedforward(nn.Sequential(*body, head), role="state")
    if kind == "split":
        return hl.Network.feedforward(body, role="state", readout=head)
    if kind == "tied":
        cell, head = RateNet(inputs, size), nn.Linear(size, size, bias=False)
        head.weight = cell.recurrent.weight
        return hl.Network(cell, lambda_readout(head), h0=torch.zeros(*batch, size))
    if kind == "frozen":
        cell = nn.RNNCell(inputs, size)
        cell.weight_hh.requires_grad_(False)
        return hl.Network.recurrent(cell, nn.Linear(size, outputs))
    raise ValueError(kind)


class lambda_readout(nn.Module):
    """Calls a module of h alone as f_y(u, h)."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, u: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return self.module(h)


def random_hyper(
    network: hl.Network, generator: torch.Generator, *, small: float = 0.05, clock: Any = "events"
) -> hl.Hyper:
    """Schedules, one β per pattern with a tensor among them, either sign."""

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * torch.rand((), generator=generator, dtype=torch.float64).item()

    names = [(n, p) for n, p in network.named_parameters() if p.requires_grad]
    first, weight = names[0]
    a, b, c, d = (uniform(0, 1) for _ in range(4))
    rate = uniform(0, small)
    return hl.Hyper(
        tau=uniform(0.05, 0.5),
        eta=lambda t: 0.2 * a + 0.1 * math.sin(t) ** 2,
        eta_z=None if uniform(0, 1) < 0.5 else 0.5 + b,
        phi=lambda t: 0.5 + c / (1 + t),
        s=-1 if uniform(0, 1) < 0.7 else 1,
        phi_first=None if uniform(0, 1) < 0.5 else 2 * d,
        clock=clock,
        beta={
            first: small * torch.rand(weight.shape, generator=generator, dtype=torch.float64).to(weight.dtype),
            "state.*": rate,
            "output.*": lambda t: small / (1 + t),
        }
        if network.state is not None
        and isinstance(network.output, nn.Module)
        and first.startswith("state.")
        and any(n.startswith("output.") for n, _ in names)
        else rate,
    )


def random_problem(
    kind: str, seed: int, steps: int, dtype: torch.dtype = torch.float64, clock: str | None = None
) -> Problem:
    """A network of odd sizes, a stream with uneven τ, missing targets and boundaries; clocks alternate by seed."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    inputs, size, outputs = (int(torch.randint(1, 6, (), generator=generator)) for _ in range(3))
    batch = ((), (1,), (3,))[seed % 3]
    if kind == "tied":
        outputs = size
    network = make_network(kind, inputs, size, outputs, batch).to(dtype)
    hyper = random_hyper(network, generator, clock=clock or ("events", "continuous")[seed % 2])
    # With the original sign the costate equation is unstable forward in time: keep its sequences short.
    length = 10 if hyper.s == -1 else 2
    samples = []
    for _ in range(steps):
        chance = torch.rand(3, generator=generator)
        target = torch.randn(*batch, outputs, generator=generator, dtype=dtype)
        samples.append(
            hl.Sample(
                torch.randn(*batch, inputs, generator=generator, dtype=dtype),
                target if chance[0] > 0.2 else None,
                tau=None if chance[1] > 0.5 else 0.02 + 0.5 * chance[1].item(),
                boundary=bool(chance[2] < 1 / length),
            )
        )
    return Problem(network, nn.functional.mse_loss, hyper, samples)


def random_samples(
    count: int,
    inputs: int = 3,
    outputs: int = 2,
    batch: tuple[int, ...] = (2,),
    *,
    seed: int = 0,
    dtype: torch.dtype | None = None,
    classes: bool = False,
    missing: int = 0,
    length: int = 0,
    uneven: bool = False,
) -> list[hl.Sample]:
    """Noise, always the same of one seed: numbers to fit, or one of `outputs` `classes`.

    One target in `missing` is not known, a sequence ends after `length` samples (0: none), and where the stream is
    `uneven` one sample in four has a τ of its own. A shorter stream is the beginning of a longer one.
    """
    draw = torch.Generator().manual_seed(seed)
    samples = []
    for number in range(1, count + 1):
        u = torch.randn(*batch, inputs, generator=draw, dtype=dtype)
        target = torch.randn(*batch, outputs, generator=draw, dtype=dtype)
        samples.append(
            hl.Sample(
                u,
                None if missing and number % missing == 0 else target.argmax(-1) if classes else target,
                tau=0.6 if uneven and number % 4 == 0 else None,
                boundary=length > 0 and number % length == 0,
            )
        )
    return samples
