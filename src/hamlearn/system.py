"""The system that is integrated: a network, a loss, hyper-parameters, and what a step takes and proposes.

Orders are pure functions from (carry, sample) to an `Outcome`; nothing is written until the learner has looked at
the outcome and accepts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hamlearn import _tree
from hamlearn.errors import ConfigError
from hamlearn.hamiltonian import Loss
from hamlearn.hyper import Hyper
from hamlearn.networks import Network
from hamlearn.velocity import Velocity


class System:
    """A network, a loss and hyper-parameters, with the learnable weights laid out as flat lists."""

    def __init__(self, network: Network, loss: Loss, hyper: Hyper) -> None:
        named = [(name, weight) for name, weight in network.named_parameters() if weight.requires_grad]
        if not named:
            raise ConfigError("the network has no parameter that requires grad: there is nothing to learn")
        self.network = network
        self.loss = loss
        self.hyper = hyper
        self.names = [name for name, _ in named]
        self.theta: list[Tensor] = [weight for _, weight in named]
        self.velocity = Velocity(hyper.beta, self.names, self.theta)
        # Tied weights stand under one name but may serve both nets, hence by identity and not by name.
        self.in_state = self._used_by(network.state)
        self.in_output = self._used_by(network.output)

    def _used_by(self, net: Any) -> list[int]:
        used = {id(weight) for weight in net.parameters()} if isinstance(net, torch.nn.Module) else set()
        return [index for index, weight in enumerate(self.theta) if id(weight) in used]


@dataclass(slots=True)
class Carry:
    """What a step starts from: h and z as flat lists (empty without a state net), and ω."""

    h: list[Tensor]
    z: list[Tensor]
    omega: list[Tensor]
    spec: _tree.Spec


@dataclass(slots=True)
class Outcome:
    """What a step proposes: new h, z and ω, and the slope of θ where it is not −β⊙ω of the new ω."""

    h: list[Tensor]
    z: list[Tensor]
    omega: list[Tensor]
    y: Any
    loss: Tensor | None
    coupling: Tensor | None
    spec: _tree.Spec = None
    dtheta: list[Tensor] | None = None
