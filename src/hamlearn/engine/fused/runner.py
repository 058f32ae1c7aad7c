"""Blocks of ticks by kernels that read and write all weights and costates once."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from hamlearn.engine.fused.fit import MOST_SAMPLES, Group, fit
from hamlearn.engine.fused.tick import AT_ONCE, Held, Ticks
from hamlearn.engine.recorded import BlockResult, Pace, Watch
from hamlearn.engine.ticks.plan import TickPlan
from hamlearn.engine.ticks.runner import TickRunner
from hamlearn.loops import UnsupportedError
from hamlearn.loops.step_cache import StepCache
from hamlearn.rules.local.aligned import Aligned
from hamlearn.rules.local.costates import dense
from hamlearn.rules.local.flights import Pipeline, StackState
from hamlearn.rules.local.stacked import LayerStack
from hamlearn.sample import Sample
from hamlearn.state.carry import Carry
from hamlearn.streams.blocks import Block


class _NoRecordings:
    """Kernels are not recorded steps: nothing is kept that could become stale."""

    steps = StepCache()


class FusedRunner(TickRunner):
    """Ticks of a chain of linear layers on a GPU, in blocks like any others.

    A block begins with copies of states and costates in the kernels' memory, and ends with copies of what the
    kernels have made of them. The weights move in place.
    """

    def prepare(self) -> None:
        """Nothing is recorded; memory is made for the first block."""
        self.engine: Any = _NoRecordings()
        self._loss = self.system.loss_of[self.system.wiring.outputs[0]]
        self._ticks: Ticks | None = None
        self._key: Any = None

    def plan(self, block: Block) -> TickPlan | None:
        """Rates of all ticks; `None` if the first sample has to be taken by itself."""
        if not self._fits(block, fit(self.system)):
            return None
        return super().plan(block)

    def loop(self, begun: Any, plan: TickPlan, begins: Tensor | None, watch: Watch, first: Sample) -> BlockResult:
        """All ticks of a block, in stretches as long as there are graphs for."""
        rows, pace = plan.rows, plan.pace()
        assert rows.u is not None
        target = plan.compared.target[0] if plan.compared.target else None
        ticks, count = self._ready(rows.u[0], target), rows.count
        self._put(ticks, begun)
        table, after = self._rates(ticks, pace, begins, count, compares=target is not None)
        u = rows.u[0].reshape(count, ticks.batch, -1)
        y = ticks.y.new_empty(count, *ticks.lead, ticks.y.shape[2])
        loss, coupling = (ticks.loss.new_empty(count) for _ in range(2))
        bad = torch.zeros(count + 1, dtype=torch.bool, device=y.device)
        start = 0
        while start < count:
            size = AT_ONCE
            while size > count - start:
                size //= 2
            part = slice(start, start + size)
            ticks.rates[:size], ticks.u[:size] = table[part], u[part]
            if target is not None:
                ticks.target[:size] = target[part]
            ticks.run(size)
            y[part], loss[part] = ticks.y[:size].view(y[part].shape), ticks.loss[:size]
            coupling[part] = torch.cat([held.coupling[:size] for held in ticks.held], 1).sum(1)
            bad[part] = ticks.bad[:size, 0] != 0
            start += size
        ticks.settle_costates(after)
        bad[-1] = ~torch.stack([held.z[0].isfinite().all() for held in ticks.held]).all()
        torch.autograd.graph.increment_version(self.system.theta)
        # The costate that a tick makes is looked at in the tick after it.
        mark = (bad[:-1] | bad[1:]).long()
        coupled = None if self.rule.aligned else coupling / pace.rates[0].to(coupling)
        carry = self._given(ticks, begun, count)
        return BlockResult(carry, [y], None, None if target is None else loss, coupled, mark)

    def _fits(self, block: Block, groups: list[Group]) -> bool:
        """Whether the samples are of the kind that the kernels take; the others are taken one by one."""
        if block.u is None or block.u_spec is not None or block.target_spec is not None:
            return False
        u, first, last, wide = block.u[0], groups[0].weight, groups[-1].weight, groups[0].wide
        fits = (u.shape[-1], u.dtype, u.device) == (first.shape[2], wide, first.device)
        if u.dim() < 2 or not fits or not u[0].numel():
            return False
        lead, carry = u.shape[1:-1], self.ticker.carry
        if lead.numel() > MOST_SAMPLES:
            raise UnsupportedError(
                f"a batch of {lead.numel()} samples is faster that way: fused ticks are for at most {MOST_SAMPLES}"
            )
        if not self.rule.aligned and any(h.shape[-len(lead) - 1 : -1] != lead for h in carry.h):
            return False
        if not block.target:
            return True
        target, y = block.target[0], (*lead, last.shape[1])
        if target.device != first.device:
            return False
        if self._loss is nn.functional.mse_loss:
            return target.shape[1:] == y and target.dtype == wide
        classes = len(y) == 2 and target.dtype == torch.int64 and target.shape[1:] == y[:1]
        return classes and bool(((target >= 0) & (target < y[1])).all())

    def _ready(self, u: Tensor, target: Tensor | None) -> Ticks:
        """Memory and graphs for ticks of such samples."""
        # Only where there are kernels to be compiled: Triton may not be there.
        from hamlearn.engine.fused.kernel import launch, tile_rows

        groups, lead = fit(self.system), tuple(u.shape[1:-1])
        form = None if target is None else (tuple(target.shape[1:]), target.dtype)
        key = lead, tuple(group.key for group in groups)
        if self._ticks is None or key != self._key or form not in (None, self._ticks.of_targets):
            delays = None
            if isinstance(self.rule, Aligned):
                delays = [self.rule.schedule.delays(group.cell.name) for group in groups]
            usual = (*lead, groups[-1].weight.shape[1]), groups[-1].wide
            self._ticks = None
            self._ticks = Ticks(groups, lead, form or usual, self._loss, delays, launch, tile_rows)
            self._key = key
        return self._ticks

    def _rates(
        self, ticks: Ticks, pace: Pace, begins: Tensor | None, count: int, *, compares: bool
    ) -> tuple[Tensor, tuple[float, float, float]]:
        """κ_h, κ_m, κ_z, κ_d, decay and −τβ by slot for each tick, and the κ of the tick after the last one.

        κ_m, κ_z and κ_d say how messages, costates and ∂L/∂y of one tick make the costates of the next. The first
        tick finds its costates made, and a tick that begins a sequence takes states and costates as 0.
        """
        _, stride, eta, eta_z, phi = (rate.expand(count) for rate in pace.rates)
        dissipated, one = stride * eta_z, torch.ones(count, dtype=torch.float64)
        gain = stride * phi if compares else 0 * one
        kept = [one - dissipated, 0 * one] if self.rule.aligned else [one, -dissipated]
        factors = torch.stack([*kept, gain], 1)
        table = torch.zeros(count, ticks.rates.shape[1], dtype=torch.float64)
        table[:, 0], table[0, 2], table[1:, 1:4] = 1.0, 1.0, factors[:-1]
        if begins is not None:
            table[begins, :4] = 0.0
        table[:, 4] = 1 - stride * eta
        for slot, beta in enumerate(pace.betas):
            table[:, 5 + slot] = -(stride * beta)
        k_m, k_z, k_d = factors[-1].tolist()
        return table.to(ticks.rates), (k_m, k_z, k_d)

    def _put(self, ticks: Ticks, begun: Any) -> None:
        """Copy ω, states, costates and past inputs."""
        for held in ticks.held:
            for slot, omega in zip(held.group.slots, held.omega, strict=True):
                omega.copy_(dense(self.ticker.omega[slot]).view(omega.shape))
        if isinstance(self.rule, Aligned):
            ticks.clock.fill_(begun.number)
            for held in ticks.held:
                _put_aligned(held, self.rule, begun)
            return
        for held, h, z in zip(ticks.held, begun.h, begun.z, strict=True):
            held.h[0], held.z[0] = h.reshape(held.h.shape[1:]), z.reshape(held.z.shape[1:])

    def _omega(self, ticks: Ticks) -> list[Tensor]:
        found: list[Any] = list(self.ticker.omega)
        for held in ticks.held:
            for slot, omega in zip(held.group.slots, held.omega, strict=True):
                found[slot] = omega.clone().view(self.system.theta[slot].shape)
        return found

    def _given(self, ticks: Ticks, begun: Any, count: int) -> Carry:
        """Copies of what the ticks have led to, as the rule carries it."""
        rule, omega = self.rule, self._omega(ticks)
        if not isinstance(rule, Aligned):
            h = [_shaped(ticks, held, held.h[0]) for held in ticks.held]
            return Carry(h, [_shaped(ticks, held, held.z[0]) for held in ticks.held], omega, None)
        number = begun.number + count
        carry = rule.empty()._replace(number=number)
        name = rule.system.wiring.inputs[0]
        for age in range(rule.h_spans[name][1]):
            carry.h.put(name, age, _past(ticks, ticks.held[0], age, number))
        for held in ticks.held:
            cell, line = held.group.cell, cast(Tensor, held.line)
            if isinstance(cell, LayerStack):
                states, z = _shaped(ticks, held, held.h[0]), _shaped(ticks, held, held.z[0])[:-1].clone()
                carry.stacks[cell.name] = StackState(states, z, line.clone().view(len(line), *states.shape))
            first, last = rule.h_spans[cell.name]
            for age in range(first, last):
                if age == first:
                    carry.h.put(cell.name, age, held.h[0, -1].clone().view(*ticks.lead, -1))
                elif held.behind is not None:
                    carry.h.put(cell.name, age, _past(ticks, held.behind, age - first - 1, number))
            carry.z.put(
                cell.name, rule.schedule.backward[cell.name] - 1, held.z[0, -1].clone().view(*ticks.lead, -1)
            )
        return rule.flat(carry, omega)


def _put_aligned(held: Held, rule: Aligned, begun: Pipeline) -> None:
    """States, costates and past inputs of one group."""
    cell, schedule, line = held.group.cell, rule.schedule, cast(Tensor, held.line)
    if isinstance(cell, LayerStack):
        stack = begun.stacks[cell.name]
        held.h[0] = stack.h.reshape(held.h.shape[1:])
        held.z[0, :-1] = stack.z.reshape(held.z[0, :-1].shape)
        line.copy_(stack.ring.reshape(line.shape))
    else:
        held.h[0, 0] = begun.h.get(cell.name, schedule.shown(cell.name)).reshape(held.h.shape[2:])
        for age in range(len(line)):
            # Its input, `age` ticks ago, is what its source had for the sample that it saw then.
            x = begun.h.get(cell.sources[0], schedule.forward[cell.name] + age)
            if x is not None:
                line[(begun.number - 1 - age) % len(line), 0] = x.reshape(line.shape[2:])
    due = begun.z.get(cell.name, schedule.backward[cell.name] - 1)
    held.z[0, -1] = 0.0 if due is None else due.reshape(held.h.shape[2:])


def _past(ticks: Ticks, held: Held, age: int, number: int) -> Tensor:
    """The input of a group's first layer, `age` ticks before the last one."""
    line = cast(Tensor, held.line)
    return line[(number - 1 - age) % len(line), 0].clone().view(*ticks.lead, -1)


def _shaped(ticks: Ticks, held: Held, x: Tensor) -> Tensor:
    """A copy in the shape that the eager cell has."""
    layers, _, rows = x.shape
    shape = (*ticks.lead, rows)
    return x.clone().view((layers, *shape) if isinstance(held.group.cell, LayerStack) else shape)
