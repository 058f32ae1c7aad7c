"""The networks that learn side by side: a fixed set that differs in inputs, width, rule and rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hamlearn.adaptive import Adaptive
from hamlearn.engine.blocks.direct import DirectLoop
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner
from hamlearn.network import Network


class Member(NamedTuple):
    """A network of the team.

    Attributes:
        reads: What of the encoded row it reads, as `Layout.slice` says.
        widths: Of its hidden layers.
        rule: `sgd` or `rms`.
        rate: Its learning rate.
        act: Its activation.
    """

    reads: str
    widths: tuple[int, ...]
    rule: str
    rate: float
    act: str = "relu"

    @property
    def name(self) -> str:
        """For people."""
        net = "×".join(map(str, self.widths)) or "linear"
        inputs = {"z": "numbers", "c": "values", "q": "bins", "Q": "fine bins"}[self.reads[0]]
        return f"{net}, {inputs}{' and last target' if self.reads[1:] else ''}, {self.rule} {self.rate:g}"


class Team(nn.Module):
    """Networks side by side over slices of one vector, or of rows; their outputs are stacked, one row each.

    Args:
        members: What they are.
        slices: First and last entry of what each reads.
        outputs: Of each network.
        seed: Of the first weights.
        mask: A number that is added to an output that is not in use yet.
        head: Makes the last layer of a network, from its inputs and outputs.
    """

    def __init__(
        self,
        members: Sequence[Member],
        slices: Sequence[tuple[int, int]],
        outputs: int,
        seed: int,
        mask: float = 0.0,
        head: Callable[[int, int], nn.Module] = nn.Linear,
    ) -> None:
        super().__init__()
        self.members, self.slices, self.seed = list(members), list(slices), seed
        self.nets = nn.ModuleList()
        self.mask: Tensor
        self.register_buffer("mask", torch.full((outputs,), mask))
        for member, (start, stop) in zip(members, self.slices, strict=True):
            layers: list[nn.Module] = []
            size = stop - start
            for width in member.widths:
                layers += [nn.Linear(size, width), nn.ReLU() if member.act == "relu" else nn.Tanh()]
                size = width
            self.nets.append(nn.Sequential(*layers, head(size, outputs)))
        for index in range(len(self.nets)):
            self.reset(index)

    def reset(self, index: int) -> None:
        """The first weights of a member again, drawn as `nn.Linear` draws them."""
        for place, layer in enumerate(self.nets[index].children()):
            for kind, tensor in enumerate(layer.parameters()):
                # By row, so that a network with more outputs has the same weights for those it shares.
                random = np.random.default_rng([self.seed, index, place, kind])
                bound = float(layer.in_features) ** -0.5  # type: ignore[arg-type]
                drawn = random.uniform(-bound, bound, tuple(tensor.shape))
                tensor.data.copy_(torch.from_numpy(drawn))

    def forward(self, u: Tensor) -> Tensor:
        """Outputs of all members for one vector: members × outputs."""
        outputs = [net(u[..., a:b]) for (a, b), net in zip(self.slices, self.nets, strict=True)]
        return torch.stack(outputs) + self.mask


def learner_of(team: Team, loss: Callable[..., Tensor]) -> Learner:
    """The learner of a team whose members have one rule; each has its own rate."""
    rates = {f"*nets.{index}.*": member.rate for index, member in enumerate(team.members)}
    beta = rates if team.members[0].rule == "sgd" else Adaptive(rates, keep=0.999)
    hyper = Hyper(eta=1.0, phi=1.0, beta=beta)
    # A member that diverges is found and reset by the estimator: it must not stop the others.
    return Learner(Network.feedforward(team), loss, hyper, on_nonfinite="ignore")


def moving(team: Team, loop: DirectLoop) -> dict[str, Tensor]:
    """Weights, costates and what an adaptive β follows, by name; these are the tensors themselves."""
    names, carry = [name for name, _ in team.named_parameters()], loop.carry
    found = {name: weight.detach() for name, weight in team.named_parameters()}
    for kind, part in (("omega", carry.omega), ("v", carry.v)):
        found |= {f"{name}.{kind}": tensor for name, tensor in zip(names, part, strict=False)}
    return found


def restart(team: Team, loop: DirectLoop, member: int) -> None:
    """First weights for a member that has diverged."""
    team.reset(member)
    for name, tensor in moving(team, loop).items():
        if name.startswith(f"nets.{member}.") and name.endswith((".omega", ".v")):
            tensor.zero_()


def sound(net: nn.Module) -> bool:
    """Whether a network has not diverged: inputs and targets are of size 1, and so are its weights."""
    return all(float(weight.abs().max()) < 1e4 for weight in net.parameters())
