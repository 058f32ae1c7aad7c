"""Sequences in two calls: tokens forward at frozen weights, and their echo back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn.engine.recorded.eager_reference import ReferenceStep
from hamlearn.engine.recorded.engine import audit_first_step, make_step, named
from hamlearn.engine.recorded.trace import Inputs, Recorded, Variant
from hamlearn.engine.recorded.trace_echo import record_backward, record_forward
from hamlearn.loops import UnsupportedError
from hamlearn.loops.guards import Guards
from hamlearn.loops.step_cache import CompiledStep, StepCache
from hamlearn.rules.echo import Echoed
from hamlearn.streams.blocks import Block


@dataclass
class Stretch:
    """Consecutive tokens, with the states they met, one row each.

    Attributes:
        h: Leaves of the states.
        u: Leaves of the inputs.
        target: Leaves of the targets; empty where no token of the stretch has one.
        rates: τ, stride, η, η_z and φ; φ is 0 where a token has no target.
        fresh: Whether a token began its sequence.
        block: The samples, with structures.
        h_spec: Structure of the state.
    """

    h: list[Tensor]
    u: list[Tensor]
    target: list[Tensor]
    rates: list[Tensor]
    fresh: Tensor
    block: Block
    h_spec: trees.Spec

    @property
    def count(self) -> int:
        """Number of tokens."""
        return len(self.fresh)

    def last(self, count: int) -> Stretch:
        """The last tokens."""
        start = max(self.count - count, 0)
        h, u, target, rates = (
            [leaf[start:] for leaf in part] for part in (self.h, self.u, self.target, self.rates)
        )
        block = self.block.part(start, self.count)
        return Stretch(h, u, target, rates, self.fresh[start:], block, self.h_spec)


@dataclass
class Passed:
    """What the tokens forward led to: the last state, rows of outputs and losses, and the stretch itself."""

    h: list[Tensor]
    stretch: Stretch
    y: list[Tensor]
    y_spec: trees.Spec
    loss: Tensor | None
    mark: Tensor | None
    guards: Guards


class EchoEngine:
    """Runs the tokens of a sequence, and their echo.

    Args:
        order: The echo that the eager engine steps by.
        checked: Whether each token says that the state stayed finite.
    """

    def __init__(self, order: Echoed, checked: bool) -> None:
        self.order = order
        self.checked = checked
        network = order.system.network
        self.buffer_names = [name for name, _ in network.named_buffers() if not name.startswith("h0_")]
        self.frozen_names = [name for name, _ in network.named_buffers() if name.startswith("h0_")]
        self.frozen_names += [name for name, weight in network.named_parameters() if not weight.requires_grad]
        self.steps = StepCache()

    def forward(
        self,
        h: list[Tensor],
        h_spec: trees.Spec,
        rates: list[Tensor],
        fresh: Tensor,
        block: Block,
        trial: ReferenceStep,
    ) -> Passed:
        """Run the tokens of a block from the state `h`; buffers change in place.

        `trial` raises where the eager engine would refuse the first token; it is made before one of its kind is
        recorded.
        """
        assert block.u is not None
        theta = [weight.detach() for weight in self.order.system.theta]
        buffers, frozen = named(self.order, self.buffer_names), named(self.order, self.frozen_names)
        h = [leaf.detach().clone(memory_format=torch.contiguous_format) for leaf in h]
        device = theta[0].device
        parts = ([row.to(device) for row in rates], block.u, block.target, [fresh.to(device)])
        rows = [[tensor.contiguous() for tensor in part] for part in parts]
        first = [[row[0] for row in part] for part in rows]
        inputs = Inputs(theta, [], h, [], [], [], buffers, frozen, first[0], [], [], *first[1:])
        made = self._step(
            record_forward, inputs, block, h_spec, {"h", "buffers"}, {"rates", "u", "target", "fresh"}, trial
        )
        samples = [tensor for part in rows for tensor in part]
        work = [buffer.contiguous() for buffer in buffers]
        recorded = made.recorded
        constants = _contiguous(theta, frozen)
        if self.steps.audit_is_due(made):
            audit_first_step(made, inputs, [*h, *work], samples, constants)
        results = made.loop(block.count, [*h, *work], samples, constants)
        for buffer, moved in zip(buffers, work, strict=True):
            if moved is not buffer:
                buffer.copy_(moved)
        torch.autograd.graph.increment_version(buffers)
        rest = iter(results)
        met = [next(rest) for _ in h]
        y = [next(rest) for _ in range(recorded.y_count)]
        loss = next(rest) if recorded.loss else None
        mark = next(rest) if recorded.mark else None
        stretch = Stretch(met, rows[1], rows[2], rows[0], rows[3][0], block, h_spec)
        return Passed(h, stretch, y, recorded.y_spec, loss, mark, made.guards)

    def backward(self, stretches: list[Stretch], omega: list[Tensor]) -> list[Tensor]:
        """ω after the echo of all tokens of the stretches, the last one first."""
        joined = _joined(stretches)
        theta = [weight.detach() for weight in self.order.system.theta]
        buffers, frozen = named(self.order, self.buffer_names), named(self.order, self.frozen_names)
        parts = (joined.h, joined.rates, joined.u, joined.target, [joined.fresh])
        rows = [[tensor.flip(0).contiguous() for tensor in part] for part in parts]
        first = [[row[0] for row in part] for part in rows]
        omega = [tensor.clone(memory_format=torch.contiguous_format) for tensor in omega]
        z, flow = (
            [torch.zeros(leaf.shape, dtype=leaf.dtype, device=leaf.device) for leaf in first[0]] for _ in "zf"
        )
        h, rates, u, target, fresh = first
        inputs = Inputs(theta, omega, h, z, [], [], buffers, frozen, rates, [], [], u, target, fresh, flow)
        made = self._step(
            record_backward,
            inputs,
            joined.block,
            joined.h_spec,
            {"omega", "z", "flow"},
            {"h", "rates", "u", "target", "fresh"},
            ReferenceStep(lambda: None, self.order.system.network),
        )
        samples = [tensor for part in rows for tensor in part]
        constants = _contiguous(theta, buffers, frozen)
        if self.steps.audit_is_due(made):
            audit_first_step(made, inputs, [*omega, *z, *flow], samples, constants)
        made.loop(joined.count, [*omega, *z, *flow], samples, constants)
        return omega

    def _step(
        self,
        record: Callable[..., Recorded],
        inputs: Inputs,
        block: Block,
        h_spec: trees.Spec,
        carry: set[str],
        sample: set[str],
        trial: ReferenceStep,
    ) -> CompiledStep:
        shapes = tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in inputs.flat())
        key = (record.__name__, shapes, str(block.u_spec), str(block.target_spec), str(h_spec))

        def make() -> CompiledStep:
            variant = Variant(bool(inputs.target), True, "state" if self.checked else "nothing")
            specs = (h_spec, block.u_spec, block.target_spec)
            names, kinds = (self.buffer_names, self.frozen_names), inputs.kinds(carry, sample)
            recording = lambda: record(self.order, inputs, variant, specs, names)  # noqa: E731
            return make_step(self.order, trial, recording, inputs, kinds, [False] * len(kinds), 1)

        return self.steps.get(key, make)


def _joined(stretches: list[Stretch]) -> Stretch:
    if len(stretches) == 1:
        return stretches[0]
    kinds = {(str(s.block.u_spec), *((leaf.shape[1:], leaf.dtype) for leaf in (*s.h, *s.u))) for s in stretches}
    targets = {
        (str(s.block.target_spec), *((leaf.shape[1:], leaf.dtype) for leaf in s.target))
        for s in stretches
        if s.target
    }
    if len(kinds) > 1 or len(targets) > 1:
        raise UnsupportedError("the tokens of a sequence differ in shape, type or structure")
    with_target = next((s for s in stretches if s.target), stretches[0])
    rows = [
        s.target or [leaf[:1].expand(s.count, *leaf.shape[1:]) for leaf in with_target.target] for s in stretches
    ]
    return Stretch(
        [torch.cat(leaves) for leaves in zip(*(s.h for s in stretches), strict=True)],
        [torch.cat(leaves) for leaves in zip(*(s.u for s in stretches), strict=True)],
        [torch.cat(leaves) for leaves in zip(*rows, strict=True)],
        [torch.cat(leaves) for leaves in zip(*(s.rates for s in stretches), strict=True)],
        torch.cat([s.fresh for s in stretches]),
        with_target.block,
        stretches[0].h_spec,
    )


def _contiguous(*groups: list[Tensor]) -> list[Tensor]:
    return [tensor.contiguous() for group in groups for tensor in group]
