"""Hamiltonian Learning and `torch.optim.SGD` from one start on one stream, and how far apart they end."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hamlearn.credit import Cleared
from hamlearn.experiments.models import Implementation
from hamlearn.experiments.scenarios import Scenario
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner
from hamlearn.network import Network
from hamlearn.sample import Sample

CROSS_ENTROPY = nn.functional.cross_entropy
Data = Sequence[tuple[Tensor, Tensor]]
"""Pairs of input and target, in the order in which every epoch shows them."""


@dataclass(frozen=True)
class Run:
    """Curves of one training run, a value per step, and the weights at its end, by name."""

    loss: Tensor
    correct: Tensor
    weights: Mapping[str, Tensor]

    def epoch_means(self, epochs: int) -> tuple[list[float], list[float]]:
        """Mean loss and accuracy of each epoch."""
        loss, correct = (curve.double().view(epochs, -1).mean(1) for curve in (self.loss, self.correct))
        return loss.tolist(), correct.tolist()


@dataclass(frozen=True)
class Difference:
    """|Δθ| between two runs, over all weights."""

    mean: float
    min: float
    max: float

    @classmethod
    def between(cls, one: Run, other: Run) -> Difference:
        """Mean, least and greatest |Δθ|.

        Example:
            >>> zero = torch.zeros(2)
            >>> one, other = (Run(zero, zero, {"w": torch.tensor([0.0, w])}) for w in (1.0, 3.0))
            >>> Difference.between(one, other)
            Difference(mean=1.0, min=0.0, max=2.0)
        """
        if one.weights.keys() != other.weights.keys():
            raise ValueError(f"runs of different models: {list(one.weights)} and {list(other.weights)}")
        gaps = torch.cat([(weight - other.weights[name]).abs().flatten() for name, weight in one.weights.items()])
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
    return _finish(module, losses, correct)


def train_hl(
    module: nn.Module, data: Data, epochs: int, scenario: Scenario, implementation: Implementation
) -> Run:
    """The same as a stream, learned in sequential order."""
    module = copy.deepcopy(module)
    hyper = Hyper.from_sgd(**scenario.sgd, tau=scenario.tau)
    losses: list[Any] = []
    correct = []
    stream = (Sample(u, target) for _ in range(epochs) for u, target in data)
    for report in learner(module, hyper, implementation).run(stream):
        losses.append(report.loss)
        correct.append(report.y.argmax(-1) == report.sample.target)
    return _finish(module, losses, correct)


def learner(module: nn.Module, hyper: Hyper, implementation: Implementation) -> Learner:
    """A learner of `module` that follows gradient learning.

    Args:
        module: Its weights are learned in place. To be split (`"state/output"`) it is a sequence of two: the
            first is the state net, the second the output net.
        hyper: As `Hyper.from_sgd` gives it.
        implementation: Which role the module plays.
    """
    if implementation == "state/output":
        assert isinstance(module, nn.Sequential)
        network = Network.feedforward(module[0], role="state", readout=module[1])
    else:
        network = Network.feedforward(module, role=implementation)
    return Learner(network, CROSS_ENTROPY, hyper, order="sequential", credit=Cleared(), reset_h="sample")


def _finish(module: nn.Module, losses: list[Tensor], correct: list[Tensor]) -> Run:
    weights = {name: weight.detach() for name, weight in module.named_parameters()}
    return Run(torch.stack(losses), torch.cat(correct), weights)
