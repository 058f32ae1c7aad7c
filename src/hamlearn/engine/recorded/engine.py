"""Whole stretches of a stream in one call: steps that are recorded once and run as a loop."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn.engine.recorded.device_cache import DeviceCache
from hamlearn.engine.recorded.eager_reference import ReferenceStep
from hamlearn.engine.recorded.recorder import LoopInputs, Recorder
from hamlearn.engine.recorded.trace import OrderStep, Variant, Watch
from hamlearn.rules.system import Order
from hamlearn.state.carry import Carry
from hamlearn.streams.blocks import Block


@dataclass(frozen=True)
class Pace:
    """Rates and β of each step of a block, as the recorded step takes them.

    Attributes:
        rates: τ, stride, η, η_z and φ, one row per step; φ is 0 where a sample has no target.
        betas: β of each weight: one row per step where `varying`, else once.
        varying: Whether β depends on time.
        drive: Weight decay, and the moments of an adaptive β, one row per step; empty where there is neither.
    """

    rates: list[Tensor]
    betas: list[Tensor]
    varying: bool
    drive: list[Tensor]


@dataclass
class BlockResult:
    """What a block of steps led to.

    Attributes:
        carry: h, z and ω at the end; the weights and buffers have changed in place.
        y: Leaves of the outputs, one row per step.
        y_spec: Structure of an output.
        loss: Losses, one per step.
        coupling: ⟨z, f_h⟩, one per step.
        mark: How many entries of state and costates are not finite, for each step.
    """

    carry: Carry
    y: list[Tensor]
    y_spec: trees.Spec
    loss: Tensor | None
    coupling: Tensor | None
    mark: Tensor | None


class Engine(Recorder):
    """Runs an order over blocks of samples.

    Args:
        order: Sequential or parallel.
        reset_each: Whether h starts from h0 at every sample.
        carries: Whether z is carried from step to step.
        lanes: Number of members in a group of a population, as for `Recorder`.
        own: Whether each member has samples of its own.
    """

    def __init__(self, order: Order, reset_each: bool, carries: bool, lanes: int = 1, own: bool = False) -> None:
        super().__init__(order, lanes, own)
        self.reset_each, self.carries = reset_each, carries
        self._bring = DeviceCache()

    def run(
        self,
        theta: list[Tensor],
        buffers: list[Tensor],
        frozen: list[Tensor],
        carry: Carry,
        fresh: Tensor | None,
        pace: Pace,
        block: Block,
        watch: Watch,
        trial: ReferenceStep,
    ) -> BlockResult:
        """Take all samples of `block`; `theta` and `buffers` change in place.

        Args:
            theta: The weights.
            buffers: Buffers of the network, in the order of `buffer_names`.
            frozen: What does not change, in the order of `frozen_names`.
            carry: h, z and ω at the start; left as they are.
            fresh: Whether each sample begins a sequence; `None` where none does.
            pace: Rates and β of each step.
            block: The samples.
            watch: What is looked at for values that are not finite, step by step.
            trial: Takes the first sample eagerly, before a step for samples of its kind is recorded.

        Raises:
            UnsupportedError: If the step cannot be compiled.
        """
        assert block.u is not None
        given = (carry.h, carry.z, carry.omega, carry.v, carry.E)
        h, z, omega, v, E = ([leaf.detach().clone() for leaf in part] for part in given)
        flags = [fresh] if h and fresh is not None else []
        parts = [pace.rates, pace.betas, pace.drive, block.u, block.target, flags]
        rates, betas, drive, u, target, flags = self._bring(parts, theta[0].device)
        own = {"theta": theta, "omega": omega, "h": h, "z": z, "v": v, "E": E, "buffers": buffers}
        rows = {"rates": rates, "drive": drive, "u": u, "target": target, "fresh": flags}
        constant = {"frozen": frozen}
        (rows if pace.varying else constant)["betas"] = betas
        step = OrderStep(
            self.order,
            Variant(bool(target), bool(flags), watch),
            (carry.spec, block.u_spec, block.target_spec),
            (self.buffer_names, self.frozen_names),
            self.reset_each,
            self.carries,
        )
        found, y_spec = self.loop(step, LoopInputs(own, rows, constant), block.count, trial)
        torch.autograd.graph.increment_version([*theta, *buffers])
        loss, coupling, mark = (found[name][0] if found[name] else None for name in ("loss", "coupling", "mark"))
        return BlockResult(Carry(h, z, omega, carry.spec, v=v, E=E), found["y"], y_spec, loss, coupling, mark)
