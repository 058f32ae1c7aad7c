"""The paper's four settings of gradient learning (Appendix D)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Scenario:
    """A setting of SGD, and the time step τ at which Hamiltonian Learning follows it.

    Example:
        >>> SCENARIOS["Mom-b"].sgd
        {'lr': 0.01, 'momentum': 0.1, 'dampening': 0.5}
    """

    name: str
    lr: float
    momentum: float
    dampening: float
    tau: float

    @property
    def sgd(self) -> dict[str, float]:
        """Arguments for `torch.optim.SGD` and for `Hyper.from_sgd`."""
        return {"lr": self.lr, "momentum": self.momentum, "dampening": self.dampening}

    def optimizer(self, module: nn.Module) -> torch.optim.SGD:
        """PyTorch's optimizer with this setting."""
        return torch.optim.SGD(module.parameters(), lr=self.lr, momentum=self.momentum, dampening=self.dampening)


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("GD-a", lr=0.01, momentum=0.0, dampening=0.0, tau=1.0),
        Scenario("GD-b", lr=0.001, momentum=0.0, dampening=0.0, tau=0.5),
        Scenario("Mom-a", lr=0.01, momentum=0.05, dampening=0.6, tau=1.0),
        Scenario("Mom-b", lr=0.01, momentum=0.1, dampening=0.5, tau=0.5),
    )
}
