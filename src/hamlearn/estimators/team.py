"""The networks that learn side by side: a fixed set that differs in inputs, width, rule and rate.

Each learns by Hamiltonian Learning with τ = η = φ = 1. A costate ω then keeps nothing of itself: it is the
gradient of the row at hand, and needs no memory of its own. The step is written here as one pure function, which
is compiled together with the encoder; the tests compare it with `hl.Learner`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hamlearn.cells import ColumnarGRU
from hamlearn.loops.bound import Tensors

UNITS = 64
"""Units of the recurrent layer."""
KEEP = 0.999
"""What the squares of the gradients keep of themselves (`hl.Adaptive`), with an ε of `EPS`."""
EPS = 1e-8
MEMORY = "memory."
"""Prefix of the weights of the recurrent layer."""


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
        inputs = {"z": "numbers", "c": "values", "q": "bins", "Q": "fine bins", "h": "memory"}[self.reads[0]]
        return f"{net}, {inputs}{' and last target' if self.reads[1:] else ''}, {self.rule} {self.rate:g}"


class RecurrentLayer(nn.Module):
    """A recurrent layer of independent units, with exact credit forward in time (`hl.Sensitivity`).

    Args:
        inputs: What it reads: first and last entry of the encoded row.
        units: Its units.
    """

    def __init__(self, inputs: tuple[int, int], units: int) -> None:
        super().__init__()
        self.inputs, self.cell = inputs, ColumnarGRU(inputs[1] - inputs[0], units)

    def start(self) -> list[Tensor]:
        """The state h and the sensitivities E = ∂h/∂θ, one for each weight, before the first row."""
        return [torch.zeros(self.cell.units), *(torch.zeros_like(weight) for weight in self.cell.parameters())]

    def forward(self, u: Tensor, h: Tensor, *sensitivities: Tensor) -> list[Tensor]:
        """h⁺, and E⁺ = J E + F of each sensitivity that is given."""
        (value,), ((J,),), F = self.cell.local(u[slice(*self.inputs)], [h])
        names = [name for name, _ in self.cell.named_parameters()]
        moved = [_by_unit(J, E) + F[name][0] for name, E in zip(names, sensitivities, strict=False)]
        return [value, *moved]


class Team(nn.Module):
    """Networks side by side over slices of one vector, or of rows; their outputs are stacked, one row each.

    Args:
        members: What they are.
        slices: First and last entry of what each reads; the state of the recurrent layer follows the vector.
        outputs: Of each network.
        seed: Of the first weights.
        memory: What the recurrent layer reads; without it there is none.
        head: Makes the last layer of a network, from its inputs and outputs.

    Attributes:
        carry: All that moves with a row: weights, squares of their gradients, and what the recurrent layer keeps.
        named: The same tensors by name.
    """

    def __init__(
        self,
        members: Sequence[Member],
        slices: Sequence[tuple[int, int]],
        outputs: int,
        seed: int,
        memory: tuple[int, int] | None = None,
        head: Callable[[int, int], nn.Module] = nn.Linear,
    ) -> None:
        super().__init__()
        self.members, self.slices, self.seed = list(members), list(slices), seed
        self.nets = nn.ModuleList(
            _net(member, stop - start, outputs, head)
            for member, (start, stop) in zip(members, self.slices, strict=True)
        )
        self.memory = None if memory is None else RecurrentLayer(memory, UNITS)
        self.requires_grad_(False)
        self.names = [name for name, _ in self.named_parameters()]
        self._owners = {name: self._owner(name) for name in self.names}
        self._squares = [name for name in self.names if self._owners[name].rule == "rms"]
        weights = [weight.detach() for weight in self.parameters()]
        squares = [torch.zeros_like(self.get_parameter(name)) for name in self._squares]
        self.carry = [*weights, *squares, *(self.memory.start() if self.memory else [])]
        past = [name.replace(MEMORY, "past.") for name in self.names if name.startswith(MEMORY)]
        names = [*self.names, *(f"{name}.v" for name in self._squares), *(["past.h", *past] if past else [])]
        self.named = dict(zip(names, self.carry, strict=True))
        for index in range(len(self.members)):
            self.reset(index)

    def forward(self, u: Tensor, h: Tensor | None = None) -> Tensor:
        """Outputs of all members for one vector, or for rows: members × outputs."""
        seen = u if h is None else torch.cat([u, h])
        return torch.stack([net(seen[..., a:b]) for (a, b), net in zip(self.slices, self.nets, strict=True)])

    def answer(self, carry: Tensors, u: Tensor) -> Tensor:
        """Outputs of all members by the weights of a carry, of which h alone is read beside."""
        theta, _, past = self._parts(carry)
        return torch.func.functional_call(self, theta, (u, *self._remember(theta, past[:1], u)))

    def step(
        self, carry: Tensors, u: Tensor, target: Tensor, loss: Callable[[Tensor, Tensor], Tensor]
    ) -> tuple[list[Tensor], Tensor]:
        """The carry after a row: ω = ∂L/∂θ, θ⁺ = θ − β⊙ω. And the outputs from before.

        The members share no weights, so that each has the gradient of its own loss.
        """
        theta, squares, past = self._parts(carry)
        past = self._remember(theta, past, u)

        def cost(theta: dict[str, Tensor], h: list[Tensor]) -> tuple[Tensor, Tensor]:
            y = torch.func.functional_call(self, theta, (u, *h))
            return loss(y, target), y

        (omega, z), y = torch.func.grad(cost, (0, 1), has_aux=True)(theta, past[:1])
        names = [name for name in self.names if name.startswith(MEMORY)]
        omega |= {name: _by_unit(z[0], E) for name, E in zip(names, past[1:], strict=True)}
        squares = {name: KEEP * v + (1 - KEEP) * omega[name].square() for name, v in squares.items()}
        new = []
        for name, weight in theta.items():
            along = omega[name] / (squares[name].sqrt() + EPS) if name in squares else omega[name]
            new.append(weight - self._owners[name].rate * along)
        return [*new, *squares.values(), *past], y

    def sound(self, index: int) -> bool:
        """Whether a member has not diverged: inputs and targets are of size 1, and so are its weights."""
        return all(float(tensor.abs().max()) < 1e4 for name, tensor in self._of(index) if name in self._owners)

    def reset(self, index: int) -> None:
        """The first weights of a member again, drawn as its layers draw them, and nothing remembered."""
        for name, tensor in self._of(index):
            if name not in self._owners:
                tensor.zero_()
                continue
            layer, _, kind = name.rpartition(".")
            # By row, so that a network with more outputs has the same weights for those it shares.
            random = np.random.default_rng([self.seed, *name.encode()])
            tensor.copy_(torch.from_numpy(_first(random, kind, tensor, self.get_submodule(layer))))

    def restart(self, index: int, ranking: Sequence[int]) -> None:
        """Let a member that has diverged begin again: as the best sound one of its shape, else from first weights.

        Args:
            index: Which member.
            ranking: The others that may be copied, best first.
        """
        self.reset(index)
        shape = lambda other: self.members[other]._replace(rule="", rate=0.0)  # noqa: E731
        best = next((other for other in ranking if shape(other) == shape(index) and self.sound(other)), None)
        if best is None or self.members[index].reads == "h":
            return
        of_best = dict(self._of(best))
        for name, tensor in self._of(index):
            model = of_best.get(name.replace(f"nets.{index}.", f"nets.{best}.", 1))
            if model is not None:
                tensor.copy_(model)

    def _parts(self, carry: Tensors) -> tuple[dict[str, Tensor], dict[str, Tensor], list[Tensor]]:
        """Weights and squares by name, and what the recurrent layer keeps."""
        first, second = len(self.names), len(self.names) + len(self._squares)
        theta = dict(zip(self.names, carry[:first], strict=True))
        return theta, dict(zip(self._squares, carry[first:second], strict=True)), list(carry[second:])

    def _remember(self, theta: dict[str, Tensor], past: list[Tensor], u: Tensor) -> list[Tensor]:
        if self.memory is None:
            return []
        own = {name.removeprefix(MEMORY): weight for name, weight in theta.items() if name.startswith(MEMORY)}
        found: list[Tensor] = torch.func.functional_call(self.memory, own, (u, *past))
        return found

    def _owner(self, name: str) -> Member:
        """The member that a weight belongs to: the recurrent layer belongs to the one that reads it."""
        if name.startswith(MEMORY):
            return next(member for member in self.members if member.reads == "h")
        return self.members[int(name.split(".")[1])]

    def _of(self, index: int) -> Iterator[tuple[str, Tensor]]:
        """What belongs to a member, by name: weights, then squares, then what it remembers."""
        prefixes = [f"nets.{index}."]
        if self.members[index].reads == "h":
            prefixes += [MEMORY, "past."]
        return ((name, tensor) for name, tensor in self.named.items() if name.startswith(tuple(prefixes)))


def _net(member: Member, inputs: int, outputs: int, head: Callable[[int, int], nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in member.widths:
        layers += [nn.Linear(inputs, width), nn.ReLU() if member.act == "relu" else nn.Tanh()]
        inputs = width
    return nn.Sequential(*layers, head(inputs, outputs))


def _first(random: np.random.Generator, kind: str, like: Tensor, layer: nn.Module) -> np.ndarray:
    """First weights as `nn.Linear` and `ColumnarGRU` draw them."""
    shape = tuple(like.shape)
    if kind == "bias_update":
        return -np.log(random.uniform(1, 10, shape))
    inputs = layer.input_size if isinstance(layer, ColumnarGRU) else layer.in_features
    alone = isinstance(layer, ColumnarGRU) and like.dim() == 1
    bound = 1.0 if alone else float(inputs) ** -0.5  # type: ignore[arg-type]
    return random.uniform(-bound, bound, shape)


def _by_unit(along: Tensor, tensor: Tensor) -> Tensor:
    """A number for each unit times what belongs to it."""
    return along.reshape(-1, *[1] * (tensor.dim() - 1)) * tensor
