"""What a learner is made of: parts that are fixed when it is made."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from hamlearn._base import trees
from hamlearn._base.replay import Buffers, devices_of
from hamlearn.engine.recorded import Watch
from hamlearn.engine.setting import Choices, make_order, require_gradients
from hamlearn.errors import SampleError
from hamlearn.hyper import Hyper
from hamlearn.network import Network
from hamlearn.rules.derivatives import Loss
from hamlearn.rules.running_cost import RunningCost
from hamlearn.rules.system import System, UsualRates
from hamlearn.state.carry import Carry
from hamlearn.state.labels import Waiting


class LearnerState(NamedTuple):
    """All that moves from one sample to the next, replaced in one stroke and never written to.

    Weights and buffers live in the network, and the place in the stream in the reader.

    Attributes:
        carry: h, z, ω, and what goes with them.
        t: Time.
        updates: Number of updates that a loss has entered.
        fresh: Whether the next sample begins a sequence.
        waiting: Samples that wait for their labels.
        drawn: Where the counter of random numbers stands that compiled steps draw.
    """

    carry: Carry
    t: float
    updates: int
    fresh: bool
    waiting: Waiting
    drawn: int = 0


class LearnerParts:
    """What a learner is made of, the same from its first sample to its last.

    Args:
        network: State net and output net.
        loss: L(y, target).
        hyper: τ, η, β, φ and s.
        choices: How to integrate.
        running_cost: R of H, or `None`.

    Attributes:
        system: Network, loss and hyper-parameters, with the weights as a list.
        order: The order of the updates.
        stateful: Whether there is a state net.
        usual: τ, η, φ and s of a step.
        buffers: The buffers of the network.
        devices: GPUs that hold weights.
        watch: What a compiled step looks at for values that are not finite.
    """

    def __init__(
        self,
        network: Network,
        loss: Loss,
        hyper: Hyper,
        choices: Choices,
        running_cost: RunningCost | None = None,
    ) -> None:
        self.network, self.hyper, self.choices = network, hyper, choices
        self.system = System(network, loss, hyper, running_cost)
        self.order = make_order(self.system, choices)
        self.stateful = network.state is not None
        self.usual = UsualRates(hyper)
        self.buffers = Buffers(network.modules())
        self.devices = devices_of(network.parameters())
        self.watch: Watch = "nothing" if choices.on_nonfinite == "ignore" else "state"

    @property
    def timed(self) -> bool:
        """Whether a rate, β, or the step itself depends on time."""
        return not self.usual.constant or self.system.velocity.scheduled or self.system.reads_time

    def first_state(self, late: int) -> LearnerState:
        """Before the first sample: ω is zero, and `late` samples may wait for their labels."""
        omega = [torch.zeros_like(weight, requires_grad=False) for weight in self.system.theta]
        v = [torch.zeros_like(leaf) for leaf in omega] if self.system.velocity.adaptive is not None else []
        return LearnerState(Carry([], [], omega, None, v=v), 0.0, 0, True, Waiting(late))

    def restarted(self, carry: Carry, u: Any) -> Carry:
        """The same at the start of a sequence, with the state that the network has for the input `u`."""
        if not self.stateful:
            return carry
        first = self.network.initial_state(u)
        h, spec = trees.flatten(trees.copied(first))
        if not all(leaf.is_floating_point() or leaf.is_complex() for leaf in h):
            raise SampleError(
                f"the first state is {trees.describe(first)}, and a state of whole numbers or booleans has no "
                "costate: make that part a floating-point tensor, or a buffer of the network"
            )
        return carry.restarted(h, spec, self.order.first(h, spec))

    def met(self, state: LearnerState, u: Any) -> Carry:
        """What the sample with the input `u` meets: h0, if it begins a sequence or no state is there yet."""
        carry = state.carry
        if not self.stateful or (carry.h and not state.fresh):
            return carry
        start = self.restarted(carry, u)
        if carry.z and not state.fresh:
            start.z = carry.z
        return start

    def check_network(self) -> None:
        """Raise if the network is not the one that the learner was made with, or nothing can be learned."""
        require_gradients()
        self.system.slots.require_same()
