"""The system that is integrated: a network, a loss, hyper-parameters, and what a step takes and proposes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from hamlearn._base import trees
from hamlearn._base.slots import Slots
from hamlearn.credit import Cleared, Credit
from hamlearn.errors import ConfigError
from hamlearn.hyper import Hyper
from hamlearn.network import Network
from hamlearn.rates import Overshoot, Rates
from hamlearn.rules.derivatives import Loss, integrate_costate
from hamlearn.rules.drive import OmegaUpdate
from hamlearn.rules.running_cost import RunningCost
from hamlearn.rules.transition import first_state
from hamlearn.rules.velocity import Velocity
from hamlearn.sample import Sample
from hamlearn.state.carry import Carry

LARGE = 1 << 15
"""Numbers of a weight from which on a copy of it costs more than a step should."""


class System:
    """A network, a loss and hyper-parameters, with the learnable weights laid out as flat lists.

    Attributes:
        names: Names of the learnable weights.
        theta: The learnable weights, in the same order.
        large: Whether some weight is so large that weights and costates should move in place.
        velocity: θ̇ = −β⊙ω.
        drive: What enters ω with a loss.
        running_cost: R(u, h, dh, y, theta, t), the part of H that needs no target; `None` where there is none.
        reads_time: Whether a step depends on the time by itself.
    """

    def __init__(
        self, network: Network, loss: Loss, hyper: Hyper, running_cost: RunningCost | None = None
    ) -> None:
        named = [(name, weight) for name, weight in network.named_parameters() if weight.requires_grad]
        _require_learnable(network, named)
        self.network = network
        self.loss = loss
        self.running_cost = running_cost
        self.reads_time = network.reads_time or running_cost is not None
        self.hyper = hyper
        self.slots = Slots(network)
        self.names = [name for name, _ in named]
        self.theta: list[Tensor] = [weight for _, weight in named]
        self.large = any(weight.numel() >= LARGE for weight in self.theta)
        self.velocity = Velocity(hyper.beta, self.names, self.theta)
        self.drive = OmegaUpdate.of(hyper)
        self._kept = hyper.kept, hyper.eta, hyper.tau

    def decay(self, rates: Rates) -> float:
        """What a step leaves of ω: 1 − τη, or the momentum that η was made of, which 1 − τη rounds."""
        kept, eta, tau = self._kept
        if kept is not None and not isinstance(rates.eta, Tensor) and (rates.eta, rates.stride) == (eta, tau):
            return kept
        return 1 - rates.stride * rates.eta

    def by_name(self, theta: list[Tensor]) -> dict[str, Tensor]:
        """Tensors in the place of the weights, as the network names them."""
        return dict(zip(self.names, theta, strict=True))


class UsualRates:
    """The rates of one step after the other; if nothing depends on time, the last ones are kept.

    Args:
        hyper: The hyper-parameters.

    Attributes:
        constant: Whether no rate but β depends on time.
        overshoot: Warns where a step is too long for its dissipation.

    Example:
        >>> usual = UsualRates(Hyper(tau=0.5))
        >>> usual.at(0.0, None, first=False) is usual.at(0.5, None, first=False)
        True
    """

    def __init__(self, hyper: Hyper) -> None:
        self.hyper = hyper
        self.constant = hyper.constant()
        self.overshoot = Overshoot(hyper.clock)
        self._kept: tuple[float | None, bool, Rates] | None = None

    def at(self, t: float, tau: float | None, *, first: bool) -> Rates:
        """The rates of a step at time `t`, `tau` after the one before; `first`: nothing has been learned yet."""
        kept = self._kept
        if kept is not None and kept[0] is tau and kept[1] == first and self.constant:
            return kept[2]
        rates = self.hyper.at(t, tau, first=first)
        self.overshoot.look([rates])
        self._kept = tau, first, rates
        return rates


def _require_learnable(network: nn.Module, named: list[tuple[str, nn.Parameter]]) -> None:
    """Raise `ConfigError` if the network has nothing to learn, or holds its weights in a way that cannot move."""
    for name, module in network.named_modules():
        if isinstance(module, DistributedDataParallel):
            raise ConfigError(
                f"{name!r} is a DistributedDataParallel, which averages gradients in .grad, and a learner keeps "
                "none there: give its .module, and use hl.distributed for several processes"
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise ConfigError(
                f"{name!r} is a scripted module, whose weights cannot be exchanged: give the module it was made of"
            )
    if not named:
        raise ConfigError(
            "the network has no parameter that requires grad, so there is nothing to learn: "
            "call requires_grad_() on those that should"
        )
    for name, weight in named:
        if is_lazy(weight):
            raise ConfigError(f"the parameter {name!r} has no shape yet: call the module on an input first")


class Integration(NamedTuple):
    """ω⁺ = decay·ω + gain·∂H/∂θ, still to be computed, so that large costates can move in place."""

    dH: list[Tensor] | None  # noqa: N815
    decay: float
    gain: float

    def after(self, omega: list[Tensor]) -> list[Tensor]:
        """ω⁺ in memory of its own."""
        return integrate_costate(omega, self.dH, self.decay, self.gain)


@dataclass(slots=True)
class Outcome:
    """What a step proposes; nothing is written before the learner has looked at it.

    The weights follow as θ⁺ = θ − τβ⊙ω⁺, unless `dtheta` or `theta` say otherwise.

    Attributes:
        h: New state.
        z: New costate of the state.
        omega: New costate of the weights; the old one if `integration` is given.
        y: Output.
        loss: L(y, target), if there was a target.
        coupling: ⟨z, f_h⟩ with the costate that the step began with, and the penalty of the weights if H has
            one; `None` stands for 0.
        spec: Structure of h and z.
        dtheta: θ̇; `None` if it is −β⊙ω of the new ω.
        theta: θ⁺, if the order moves the weights itself, as it does if a step has several ticks.
        moves: Whether the weights move at this step.
        learned: Whether a loss enters the move.
        integration: How ω becomes the new one, if the engine is to do that.
        v: What an adaptive β follows from here on.
        E: New sensitivities.
        memory: What else the order remembers from here on, to be found in the next carry of a sequence: a tree of
            tensors and numbers. Steps that remember something are not compiled.

    Example:
        >>> import torch, hamlearn as hl
        >>> omega = [torch.ones(2)]
        >>> hl.Outcome([], [], omega, y=torch.zeros(1), loss=None, coupling=None, learned=False).moves
        True
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
    integration: Integration | None = None
    v: list[Tensor] = field(default_factory=list)
    E: list[Tensor] = field(default_factory=list)
    memory: Any = None

    def complete(self) -> Outcome:
        """The same with the new ω, in memory of its own."""
        if self.integration is not None:
            self.omega, self.integration = self.integration.after(self.omega), None
        return self


