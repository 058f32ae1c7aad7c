"""Blocks of ticks by kernels that read and write all weights and costates once."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from hamlearn.engine.fused.fit import Group, fit
from hamlearn.engine.fused.tick import AT_ONCE, Held, Ticks
from hamlearn.engine.recorded import BlockResult, Pace, Watch
from hamlearn.engine.ticks.runner import TickPlan, TickRunner
from hamlearn.loops import UnsupportedError
from hamlearn.loops.step_cache import StepCache
from hamlearn.rules.local.aligned import Aligned
from hamlearn.rules.local.costates import dense
from hamlearn.rules.local.flights import FlightState, StackState
from hamlearn.sample import Sample
from hamlearn.state.carry import Carry
from hamlearn.streams.blocks import Block


class _NoRecordings:
    """Kernels are not recorded steps: nothing is kept that could become stale."""

    steps = StepCache()


class FusedRunner(TickRunner):
    """Ticks of a chain of linear layers on a GPU, in blocks like any others, for one sample at a time.

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
        return super().plan(block) if self._fits(block, fit(self.system)) else None

    def loop(self, begun: Any, plan: TickPlan, begins: Tensor | None, watch: Watch, first: Sample) -> BlockResult:
        """All ticks of a block, in stretches as long as there are graphs for."""
        rows, pace, count = plan.rows, plan.pace(), plan.rows.count
        assert rows.u is not None
        target = plan.compared.target[0] if plan.compared.target else None
        ticks = self._ready(rows.u[0], target)
        self._put(ticks, begun)
        table, after = self._rates(ticks, pace, begins, count, compares=target is not None)
        u = rows.u[0].reshape(count, -1)
        y = ticks.y.new_empty(count, *ticks.lead, ticks.y.shape[1])
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
        u, first, last = block.u[0], groups[0].weight, groups[-1].weight
        fits = (u.shape[-1], u.dtype, u.device) == (first.shape[2], first.dtype, first.device)
        if u.dim() < 2 or not fits or not u[0].numel():
            return False
        lead, carry = u.shape[1:-1], self.ticker.carry
        if lead.numel() > 1:
            raise UnsupportedError(
                f"samples come in batches of {lead.numel()}, and fused ticks take one sample at a time"
            )
        if not self.rule.aligned and any(h.shape[1:-1] != lead for h in carry.h):
            return False
        if not block.target:
            return True
        target, y = block.target[0], (*lead, last.shape[1])
        if target.device != first.device:
            return False
        if self._loss is nn.functional.mse_loss:
            return target.shape[1:] == y and target.dtype == first.dtype
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
            usual = (*lead, groups[-1].weight.shape[1]), groups[-1].weight.dtype
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
            held.h[0], held.z[0] = h.reshape(held.h[0].shape), z.reshape(held.z[0].shape)

    def _given(self, ticks: Ticks, begun: Any, count: int) -> Carry:
        """Copies of what the ticks have led to, as the rule carries it."""
        rule, omega = self.rule, list[Any](self.ticker.omega)
        for held in ticks.held:
            for slot, own in zip(held.group.slots, held.omega, strict=True):
                omega[slot] = own.clone().view(self.system.theta[slot].shape)
        h, z = [ticks.shaped(held.h[0]) for held in ticks.held], [ticks.shaped(held.z[0]) for held in ticks.held]
        if not isinstance(rule, Aligned):
            return Carry(h, z, omega, None)
        carry = rule.empty()._replace(number=begun.number + count)
        for held, states, costates in zip(ticks.held, h, z, strict=True):
            name = held.group.cell.name
            ring = ticks.shaped(cast(Tensor, held.line))
            carry.stacks[name] = StackState(states, costates[:-1].clone(), ring)
            carry.h.put(name, rule.schedule.shown(name), states[-1].clone())
            carry.z.put(name, rule.schedule.backward[name] - 1, costates[-1].clone())
        return rule.flat(carry, omega)


def _put_aligned(held: Held, rule: Aligned, begun: FlightState) -> None:
    """States, costates and past inputs of one group."""
    name, line = held.group.cell.name, cast(Tensor, held.line)
    stack = begun.stacks[name]
    held.h[0] = stack.h.reshape(held.h[0].shape)
    held.z[0, :-1] = stack.z.reshape(held.z[0, :-1].shape)
    line.copy_(stack.ring.reshape(line.shape))
    due = begun.z.get(name, rule.schedule.backward[name] - 1)
    held.z[0, -1] = 0.0 if due is None else due.reshape(held.z[0, -1].shape)
