"""Hamiltonian Learning and `torch.optim.SGD` from one start on one stream, and how far apart they end."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from hamlearn.credit import Cleared
from hamlearn.experiments.scenarios import Scenario
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner
from hamlearn.networks import Network
from hamlearn.state import Sample

CROSS_ENTROPY = nn.functional.cross_entropy
Data = Sequence[tuple[Tensor, Tensor]]
Role = Literal["output", "state"]


@dataclass(frozen=True)
class Run:
    """Curves of one training run, a value per step, and the weights at its end."""

    loss: Tensor
    correct: Tensor
    weights: list[Tensor]

    def epoch_means(self, samples: int) -> tuple[Tensor, Tensor]:
        """Mean loss and accuracy of each epoch."""
        return self.loss.view(-1, samples).mean(1), self.correct.double().view(-1, samples).mean(1)


@dataclass(frozen=True)
class Difference:
    """|Δθ| between two runs, over all weights."""

    mean: float
    min: float
    max: float

    @classmethod
    def between(cls, one: Run, other: Run) -> Difference:
        """Mean, least and greatest |Δθ|."""
        gaps = torch.cat([(a - b).abs().flatten() for a, b in zip(one.weights, other.weights, strict=True)])
        return cls(gaps.mean().item(), gaps.min().item(), gaps.max().item())


def train_sgd(module: nn.Module, data: Data, epochs: int, scenario: Scenario) -> Run:
    """An ordinary training loop, one sample at a time."""
    module = copy.deepcopy(module)
    optimizer = scenario.optimizer(module)
    losses, correct = [], []
    for _ in range(epochs):
        for u, target in data:
            optimizer.zero_grad()
            y = module(u)
            loss = CROSS_ENTROPY(y, target)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            correct.append(y.detach().argmax(-1) == target)
    return Run(torch.stack(losses), torch.cat(correct), [p.detach() for p in module.parameters()])


def train_hl(module: nn.Module, data: Data, epochs: int, scenario: Scenario, role: Role) -> Run:
    """The same as a stream, learned in sequential order with a cleared costate."""
    network = Network.feedforward(copy.deepcopy(module), role=role)
    learner = Learner(
        network,
        CROSS_ENTROPY,
        Hyper.from_sgd(**scenario.sgd, tau=scenario.tau),
        order="sequential",
        credit=Cleared(),
        reset_h="sample",
    )
    losses, correct = [], []
    for _ in range(epochs):
        for report in learner.run(Sample(u, target) for u, target in data):
            assert report.loss is not None
            losses.append(report.loss)
            correct.append(report.y.argmax(-1) == report.sample.target)
    return Run(torch.stack(losses), torch.cat(correct), [p.detach() for p in network.parameters()])


def compare(
    module: nn.Module,
    data: Data,
    epochs: int,
    scenario: Scenario,
    roles: Sequence[Role] = ("output", "state"),
    on_run: Callable[[str], None] = lambda _: None,
) -> dict[str, Run]:
    """SGD, and Hamiltonian Learning in each role, from the same start; `on_run` hears of each finished run."""
    runs = {"SGD": train_sgd(module, data, epochs, scenario)}
    on_run("SGD")
    for role in roles:
        runs[role] = train_hl(module, data, epochs, scenario, role)
        on_run(role)
    return runs
