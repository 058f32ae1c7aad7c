"""Learners whose checkpoints are mutated: every kind of state, memory and flight that a file may hold."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

import hamlearn as hl
from hamlearn.local import LocalLearner

Learner = hl.Learner | LocalLearner
mse = nn.functional.mse_loss


class Pair(NamedTuple):
    """A state of two parts."""

    fast: torch.Tensor
    slow: torch.Tensor


class PairCell(nn.Module):
    """A recurrent cell whose state is a named tuple, with dropout and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.3)
        self.fast = nn.Linear(5, 2)
        self.slow = nn.Linear(2, 2)

    def initial_state(self, u: Any) -> Pair:
        return Pair(torch.zeros(2, 2), torch.zeros(2, 2))

    def visible(self, h: Pair) -> torch.Tensor:
        return h.fast

    def forward(self, u: Any, h: Pair) -> Pair:
        u = u["x"] if isinstance(u, dict) else u
        fast = torch.tanh(self.fast(torch.cat([self.drop(self.norm(u)), h.fast], -1)))
        return Pair(fast, 0.9 * h.slow + 0.1 * self.slow(fast))


class TreeRate(nn.Module):
    """ḣ of a state that is a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, u: torch.Tensor, h: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"a": torch.tanh(self.linear(u)) - h["a"], "b": h["a"] - h["b"]}


class ReadA(nn.Module):
    """The first part of a dict, scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, u: torch.Tensor, h: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.linear(h["a"])


def _samples(count: int, boundary: int = 1000) -> list[hl.Sample]:
    generator = torch.Generator().manual_seed(1)
    return [
        hl.Sample(
            torch.randn(2, 3, generator=generator),
            torch.randn(2, 2, generator=generator) if k % 3 else None,
            tau=0.5 if k % 4 == 3 else None,
            boundary=k % boundary == boundary - 1,
        )
        for k in range(count)
    ]


def _recurrent(credit: hl.Echo) -> hl.Learner:
    network = hl.Network.recurrent(PairCell(), nn.Linear(2, 2))
    return hl.Learner(network, mse, hl.Hyper(beta=0.05, eta=0.2), order="sequential", credit=credit)


def _tree() -> hl.Learner:
    h0 = {"a": torch.zeros(2, 2), "b": torch.zeros(2, 2)}
    network = hl.Network(TreeRate(), ReadA(), h0=h0)
    return hl.Learner(network, mse, hl.Hyper(tau=0.3, beta=0.05), order="parallel", credit=hl.Forward())


def _plain() -> hl.Learner:
    network = hl.Network.feedforward(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    return hl.Learner(network, mse, hl.Hyper.from_sgd(lr=0.1, momentum=0.5), order="sequential")


def _chain(**setting: Any) -> LocalLearner:
    layers = [nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(3)]
    module = nn.Sequential(*layers, nn.Dropout(0.2), nn.BatchNorm1d(3), nn.Linear(3, 2))
    return LocalLearner(module, mse, hl.Hyper(beta=0.02, eta=0.1), **setting)


MAKERS: dict[str, Callable[[], Learner]] = {
    "joined echo": lambda: _recurrent(hl.Echo()),
    "truncated echo": lambda: _recurrent(hl.Echo(truncate=3, every=2)),
    "tree": _tree,
    "plain": _plain,
    "aligned": lambda: _chain(align=True),
    "unaligned": lambda: _chain(hold=2),
    "delay-free": lambda: _chain(delay_free=True),
}


@dataclass
class Subject:
    """A learner that meets mutated files, and a whole file that another learner of its kind has saved.

    Attributes:
        learner: It has learned something else than the one that saved, and is in the middle of it.
        sample: What it can take next.
    """

    name: str
    learner: Learner
    sample: hl.Sample


def trained(name: str, seed: int, steps: int) -> Learner:
    """A learner of a kind, in mid-sequence."""
    torch.manual_seed(seed)
    learner = MAKERS[name]()
    samples = _samples(steps)
    if name == "joined echo":
        for sample in samples:
            sample.u = {"x": sample.u, "step": 3}
    for _ in learner.run(samples, max_steps=steps - 1):
        pass
    return copy.deepcopy(learner)


def subject(name: str) -> Subject:
    """A learner that will be asked to load."""
    sample = _samples(1)[0]
    if name == "joined echo":
        sample.u = {"x": sample.u, "step": 3}
    return Subject(name, trained(name, seed=5, steps=4), sample)
