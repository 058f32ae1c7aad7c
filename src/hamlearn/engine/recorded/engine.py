"""Whole stretches of a stream in one call: steps that are recorded once and run as a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, fx, nn

from hamlearn._base import trees
from hamlearn.engine.recorded.device_cache import DeviceCache
from hamlearn.engine.recorded.eager_reference import EagerReference, ReferenceStep, require_as_reference
from hamlearn.engine.recorded.member_control import MemberControl
from hamlearn.engine.recorded.trace import Inputs, Recorded, Variant, Watch, record
from hamlearn.loops import Kind, UnsupportedError
from hamlearn.loops.backends import make_loop
from hamlearn.loops.comparison import audit
from hamlearn.loops.costs import faster_eagerly
from hamlearn.loops.guards import Guards
from hamlearn.loops.recording import held_by
from hamlearn.loops.step_cache import CompiledStep, StepCache
from hamlearn.loops.tracing_lock import tracing_lock
from hamlearn.rules.system import Order
from hamlearn.state.carry import Carry
from hamlearn.streams.blocks import Block


@dataclass(frozen=True)
class Pace:
    """Rates and β of each step of a block, as the graph takes them.

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
        guards: What the steps depend on beyond their inputs.
        verdict: What became of each step of each member, as `member_control` says; with a `control` only.
        kept: Which members have left, and which begin their sequence again.
    """

    carry: Carry
    y: list[Tensor]
    y_spec: trees.Spec
    loss: Tensor | None
    coupling: Tensor | None
    mark: Tensor | None
    guards: Guards
    verdict: Tensor | None = None
    kept: list[Tensor] = field(default_factory=list)


class Engine:
    """Runs an order over blocks of samples.

    Args:
        order: Sequential or parallel.
        reset_each: Whether h starts from h0 at every sample.
        carries: Whether z is carried from step to step.
        lanes: Number of members in a group of a population; their tensors have groups as their first axis and the
            members of a group as their last one. 1 for a single learner, without such axes.
        own: Whether each member has samples of its own, which then lie as all else does.
    """

    def __init__(self, order: Order, reset_each: bool, carries: bool, lanes: int = 1, own: bool = False) -> None:
        self.order = order
        self.reset_each = reset_each
        self.carries = carries
        self.lanes, self.own = lanes, own
        network = order.system.network
        self.buffer_names = [name for name, _ in network.named_buffers() if not name.startswith("h0_")]
        self.frozen_names = [name for name, _ in network.named_buffers() if name.startswith("h0_")]
        self.frozen_names += [name for name, weight in network.named_parameters() if not weight.requires_grad]
        self.steps, self._bring = StepCache(), DeviceCache()

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
        control: MemberControl | None = None,
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
            control: Which members rest at which steps, and what a member does at a step that goes wrong.

        Raises:
            UnsupportedError: If the step cannot be compiled.
        """
        assert block.u is not None
        own = (carry.h, carry.z, carry.omega, carry.v, carry.E)
        h, z, omega, v, E = ([leaf.detach().clone() for leaf in part] for part in own)
        flags = [fresh] if h and fresh is not None else []
        given = [] if control is None else [control.active]
        parts = [pace.rates, pace.betas, pace.drive, block.u, block.target, flags, given]
        device = theta[0].device
        rates, betas, drive, u, target, flags, active = self._bring(parts, device)
        samples = [*rates, *(betas if pace.varying else []), *drive, *u, *target, *flags, *active]
        # Whether a member has left, and whether it begins its sequence again because it skipped the first sample.
        kept = [torch.zeros_like(rows[0]) for rows in active for _ in range(2)]
        constants = [*(tensor.contiguous() for tensor in frozen), *([] if pace.varying else betas)]

        def first() -> Inputs:
            rows = (rates, betas if pace.varying else [], drive, u, target, flags)
            heads = [[row[0] for row in part] for part in rows]
            first = (theta, omega, h, z, v, E, buffers, frozen, heads[0], heads[1] or betas, *heads[2:])
            return replace(Inputs(*first), control=kept, active=[rows[0] for rows in active])

        shapes = (
            tuple((t.shape[1:], t.dtype) for t in (*u, *target)),
            tuple((t.shape, t.dtype) for t in (*h, *theta, *v, *E, *buffers, *frozen)),
            tuple(t.shape for t in betas),
        )
        specs = tuple(spec and str(spec) for spec in (block.u_spec, block.target_spec, carry.spec))
        variant = Variant(bool(target), bool(flags), watch, None if control is None else control.on_trouble)
        key = (shapes, specs, len(target), pace.varying, len(drive), variant)

        def make() -> CompiledStep:
            return self._make(first(), block, carry.spec, pace.varying, variant, trial)

        made = self.steps.get(key, make)
        carried = [*theta, *omega, *h, *z, *v, *E, *buffers, *kept]
        work = [tensor if tensor.is_contiguous() else tensor.contiguous() for tensor in carried]
        if self.steps.audit_is_due(made):
            eager = trial.run() if self.lanes == 1 else None
            audit_first_step(made, self._member(first(), 0), work, samples, constants, self.lanes, eager)
        results = made.loop(block.count, work, samples, constants)
        with torch.no_grad():
            for tensor, moved in zip(carried, work, strict=True):
                if moved is not tensor:
                    tensor.copy_(moved)
        torch.autograd.graph.increment_version([*theta, *buffers])
        return _read(results, made, Carry(h, z, omega, carry.spec, v=v, E=E), kept)

    def _make(
        self,
        first: Inputs,
        block: Block,
        h_spec: trees.Spec,
        varying: bool,
        variant: Variant,
        trial: ReferenceStep,
    ) -> CompiledStep:
        one = self._member(first, trial.member)

        def recording() -> Recorded:
            return record(
                self.order,
                one,
                variant,
                (h_spec, block.u_spec, block.target_spec),
                (self.buffer_names, self.frozen_names),
                self.reset_each,
                self.carries,
            )

        read = {"rates", "drive", "u", "target", "fresh", "active", *(["betas"] if varying else [])}
        kinds = first.kinds({"theta", "omega", "h", "z", "v", "E", "buffers", "control"}, read)
        laned = first.laned(self.own)
        return make_step(self.order, trial, recording, one, kinds, laned, self.lanes)

    def _member(self, inputs: Inputs, number: int) -> Inputs:
        if self.lanes == 1:
            return inputs
        group, lane = divmod(number, self.lanes)
        flat = zip(inputs.flat(), inputs.laned(self.own), strict=True)
        return inputs.like([tensor[group, ..., lane] if laned else tensor for tensor, laned in flat])


