"""The system that is integrated: a network, a loss, hyper-parameters, and what a step takes and proposes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from hamlearn._base import trees
from hamlearn._base.claims import Tensors
from hamlearn._base.slots import Slots
from hamlearn.errors import ConfigError
from hamlearn.hyper import Hyper
from hamlearn.network import Network
from hamlearn.rates import Rates
from hamlearn.sample import Sample
from hamlearn.state.carry import Carry
from hamlearn.theory.derivatives import Loss, integrate_costate
from hamlearn.theory.drive import Drive
from hamlearn.theory.slopes import WIDE
from hamlearn.theory.transition import first_state
from hamlearn.theory.velocity import Velocity

LARGE = 1 << 15
"""From this many entries on, passing over a weight costs more than asking whether it can overflow."""


class System:
    """A network, a loss and hyper-parameters, with the learnable weights laid out as flat lists."""

    def __init__(self, network: Network, loss: Loss, hyper: Hyper) -> None:
        named = [(name, weight) for name, weight in network.named_parameters() if weight.requires_grad]
        if not named:
            raise ConfigError(
                "the network has no parameter that requires grad, so there is nothing to learn: "
                "call requires_grad_() on those that should"
            )
        for name, weight in named:
            if is_lazy(weight):
                raise ConfigError(f"the parameter {name!r} has no shape yet: call the module on an input first")
            if any(size > 1 and not stride for size, stride in zip(weight.shape, weight.stride(), strict=True)):
                raise ConfigError(
                    f"the parameter {name!r} is an expanded tensor, one number in several places, which cannot "
                    "move: make it of a clone()"
                )
        self.network = network
        self.loss = loss
        self.hyper = hyper
        self.slots = Slots(network)
        self.names = [name for name, _ in named]
        self.theta: list[Tensor] = [weight for _, weight in named]
        # Weights that are views of one memory may share its version as well, by which late moves keep count.
        memories = Counter(weight.untyped_storage().data_ptr() for weight in self.theta)
        self.large = [
            index
            for index, weight in enumerate(self.theta)
            if weight.numel() >= LARGE and memories[weight.untyped_storage().data_ptr()] == 1
        ]
        self.wide = [index for index in self.large if _is_wide(self.theta[index])]
        self.small = [index for index in range(len(self.theta)) if index not in self.large]
        self.velocity = Velocity(hyper.beta, self.names, self.theta)
        self.drive = Drive.of(hyper)
        # Tied weights stand under one name but may serve both nets, hence by identity and not by name.
        self.in_state = self._used_by(network.state)
        self.in_output = self._used_by(network.output)
        if network.shows_through_state:
            self.in_output = sorted({*self.in_output, *self.in_state})

    def by_name(self, theta: list[Tensor]) -> dict[str, Tensor]:
        """Tensors in the place of the weights, as the network names them."""
        return dict(zip(self.names, theta, strict=True))

    def _used_by(self, net: Any) -> list[int]:
        used = {id(weight) for weight in net.parameters()} if isinstance(net, torch.nn.Module) else set()
        return [index for index, weight in enumerate(self.theta) if id(weight) in used]


def _is_wide(weight: Tensor) -> bool:
    return weight.numel() >= WIDE and weight.is_cpu and weight.dtype in (torch.float32, torch.float64)


class Pending(NamedTuple):
    """A large costate that waits: ω⁺ = decay·ω + gain·∂H/∂θ, to be done in place once nothing can be refused."""

    grad: Tensor | None
    decay: float
    gain: float

    def after(self, omega: Tensor) -> Tensor:
        """ω⁺, in memory of its own."""
        return integrate_costate([omega], None if self.grad is None else [self.grad], self.decay, self.gain)[0]


@dataclass(slots=True)
class Outcome:
    """What a step proposes.

    Attributes:
        h: New state.
        z: New costate of the state.
        omega: New costate of the weights.
        y: Output.
        loss: L(y, target), if there was a target.
        coupling: ⟨z, f_h⟩ with the costate that the step began with, and the penalty of the weights where H has
            one; `None` stands for 0.
        spec: Structure of h and z.
        dtheta: θ̇; `None` where it is −β⊙ω of the new ω.
        theta: θ⁺, where the order moves the weights itself, as it does if a step has several ticks.
        moves: Whether the weights move at this step.
        learned: Whether a loss enters the move.
        own: Whether the memory of the new ω was made for it alone.
        pending: By index, what costates that are still the old ones have to take in.
        sizes: By index, what the norm of a pending gradient is at most, or of ω where nothing is pending; only of
            weights of which that is known.
        v: What an adaptive β follows from here on.
        E: New sensitivities.
    """

    h: list[Tensor]
    z: list[Tensor]
    omega: list[Tensor]
    y: Any
    loss: Tensor | None
    coupling: Tensor | None
    spec: trees.Spec = None
    dtheta: list[Tensor] | None = None
    theta: list[Tensor] | None = None
    moves: bool = True
    learned: bool = True
    own: bool = False
    pending: dict[int, Pending] = field(default_factory=dict)
    sizes: dict[int, float] = field(default_factory=dict)
    v: list[Tensor] = field(default_factory=list)
    E: list[Tensor] = field(default_factory=list)


@dataclass(slots=True)
class Instant:
    """When a step happens: its sample, time, rates, and whether no loss has entered the weights yet.

    Attributes:
        updates: How many updates a loss has entered before.
    """

    sample: Sample
    t: float
    rates: Rates
    first: bool
    fresh: bool
    updates: int = 0


class Order(ABC):
    """An order of the updates: from (carry, instant) to an `Outcome`, with nothing written.

    The learner looks at the outcome and, if it accepts it, moves the weights and calls `accept`.
    """

    needs_h = True

    def __init__(self, system: System) -> None:
        self.system = system

    @abstractmethod
    def propose(self, carry: Carry, now: Instant) -> Outcome:
        """What the step would change."""

    def start(self, u: Any, h: list[Tensor], spec: trees.Spec) -> list[Tensor]:
        """The state that a sequence begins with, which has the structure of `h`."""
        return first_state(self.system.network.initial_state(u), spec)

    def also_reads(self) -> dict[str, Any]:
        """What steps depend on besides the network, the loss and what is carried, by what to call it."""
        return {}

    def first(self, h: list[Tensor], spec: trees.Spec) -> list[Tensor]:
        """The sensitivities of a state that a sequence begins with."""
        return []

    def accept(self) -> None:
        """Keep what the last proposal adds to the order's own memory, if it has one."""

    def forget(self) -> None:
        """Drop the order's own memory, if it has one."""

    def stored(self) -> int:
        """How many tokens the order's own memory holds."""
        return 0

    def pending(self) -> int:
        """How many tokens wait for the end of their sequence before anything is learned from them."""
        return 0

    def state(self) -> tuple[dict[str, Tensor], Any]:
        """The order's own memory as tensors and JSON."""
        return {}, None

    def load_state(self, tensors: Tensors, described: Any, carry: Carry) -> None:
        """Take back what `state` told, to go on from `carry`; `ValueError` where it cannot have told this."""
        tensors.done()
        if described is not None:
            raise ValueError("it holds stored tokens, and this learner stores none")
