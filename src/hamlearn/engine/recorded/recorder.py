"""A step as a pure function of tensors: recorded once, run as a loop over the rows of a block."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn

from hamlearn._base import trees
from hamlearn.engine.recorded.trace import (
    EagerReference,
    Groups,
    OrderStep,
    RecordedStep,
    ReferenceStep,
    Variant,
    Watch,
    weights_kept,
)
from hamlearn.loops import Kind, UnsupportedError
from hamlearn.loops.backends import make_loop
from hamlearn.loops.comparison import audit, require_alike
from hamlearn.loops.costs import faster_eagerly
from hamlearn.loops.draws import Draws, GivenDraws
from hamlearn.loops.guards import Guards
from hamlearn.loops.recording import held_by, pure_graph
from hamlearn.loops.step_cache import CompiledStep, StepCache
from hamlearn.loops.tracing_lock import tracing_lock
from hamlearn.rules.system import Order
from hamlearn.state.carry import Carry
from hamlearn.streams.blocks import Block


@dataclass(frozen=True)
class LoopInputs:
    """What a loop reads: groups that it changes in place, groups with a row for each step, and constants."""

    carried: Groups
    rows: Groups
    constant: Groups

    def first(self) -> Groups:
        """What the first step is given."""
        return {
            **self.carried,
            **{name: [row[0] for row in group] for name, group in self.rows.items()},
            **self.constant,
        }

    def form(self) -> tuple[Any, ...]:
        """Shapes and types of all tensors."""
        rows = [(x.shape[1:], x.dtype) for x in flat(self.rows)]
        others = [(x.shape, x.dtype, x.device) for x in (*flat(self.carried), *flat(self.constant))]
        return *rows, *others, *map(len, self.rows.values())

    def kinds(self) -> list[Kind]:
        """What each tensor is to the loop."""
        parts: tuple[tuple[Kind, Groups], ...]
        parts = ("carry", self.carried), ("sample", self.rows), ("constant", self.constant)
        return [kind for kind, groups in parts for _ in flat(groups)]


@dataclass
class Recorded:
    """The graph of a step.

    Attributes:
        graph: Pure tensor operations, from the groups as one flat list to the carried groups and the results.
        counts: Number of tensors of each group that it returns.
        results: Which of these groups are results.
        y_spec: Structure of an output.
        draws: Random numbers that the graph takes as its last inputs.
    """

    graph: fx.GraphModule
    counts: dict[str, int]
    results: list[str]
    y_spec: trees.Spec
    draws: Draws

    def read(self, found: Sequence[Tensor]) -> Groups:
        """What the graph returned, by group."""
        return _split(found, self.counts)

    def read_results(self, found: Sequence[Tensor]) -> Groups:
        """The results alone."""
        return _split(found, {name: self.counts[name] for name in self.results})


class Recorder:
    """Records the steps of an order, and runs them as loops.

    Args:
        order: What the eager engine steps by.
        lanes: Number of members in a group of a population; their tensors have groups as their first axis and the
            members of a group as their last one. 1 for a single learner, without such axes.
        own: Whether each member has samples of its own, which then lie as all else does.

    Attributes:
        numbers: Returns random numbers for so many steps, one row each; `None`: steps may draw none.
        drawn: How far the last block has moved the counter of these numbers.
        random: The random numbers of the last block.
    """

    def __init__(self, order: Order, lanes: int = 1, own: bool = False) -> None:
        self.order, self.lanes = order, lanes
        self.shared = set() if own else {"u", "target"}
        network = order.system.network
        self.buffer_names = [name for name, _ in network.named_buffers() if not name.startswith("h0_")]
        self.frozen_names = [name for name, _ in network.named_buffers() if name.startswith("h0_")]
        self.frozen_names += [name for name, weight in network.named_parameters() if not weight.requires_grad]
        self.steps = StepCache()
        self.numbers: Callable[[Draws, int], list[Tensor]] | None = None
        self.drawn = 0
        self.random: list[Tensor] = []

    def loop(
        self, step: RecordedStep, inputs: LoopInputs, count: int, reference: ReferenceStep
    ) -> tuple[Groups, trees.Spec]:
        """Run a step `count` times; the carried tensors change in place. Returns rows of results, and their form.

        Raises:
            UnsupportedError: If the step cannot be compiled.
            AuditError: If two audits in turn differ from the eager step.
        """
        made = self.compiled(step, inputs, reference)
        self.random = random = self._random(made.recorded.draws, count)
        self.drawn = count * made.recorded.draws.width
        if self.steps.audit_is_due(made):
            tried = self._tried(reference, random)
            if tried is not None and tried.comparable(self._member(inputs.first(), reference.member)):
                audit(made, lambda: tried.led_to, lambda: self._first_step(made, inputs, random, reference.member))
        carried = flat(inputs.carried)
        work = _contiguous(carried)
        results = made.loop(count, work, [*flat(inputs.rows), *random], _contiguous(flat(inputs.constant)))
        with torch.no_grad():
            for tensor, moved in zip(carried, work, strict=True):
                if moved is not tensor:
                    tensor.copy_(moved)
        return made.recorded.read_results(results), made.recorded.y_spec

    def compiled(self, step: RecordedStep, inputs: LoopInputs, reference: ReferenceStep) -> CompiledStep:
        """The loop of a step: one that was made before and whose guards hold, or a new one.

        Raises:
            UnsupportedError: If the step cannot be compiled.
        """

        def make() -> CompiledStep:
            # A step that draws from Python or NumPy differs from its recording, and stays eager: it draws again.
            drawn, drawn_by_numpy = random.getstate(), np.random.get_state()
            try:
                return self._make(step, inputs, reference)
            finally:
                random.setstate(drawn)
                np.random.set_state(drawn_by_numpy)

        return self.steps.get((type(step).__name__, step.variant, str(step.specs), inputs.form()), make)

    def _random(self, draws: Draws, count: int) -> list[Tensor]:
        if not draws.like:
            return []
        assert self.numbers is not None
        return self.numbers(draws, count)

    def _tried(self, reference: ReferenceStep, random: list[Tensor]) -> EagerReference | None:
        """The eager step of a block's first sample, with the random numbers of the block."""
        first = self._member({"random": [row[0] for row in random]}, reference.member)["random"]
        with GivenDraws(first) if first else nullcontext():
            return reference.run()

    def _make(self, step: RecordedStep, inputs: LoopInputs, reference: ReferenceStep) -> CompiledStep:
        """Record a step, make a loop of it, and compare the loop with the eager step."""
        system, first = self.order.system, self._member(inputs.first(), reference.member)
        functions = {"the loss": system.loss, **self.order.also_reads()}
        made = CompiledStep(Guards(functions, {"the network": system.network}))
        device = flat(inputs.constant if "theta" in inputs.constant else inputs.carried)[0].device
        try:
            made.guards.require_recordable()
            with tracing_lock, weights_kept(system.network):
                # First, since it raises for a sample that a recording might take.
                tried = reference.run()
                made.guards.require_unchanged_by_step()
                made.recorded = record(step, first, list(inputs.carried), draws=self.numbers is not None)
                made.guards.require_unchanged_by_step()
                random = self._random(made.recorded.draws, 1)
                tried = self._tried(reference, random) if random else tried
            graph = made.recorded.graph
            _require_own_memory(graph, [system.network, reference.network])
            if device.type == "cpu" and self.lanes == 1 and (reason := faster_eagerly(graph)) is not None:
                raise UnsupportedError(reason)
            laned = [name not in self.shared for name, group in first.items() for _ in group]
            kinds = inputs.kinds()
            kinds += ["sample" for _ in random]
            made.loop = make_loop(graph, kinds, laned + [True for _ in random], self.lanes, device)
            if tried is not None and tried.comparable(first):
                require_alike(tried.led_to, self._first_step(made, inputs, random, reference.member))
        except UnsupportedError as error:
            made.failure = error
        return made

    def _first_step(self, made: CompiledStep, inputs: LoopInputs, random: list[Tensor], member: int) -> Groups:
        """The results of the first step of a block for one member, by the compiled loop on copies."""
        carried = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in flat(inputs.carried)]
        rows = [row[:1].contiguous() for row in (*flat(inputs.rows), *random)]
        results = made.loop(1, carried, rows, _contiguous(flat(inputs.constant)))
        found = made.recorded.read([*carried, *(row[0] for row in results)])
        return self._member(found, member)

    def _member(self, first: Groups, number: int) -> Groups:
        """The tensors of one member."""
        if self.lanes == 1:
            return first
        group, lane = divmod(number, self.lanes)
        return {
            name: tensors if name in self.shared else [tensor[group, ..., lane] for tensor in tensors]
            for name, tensors in first.items()
        }


