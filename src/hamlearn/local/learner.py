"""The local learner: all nodes compute and learn in every tick."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hamlearn._base.replay import evaluating
from hamlearn.engine.blocks.runner import BlockRunner, say_eager
from hamlearn.engine.fused import FusedRunner, fit, unavailable
from hamlearn.engine.owner import BaseLearner
from hamlearn.engine.setting import check_chunk, check_running_cost, no_sample, require_gradients
from hamlearn.engine.ticks.runner import TickRunner
from hamlearn.engine.ticks.ticker import Ticker
from hamlearn.errors import ConfigError
from hamlearn.hyper import Hyper
from hamlearn.local.setting import Settings, check_loss, check_setting
from hamlearn.loops import UnsupportedError
from hamlearn.rules.local.aligned import Aligned
from hamlearn.rules.local.costates import loaded, saved
from hamlearn.rules.local.delay_free import DelayFree
from hamlearn.rules.local.local_system import ANY, LocalSystem, Losses, OrderName
from hamlearn.rules.local.unaligned import Unaligned
from hamlearn.rules.local.wiring import Groups, wire
from hamlearn.rules.running_cost import RunningCost
from hamlearn.sample import Sample, State, StepReport
from hamlearn.state.packing import pack, unpack
from hamlearn.state.tensors import Tensors
from hamlearn.streams.reader import Reader


class LocalLearner(Settings, BaseLearner):
    """Hamiltonian Learning in which every node works in every tick, from its neighbours alone.

    ĥ_c = f_c(h_p of its parents p); z_p⁺ = τφ ∂L/∂h_p + Σ_c z_c·∂ĥ_c/∂h_p − τη_z z_p; ω_c⁺ = (1 − τη) ω_c +
    z_c·∂ĥ_c/∂θ_c; θ⁺ = θ − τβ⊙ω (parallel order with s = −1 and f_h = (−h + ĥ)/τ, Algorithm 1 of the paper).
    A loss that reads weights itself, as one with a penalty does, adds τφ ∂L/∂θ to ω.

    The weights are those that the module has when the learner is made. A step is taken whole or not at all: an
    error leaves the learner as it was, and Ctrl-C waits until a tick is done.

    Args:
        module: An `nn.Sequential`, one node per child; a `Graph`; or `Neurons`.
        loss: L(y, target), a scalar; with several outputs applied to each, or a mapping from outputs to losses.
        hyper: τ, η, β, φ and s. Names in `beta` are those of `module.named_parameters()`.
        groups: Consecutive nodes to compute at once, with delays only between groups: how many groups of about
            equal size, or the indices of the first nodes of all groups but the first. `None`: each node is one.
        hold: Ticks that each sample is shown for (passes over all layers, if `delay_free`).
        align: Keep each node's past inputs, so that a costate meets the input of its own sample; a new sample may
            then enter at every tick. For graphs without cycles.
        delay_free: At step κ only layer κ mod ν moves, and the loss enters once a pass, when the output is that of
            the sample. `"literal"`: it enters at every κ, as the paper writes it. For graphs without cycles.
        order: `"parallel"`; or `"sequential"`, where the loss is taken on the new state, ω moves with the new z
            and θ with the new ω: one group is then plain BackPropagation.
        stacked: Whether runs of equal layers are kept as one batched tensor, which changes speed alone.
        on_nonfinite: What to do if a loss, state, costate, weight or buffer would not be finite: `"raise"`, or
            `"skip"` the sample; the last good state is kept either way. `"skip"` also drops the samples in flight
            if aligned, and else states and costates if these are the cause and not the sample. `"ignore"` saves
            the check.
        running_cost: R(u, h, dh, y, theta, t), added to H at every tick, with or without a target: h and dh, its
            rate, are mappings by node, theta by parameter name. Not with `align`.

    Example:
        >>> import torch, hamlearn as hl
        >>> from hamlearn.local import LocalLearner
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        >>> learner = LocalLearner(net, torch.nn.functional.mse_loss, hl.Hyper(eta_z=0.0), align=True)
        >>> stream = [hl.Sample(torch.full((1, 2), k / 5), torch.ones(1, 1)) for k in range(5)]
        >>> [report.sample is sample for report, sample in zip(learner.run(stream), stream)]
        [True, True, True, True, True]
        >>> learner.delays
        {'0': 6, '1': 4, '2': 2}
        >>> print(repr(learner).split(", Hyper")[0])
        LocalLearner(3 nodes with 33 weights, aligned, hold=1, order='parallel'
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Losses,
        hyper: Hyper,
        groups: Groups = None,
        hold: int = 1,
        align: bool = False,
        delay_free: bool | Literal["literal"] = False,
        order: OrderName = "parallel",
        stacked: bool = True,
        on_nonfinite: Literal["raise", "skip", "ignore"] = "raise",
        running_cost: RunningCost | None = None,
    ) -> None:
        check_setting(hyper, hold, align, delay_free, order, on_nonfinite)
        check_running_cost(running_cost)
        check_loss(loss)
        wiring = wire(module, groups)
        cycle = wiring.cycle() if delay_free else None
        if cycle:
            raise ConfigError(f"delay_free needs layers in a row, but there is a cycle: {' → '.join(cycle)}")
        super().__init__()
        self._hold, self._align, self._delay_free = hold, align, delay_free
        # Delay-free, layers move one by one.
        longest = 0 if not stacked else 1 if delay_free else ANY
        self._system = system = LocalSystem(wiring, loss, hyper, order, longest, running_cost)
        self._rule: Aligned | Unaligned
        if delay_free:
            self._rule = DelayFree(system, literal=delay_free == "literal")
        else:
            self._rule = Aligned(system) if align else Unaligned(system)
        self._ticker = Ticker(self._system, self._rule, on_nonfinite)
        self._warned = False

    def __repr__(self) -> str:
        weights = sum(weight.numel() for weight in self._system.theta)
        kind = "delay-free" if self._delay_free else "aligned" if self._align else "unaligned"
        return (
            f"LocalLearner({len(self.nodes)} nodes with {weights:,} weights, {kind}, hold={self._hold}, "
            f"order={self._system.order!r}, {self._system.hyper!r})"
        )

    def __getstate__(self) -> dict[str, Any]:
        self._settle()
        return vars(self) | {"_blocks": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        for cell in self._system.stacks:
            # A copy of a weight is not a view of the copied stack any more.
            cell.own()

    @property
    def module(self) -> nn.Module:
        """The module that learns, with the weights as they are now."""
        self._settle()
        return self._system.wiring.root

    @property
    def state(self) -> State:
        """Time, h and z by node, and ω by parameter name. Aligned, each node's are those of its own sample."""
        self._settle()
        now = self._ticker
        h, z = self._rule.by_node(now.carry)
        return State(now.t, h or None, z or None, self._system.by_name(now.omega), now.updates)

    @property
    def nodes(self) -> list[str]:
        """Names of the nodes in the order in which a signal passes; a group has the name of its last node."""
        return [node.name for node in self._system.wiring.nodes]

    @property
    def stacks(self) -> list[tuple[str, ...]]:
        """Runs of nodes that are kept as one batched tensor."""
        return [cell.names for cell in self._system.cells if cell.length > 1]

    @property
    def delays(self) -> dict[str, int]:
        """Aligned: ticks from a node's computing of a sample to its learning from it."""
        if not isinstance(self._rule, Aligned):
            raise ConfigError(
                "delays are defined for align=True: otherwise a costate meets whatever input is there"
            )
        schedule = self._rule.schedule
        cells = [cell for cell in self._system.cells if cell.name in schedule.backward]
        return {n: delay for c in cells for n, delay in zip(c.names, schedule.delays(c.name), strict=True)}

    def step(self, sample: Sample) -> StepReport:
        """Show one sample for `hold` ticks. If anything is wrong with it, the learner stays exactly as it was.

        The report is of the last tick. Aligned, it is of the sample whose output became complete; while the first
        samples are under way there is none, and `y`, `loss` and `sample` are `None`.
        """
        if not isinstance(sample, Sample):
            raise no_sample(sample)
        require_gradients()
        self._settle()
        report = self._ticker.show(sample, self._hold * self._rule.ticks, self._reader)
        return report if report is not None else StepReport(self._ticker.t, None, None, None)

    def flush(self) -> list[StepReport]:
        """Aligned: let the samples in flight pass through, without a new one; returns their reports."""
        self._settle()
        reports = []
        while isinstance(self._rule, Aligned) and self._rule.in_flight(self._ticker.carry):
            report = self._ticker.show(None, 1)
            if report is not None:
                reports.append(report)
        return reports

    def run(
        self,
        stream: Iterable[Sample],
        max_steps: int | None = None,
        engine: Literal["eager", "compiled", "auto"] = "eager",
        chunk: int | None = None,
        *,
        resume: bool = False,
    ) -> Iterator[StepReport]:
        """Take samples from `stream` and yield a report for each, in order.

        Aligned, reports come some ticks after their samples; at the end of a finite stream the samples in flight
        are flushed. If `max_steps` ends the run first they stay in flight: take another run, or `flush()`.

        Args:
            stream: Any iterable of samples, endless or not.
            max_steps: How many samples to take at most.
            engine: `"eager"`, one tick at a time. `"compiled"`: the tick is recorded once, and a block of ticks is
                one loop; on a GPU, chains of linear layers are ticked by kernels that read and write each weight
                once. Between two reports the learner is where the last one left it. If a tick
                cannot be recorded, the run falls back to the eager engine and says why.
            chunk: How many ticks the compiled engine takes before it hands out reports, at most; `None`: 256.
            resume: Continue where the loaded checkpoint was saved, as in `Learner.run`.
        """
        size = max(1, check_chunk(chunk, on_gpu=False) // self._hold)
        self._system.require_same()
        return self._reports_of_samples(self._reports(stream, max_steps, engine, size, resume), max_steps)

    def _reports_of_samples(self, reports: Iterator[StepReport], max_steps: int | None) -> Iterator[StepReport]:
        """Those reports that belong to a sample, and at the end of the stream those of the samples in flight."""
        taken = 0
        for report in reports:
            taken += 1
            if report.y is not None or report.skipped:
                yield report
        if max_steps is None or taken < max_steps:
            yield from self.flush()

    def _runner(self) -> BlockRunner | None:
        """Fused ticks on a GPU, if they fit; else a loop of recorded ones; says once why there is none."""
        if self._blocks is not None:
            return self._blocks
        given = self._ticker, self._hold, self._reader, self.step
        try:
            self._blocks = FusedRunner(*given) if self._fuses() else TickRunner(*given)
        except UnsupportedError as error:
            if not self._warned:
                self._warned = True
                say_eager(error, frames=3)
        return self._blocks

    def _fuses(self) -> bool:
        if unavailable(self._system.theta[0].device) is not None:
            return False
        try:
            fit(self._system)
        except UnsupportedError:
            return False
        return True

    @torch.no_grad()
    def predict(self, u: Any) -> Any:
        """The output for `u`, in evaluation mode. Nothing moves.

        Without cycles: what the network settles at when `u` is held. With cycles: what it shows after `u` has
        been held for `hold` ticks from the present state on.
        """
        wiring = self._system.wiring
        with evaluating(self.module):
            if wiring.cycle() is None:
                return self._system.read(wiring.forward(u))
            h = self._rule.by_node(self._ticker.carry)[0] or wiring.start(u)
            for _ in range(self._hold):
                values = wiring.values(u) | h
                h = {node.name: node(*(values[s] for s in node.sources)) for node in wiring.nodes}
            return self._system.read(h)

    def reset(self) -> None:
        """Forget states and costates of the nodes, and samples in flight. ω, θ and the time stay."""
        self._settle()
        self._ticker.drop()

    def _root(self) -> nn.Module:
        return self._system.wiring.root

    def _setting(self) -> dict[str, Any]:
        system = self._system
        return {
            "hold": self.hold,
            "align": self.align,
            "delay_free": self.delay_free,
            "order": system.order,
            "cells": [list(cell.names) for cell in system.cells],
            "sources": {name: list(sources) for name, sources in system.wiring.sources.items()},
            "outputs": list(system.wiring.outputs),
            "learnable": system.names,
        }

    def _own_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        ticker, tensors = self._ticker, dict[str, Tensor]()
        for i, omega in enumerate(ticker.omega):
            tensors |= saved(omega, str(i))
        held, carry = pack(self._rule.saved(ticker.carry), "carry/")
        return tensors | held, {"t": ticker.t, "updates": ticker.updates, "carry": carry}

    def _own_change(self, left: Tensors, header: dict[str, Any]) -> Callable[[], None]:
        ticker, system = self._ticker, self._system
        forms, device = system.forms(), system.theta[0].device
        moved = {
            "omega": [loaded(left, str(i), form, device) for i, form in enumerate(forms)],
            "t": header["t"],
            "updates": header["updates"],
        }
        moved["carry"] = self._rule.loaded(unpack(header["carry"], left, "carry/", device))
        return lambda: vars(ticker).update(moved)


def settled(learner: LocalLearner) -> tuple[Ticker, Reader]:
    """All that a local learner holds, its place in the stream included, with nothing left to an engine."""
    learner._settle()
    return learner._ticker, learner._reader