def make_step(
    order: Order,
    trial: ReferenceStep,
    record: Callable[[], Recorded],
    inputs: Inputs,
    kinds: Sequence[Kind],
    laned: Sequence[bool],
    lanes: int,
) -> CompiledStep:
    """Record a step and make a loop of it; the eager step is made first, and the recording compared with it."""
    system, device = order.system, inputs.theta[0].device
    functions = {"the loss": system.loss, **order.also_reads()}
    made = CompiledStep(Guards(functions, {"the network": system.network}))
    try:
        made.guards.require_recordable()
        with tracing_lock, _weights_kept(trial.network):
            tried = trial.run()
            made.guards.require_unchanged_by_step()
            made.recorded = record()
            made.guards.require_unchanged_by_step()
        _require_own_memory(made.recorded.graph, [system.network, trial.network])
        if tried is not None:
            require_as_reference(made.recorded.graph, inputs, tried, made.recorded.read)
        if device.type == "cpu" and lanes == 1 and (reason := faster_eagerly(made.recorded.graph)) is not None:
            raise UnsupportedError(reason)
        made.loop = make_loop(made.recorded.graph, kinds, laned, lanes, device)
    except UnsupportedError as error:
        made.failure = error
    return made


def audit_first_step(
    made: CompiledStep,
    first: Inputs,
    carried: Sequence[Tensor],
    samples: Sequence[Tensor],
    constants: list[Tensor],
    lanes: int = 1,
    tried: EagerReference | None = None,
) -> None:
    """Compare the first step of a block, that of the first member in a population, with the eager step.

    Args:
        made: The compiled step.
        first: What it is given.
        carried: What the loop would be given.
        samples: Rows of all steps.
        constants: What does not change.
        lanes: Number of members in a group.
        tried: The eager step; `None`: the function that was recorded is called once more, without recording it.

    Raises:
        AuditError: If they differ in two blocks in turn.
    """
    recorded: Recorded = made.recorded
    if tried is not None and not tried.began_as(first):
        return

    def eagerly() -> dict[str, list[Tensor]]:
        if tried is not None:
            return tried.led_to
        found = recorded.read(recorded.step(*(tensor.clone() for tensor in first.flat())))
        # Weights follow from ω and v, and Adam divides the rounding of tiny gradients by their size.
        return {name: group for name, group in found.items() if name not in ("θ", "v")}

    def by_loop() -> dict[str, list[Tensor]]:
        copies = [tensor.clone() for tensor in carried]
        rows = made.loop(1, copies, [row[:1].contiguous() for row in samples], constants)
        found = [*copies, *(row[0] for row in rows)]
        return recorded.read([x[0, ..., 0] for x in found] if lanes > 1 else found)

    audit(made, eagerly, by_loop)


@contextmanager
def _weights_kept(network: nn.Module) -> Iterator[None]:
    """Within, a step may write to weights and buffers, as an embedding with `max_norm` does; they are put back."""
    before = [(own, own.detach().clone()) for own in (*network.parameters(), *network.buffers())]
    try:
        yield
    finally:
        with torch.no_grad():
            for own, copy in before:
                if not torch.equal(own, copy):
                    own.copy_(copy)


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


def _read(results: list[Tensor], made: CompiledStep, carry: Carry, control: list[Tensor]) -> BlockResult:
    recorded, rest = made.recorded, iter(results)
    y = [next(rest) for _ in range(recorded.y_count)]
    loss = next(rest) if recorded.loss else None
    coupling = next(rest) if recorded.coupling else None
    mark = next(rest) if recorded.mark else None
    verdict = next(rest) if recorded.verdict else None
    return BlockResult(carry, y, recorded.y_spec, loss, coupling, mark, made.guards, verdict, control)