@dataclass(slots=True)
class Instant:
    """When a step happens: its sample, time and rates.

    Attributes:
        sample: The sample of the step.
        t: Time before the step.
        rates: τ, η, φ and s of the step.
        first: Whether no loss has entered the weights yet.
        fresh: Whether the sample begins a sequence.
        updates: How many updates a loss has entered before.
    """

    sample: Sample
    t: float
    rates: Rates
    first: bool
    fresh: bool
    updates: int = 0


class Order(ABC):
    """An order of the updates, which is a learning rule: from (carry, instant) to an `Outcome`.

    The learner checks the outcome, moves the weights and reports. A subclass is given as `hl.Learner(order=...)`;
    it must be a pure function of the network, the carry and the sample, which lets the compiled engine record it.
    `self.system` has the `network`, the `loss`, the learnable weights `theta` and their `names`.

    Args:
        system: Network, loss and hyper-parameters.
        credit: What z carries from step to step, as the learner was given it.

    Example:
        >>> import torch, hamlearn as hl
        >>> class SignDescent(hl.Order):
        ...     def propose(self, carry, now):
        ...         with torch.enable_grad():
        ...             y = self.system.network.output_net(now.sample.u, None)
        ...             loss = self.system.loss(y, now.sample.target)
        ...             gradients = torch.autograd.grad(loss, self.system.theta)
        ...         omega = [gradient.sign() for gradient in gradients]
        ...         return hl.Outcome([], [], omega, y.detach(), loss.detach(), coupling=None)
        >>> net = hl.Network.feedforward(torch.nn.Linear(2, 1, bias=False))
        >>> learner = hl.Learner(net, torch.nn.functional.mse_loss, hl.Hyper(beta=0.1), order=SignDescent)
        >>> before = net.output.weight.detach().clone()
        >>> report = learner.step(hl.Sample(torch.ones(1, 2), target=torch.full((1, 1), 9.0)))
        >>> (net.output.weight.detach() - before).round(decimals=3)
        tensor([[0.1000, 0.1000]])
    """

    needs_h: bool = True
    """Whether a step reads the state that it meets."""
    reads_next: bool = True
    """Whether the output is read from the state after the step, as in sequential order."""
    copies: bool = False
    """Whether it works on copies of its samples, so that no state shares memory with them or with an output."""

    def __init__(self, system: System, credit: Credit = Cleared()) -> None:  # noqa: B008 (frozen)
        self.system = system
        self.credit: Any = credit

    @abstractmethod
    def propose(self, carry: Carry, now: Instant) -> Outcome:
        """What the step would change."""

    def start(self, u: Any, h: list[Tensor], spec: trees.Spec) -> list[Tensor]:
        """The state that a sequence begins with, which has the structure of `h`."""
        return first_state(self.system.network.initial_state(u), spec)

    def also_reads(self) -> dict[str, Any]:
        """What steps depend on besides the network, the loss and what is carried, by what to call it."""
        cost = self.system.running_cost
        return {} if cost is None else {"the running cost": cost}

    def first(self, h: list[Tensor], spec: trees.Spec) -> list[Tensor]:
        """The sensitivities of a state that a sequence begins with."""
        return []

    def pending(self, memory: Any) -> int:
        """How many tokens wait for the end of their sequence before anything is learned from them."""
        return 0

    def stored(self, memory: Any) -> int:
        """How many tokens the memory of a carry holds."""
        return 0

    def memory_tree(self, memory: Any) -> Any:
        """The memory of a carry as a tree of tensors and numbers, for checkpoints."""
        return memory

    def memory_of(self, tree: Any) -> Any:
        """The memory that `memory_tree` wrote down."""
        return tree
