"""Whole stretches of a stream in one call: steps that are recorded once and run as a loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn.engine.recorded.eager_reference import Groups, ReferenceStep
from hamlearn.engine.recorded.recorder import LoopInputs, Recorder, named
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
        known: Whether a sample has a target, one row per step; empty if all have one, or if φ says it.
    """

    rates: list[Tensor]
    betas: list[Tensor]
    varying: bool
    drive: list[Tensor]
    known: list[Tensor] = field(default_factory=list)


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
        kept: Tensors of the carry that were to be kept, by name, one row per step.
    """

    carry: Carry
    y: list[Tensor]
    y_spec: trees.Spec
    loss: Tensor | None
    coupling: Tensor | None
    mark: Tensor | None
    kept: Groups = field(default_factory=dict)


class HeldTensors(NamedTuple):
    """The tensors of a network, or of all members of a population.

    Attributes:
        theta: The weights.
        buffers: Buffers of the network, in the order of `Recorder.buffer_names`.
        frozen: Tensors that do not change, in the order of `Recorder.frozen_names`.
    """

    theta: list[Tensor]
    buffers: list[Tensor]
    frozen: list[Tensor]


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

    def run(
        self,
        held: HeldTensors,
        carry: Carry,
        fresh: Tensor | None,
        pace: Pace,
        block: Block,
        watch: Watch,
        reference: ReferenceStep,
        keep: tuple[str, ...] = (),
    ) -> BlockResult:
        """Take all samples of `block`; weights and buffers change in place.

        Args:
            held: Weights and buffers.
            carry: h, z and ω at the start; left as they are.
            fresh: Whether each sample begins a sequence; `None` if none does.
            pace: Rates and β of each step.
            block: The samples.
            watch: Values that are checked for being finite, step by step.
            reference: Takes the first sample eagerly.
            keep: What of the carry is kept of every step.

        Raises:
            UnsupportedError: If the step cannot be compiled.
        """
        carry = carry.copy()
        step, inputs = self.step_of(held, carry, fresh, pace, block, watch, keep)
        found, y_spec = self.loop(step, inputs, block.count, reference)
        torch.autograd.graph.increment_version([*held.theta, *held.buffers])
        loss, coupling, mark = (found[name][0] if found[name] else None for name in ("loss", "coupling", "mark"))
        kept = {name: found[f"kept_{name}"] for name in keep}
        return BlockResult(carry, found["y"], y_spec, loss, coupling, mark, kept)

    def step_of(
        self,
        held: HeldTensors,
        carry: Carry,
        fresh: Tensor | None,
        pace: Pace,
        block: Block,
        watch: Watch,
        keep: tuple[str, ...] = (),
    ) -> tuple[OrderStep, LoopInputs]:
        """The step for samples of the kind of `block`, and what its loop reads; it changes the carry in place."""
        assert block.u is not None
        device = held.theta[0].device
        flags = [fresh] if carry.h and fresh is not None else []
        groups = {"rates": pace.rates, "drive": pace.drive, "u": block.u, "target": block.target, "fresh": flags}
        groups |= {"betas": pace.betas, "known": pace.known if block.target else []}
        rows = {name: [x.to(device).contiguous() for x in group] for name, group in groups.items()}
        constant = {"frozen": held.frozen}
        if not pace.varying:
            constant["betas"] = rows.pop("betas")
        own = {"theta": held.theta, "omega": carry.omega, "h": carry.h, "z": carry.z, "v": carry.v, "E": carry.E}
        step = OrderStep(
            self.order,
            Variant(bool(block.target), bool(flags), watch, keep),
            (carry.spec, block.u_spec, block.target_spec),
            (self.buffer_names, self.frozen_names),
        )
        step.reset_each, step.carries = self.reset_each, self.carries
        carried = {name: [x.detach() for x in group] for name, group in (own | {"buffers": held.buffers}).items()}
        return step, LoopInputs(carried, rows, constant)

    def own(self) -> HeldTensors:
        """The tensors of the order's own network."""
        order = self.order
        return HeldTensors(order.system.theta, named(order, self.buffer_names), named(order, self.frozen_names))
