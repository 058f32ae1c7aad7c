"""What the ranks of the tests do: the same small problems that `LocalLearner` gets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

import hamlearn as hl
from benchmarks._faults import fill_disk, strike
from hamlearn.distributed import PipelineLearner
from hamlearn.errors import RankError
from hamlearn.local import Graph, LocalLearner
from tests.problems import random_samples

mse = nn.functional.mse_loss
SIZES = (3, 5, 4, 5, 4, 4, 2)
SETTINGS: dict[str, dict[str, Any]] = {
    "parallel": {},
    "sequential": {"order": "sequential"},
    "held": {"hold": 4},
}


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(SIZES)))


def hyper() -> hl.Hyper:
    return hl.Hyper(tau=0.5, eta=0.6, beta={"0.*": 0.02, "*": lambda t: 0.03 / (1 + t)}, eta_z=0.1, phi_first=0.5)


def stream(count: int, seed: int = 1) -> list[hl.Sample]:
    """Targets are missing now and then, gaps vary, and sequences end."""
    samples = random_samples(count, seed=seed, missing=5, length=7, uneven=True)
    samples[-1].boundary = True
    return samples


def facts(learner: LocalLearner | PipelineLearner) -> dict[str, Any]:
    """Everything that must not depend on how many processes there are, of the nodes that are here."""
    state = learner.state
    own = set(state.omega)
    return {
        "t": state.t,
        "h": state.h or {},
        "z": state.z or {},
        "omega": state.omega,
        "theta": {n: w.detach().clone() for n, w in learner.module.named_parameters() if n in own},
    }


def told(report: hl.StepReport) -> tuple[float, Any, Any]:
    return report.t, report.y, report.loss


def local(setting: str, count: int, groups: int) -> tuple[list[Any], dict[str, Any]]:
    learner = LocalLearner(net(), mse, hyper(), groups=groups, align=True, stacked=False, **SETTINGS[setting])
    samples = stream(count)
    reports = [told(r) for r in learner.run(samples[: count // 2], max_steps=count // 2)]
    reports += [told(learner.step(sample)) for sample in samples[count // 2 : -3]]
    before = facts(learner)
    reports += [told(r) for r in learner.run(samples[-3:])]
    return [reports, before], facts(learner)


def pipeline(setting: str, count: int, groups: int) -> tuple[list[Any], dict[str, Any]]:
    learner = PipelineLearner(net(), mse, hyper(), groups=groups, timeout=20, **SETTINGS[setting])
    ends = learner.rank in (0, learner.ranks - 1)
    samples = stream(count)
    shown = [
        hl.Sample(
            s.u if learner.rank == 0 else None,
            s.target if learner.rank == learner.ranks - 1 else None,
            s.tau,
            s.boundary,
        )
        for s in samples
    ]
    first = shown[: count // 2] if ends else None
    reports = [told(r) for r in learner.run(first, max_steps=count // 2)]
    reports += [told(learner.step(sample if ends else None)) for sample in shown[count // 2 : -3]]
    before = facts(learner)
    reports += [told(r) for r in learner.run(shown[-3:] if ends else None)]
    return [reports, before], facts(learner)


def all_settings(count: int, groups: int) -> dict[str, Any]:
    return {setting: pipeline(setting, count, groups) for setting in SETTINGS}


def saved(setting: str, groups: int, folder: str) -> dict[str, Any]:
    """Thirty samples, a checkpoint in the middle of a sequence, and seven more; what is then."""
    learner = PipelineLearner(net(), mse, hyper(), groups=groups, timeout=20, **SETTINGS[setting])
    list(learner.run(stream(37), max_steps=30, save_to=folder, save_every=10))
    list(learner.run(stream(37), resume=True))
    return facts(learner)


def resumed(setting: str, groups: int, folder: str) -> dict[str, Any]:
    """The same from the checkpoint on, in a learner with other weights."""
    learner = PipelineLearner(net(5), mse, hyper(), groups=groups, timeout=20, **SETTINGS[setting])
    assert learner.resume(folder)
    assert learner.position == 30
    list(learner.run(stream(37), resume=True))
    return facts(learner)


def saved_and_resumed(groups: int, folder: str, write: bool) -> dict[str, Any]:
    work = saved if write else resumed
    return {setting: work(setting, groups, f"{folder}/{setting}") for setting in RESUMED}


RESUMED = ("parallel", "sequential")


def struck(kind: str, victim: int, folder: str) -> None:
    """An endless run that a fault ends on one rank, which must be the end of it on all of them."""
    learner = PipelineLearner(net(), mse, hyper(), timeout=4)

    def attacked() -> Iterator[hl.Sample]:
        for k, sample in enumerate(itertools.cycle(stream(35))):
            if k == 22 and learner.rank == victim:
                strike(kind)
            yield sample

    try:
        for _ in learner.run(attacked() if learner.rank != 1 else None, save_to=folder, save_every=10):
            pass
    except BaseException:
        fill_disk()
        with pytest.raises(RankError, match="has failed before"):
            learner.step(stream(1)[0])
        raise


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.linear(a + b).tanh()


def skipping() -> Graph:
    """Rank 1 of two reads the state at its border twice, at different depths; so does a node within rank 0."""
    torch.manual_seed(0)
    nodes = {name: nn.Linear(3, 3) for name in ("a", "b", "d")} | {name: Sum() for name in "cef"}
    edges = [(edge[0], edge[1]) for edge in ("ua", "ab", "bc", "ac", "cd", "de", "ce", "ef", "df")]
    return Graph(nodes, edges).double()


def skipped(alone: bool) -> dict[str, Any]:
    rates = hl.Hyper(tau=0.5, eta=0.6, beta=0.03, eta_z=lambda t: 0.3 / (1 + t), clock="continuous")
    learner: LocalLearner | PipelineLearner
    if alone:
        learner = LocalLearner(skipping(), mse, rates, align=True, stacked=False)
    else:
        learner = PipelineLearner(skipping(), mse, rates, groups=6, timeout=20)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(83, 2, 3, dtype=torch.float64, generator=generator)
    targets = [None if k % 5 == 3 else u.sin() for k, u in enumerate(drawn)]
    samples = zip(drawn, targets, itertools.cycle([0.4, 0.7]), strict=False)
    list(learner.run([hl.Sample(*sample) for sample in samples]))
    return facts(learner)


class Turned(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(3, width, dtype=torch.complex128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.conj() @ self.weight).tanh()


class Real(Turned):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight).real


def turned(alone: bool) -> dict[str, Any]:
    """States of complex numbers cross the border, and batches change their size."""
    torch.manual_seed(0)
    net = nn.Sequential(Turned(3), Real(2))
    sizes = [1 + k % 3 for k in range(30)]
    samples = [hl.Sample(torch.randn(n, 3, dtype=torch.complex128), torch.ones(n, 2).double()) for n in sizes]
    learner: LocalLearner | PipelineLearner
    if alone:
        learner = LocalLearner(net, mse, hl.Hyper(eta_z=0.2), align=True, stacked=False)
    else:
        learner = PipelineLearner(net, mse, hl.Hyper(eta_z=0.2), timeout=20)
    list(learner.run(samples))
    return facts(learner)