def record(step: RecordedStep, first: Groups, carried: Sequence[str], *, draws: bool = False) -> Recorded:
    """The graph of a step, for tensors such as `first`; `carried` are the groups that it changes.

    Args:
        step: The step.
        first: What it is given.
        carried: Names of the groups that it changes.
        draws: Whether it may draw random numbers.
    """
    counts, returned = {name: len(group) for name, group in first.items()}, dict[str, int]()
    results: list[str] = []

    def function(*given: Tensor) -> list[Tensor]:
        groups = _split(given, counts)
        after, found = step(groups)
        pairs = [pair for name in carried for pair in zip(after[name], groups[name], strict=True)]
        moved = [new.detach().to(old.dtype) for new, old in pairs]
        returned.update({name: counts[name] for name in carried} | {name: len(x) for name, x in found.items()})
        results[:] = found
        return [*moved, *(x.detach() for x in flat(found))]

    found = Draws()
    graph = pure_graph(function, flat(first), found if draws else None)
    return Recorded(graph, returned, results, step.y_spec, found)


def _contiguous(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [x if x.is_contiguous() else x.contiguous() for x in tensors]


def flat(groups: Groups) -> list[Tensor]:
    """All tensors of some groups."""
    return [tensor for group in groups.values() for tensor in group]


def _split(found: Sequence[Tensor], counts: dict[str, int]) -> Groups:
    rest = iter(found)
    return {name: [next(rest) for _ in range(count)] for name, count in counts.items()}


def _require_own_memory(graph: fx.GraphModule, networks: Sequence[nn.Module]) -> None:
    """Raise if the graph holds a tensor that shares the memory of a weight: a compiled step works on copies."""
    weights = [own for network in networks for own in (*network.parameters(), *network.buffers())]
    memory = {own.untyped_storage().data_ptr() for own in weights if own.numel()}
    for tensor in held_by(graph):
        if tensor.numel() and tensor.untyped_storage().data_ptr() in memory:
            raise UnsupportedError(
                "the step reads a tensor that shares the memory of a weight or a buffer, and not through the "
                "network: hold the weight itself, and take its view or copy within the step"
            )


def named(order: Order, names: Sequence[str]) -> list[Tensor]:
    """Buffers and parameters of the network by name."""
    if not names:
        return []
    network = order.system.network
    found = dict(network.named_buffers()) | dict(network.named_parameters())
    return [found[name].detach() for name in names]


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
