"""The rates of a block of steps: τ, stride, η, η_z and φ by step and member, β of each weight, and the clock.

A single learner is a population of one, whose tensors have no axis of members.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn.adaptive import Adaptive
from hamlearn.engine.recorded import Pace
from hamlearn.hyper import Hyper
from hamlearn.rates import Rates
from hamlearn.rules import ORDERS
from hamlearn.rules.velocity import Velocity
from hamlearn.streams.blocks import Block

Betas = list[float | Tensor]
"""β of each weight."""


@dataclass(frozen=True)
class Steps:
    """What the samples of a block say of its steps.

    Attributes:
        count: Number of steps.
        tau: τ by step and member, 0 for the usual one and below 0 for an invalid one; `None`: all usual.
        known: Whether there is a target, by step and member; `None` if all samples have one, or none has.
        learns: Whether a loss enters the weights, by step and member.
        active: Which members take part.
    """

    count: int
    tau: np.ndarray | None
    known: np.ndarray | None
    learns: np.ndarray
    active: np.ndarray

    @classmethod
    def of(cls, block: Block, learns: np.ndarray | None = None) -> Steps:
        """The steps of one learner; `learns`: where a loss enters the weights, if not at every target."""
        known = None if block.known is None else np.array(block.known)[:, None]
        if learns is None:
            targets: Any = bool(block.target) if known is None else known[:, 0] & bool(block.target)
            learns = np.broadcast_to(targets, (block.count,))
        tau = None if block.tau is None else time_steps(block.tau)[:, None]
        return cls(block.count, tau, known, learns[:, None], np.ones(1, dtype=bool))


def time_steps(taus: Sequence[Any]) -> np.ndarray:
    """τ of samples as numbers: 0 for the usual one, −1 for an invalid one.

    Example:
        >>> time_steps([None, 2, 0.5, 0.0, "1"]).tolist()
        [0.0, 2.0, 0.5, -1.0, -1.0]
    """
    if set(map(type, taus)) == {float}:
        found = np.array(taus)
        return np.where((found > 0.0) & (found < np.inf), found, -1.0)

    def number(tau: Any) -> float:
        if tau is None:
            return 0.0
        # Anything else is left to the eager engine, which takes it or raises.
        plain = isinstance(tau, float | int) and not isinstance(tau, bool)
        return float(tau) if plain and 0.0 < tau < float("inf") else -1.0

    return np.array([number(tau) for tau in taus], dtype=np.float64)


def one_member(rows: Tensor, dim: int = 0) -> Tensor:
    """The rows of a single learner, whose tensors have no axis of members."""
    return rows.select(dim, 0)


class RateSettings:
    """Hyper-parameters and β of all members, from which the table of a block is made.

    Args:
        hypers: Of each member.
        velocities: β of each member, resolved for its weights.
        order: In sequential order an adaptive β is that after the step, in parallel order that before it.
        fold: Lays members along an axis out as the engine takes them.
        device: Where the rates are needed.
        reads_time: Whether steps are given the time too.

    Attributes:
        groups: Each setting, with the members that have it.
        scheduled: Whether β depends on time.
        timed: Whether a rate or β depends on time.
        driven: Whether weights decay, or β adapts.
    """

    def __init__(
        self,
        hypers: Sequence[Hyper],
        velocities: Sequence[Velocity],
        order: str,
        fold: Callable[..., Tensor] = one_member,
        device: torch.device = torch.device("cpu"),  # noqa: B008 (a constant)
        reads_time: bool = False,
    ) -> None:
        self.hypers, self.velocities, self.order, self.fold, self.device = hypers, velocities, order, fold, device
        self.reads_time = reads_time
        found: dict[int, tuple[Hyper, list[int]]] = {}
        for member, hyper in enumerate(hypers):
            found.setdefault(id(hyper), (hyper, []))[1].append(member)
        self.groups = [(hyper, np.array(members)) for hyper, members in found.values()]
        self.scheduled = any(velocity.scheduled for velocity in velocities)
        self.timed = self.scheduled or not all(hyper.constant() for hyper, _ in self.groups)
        self.driven = any(isinstance(hyper.beta, Adaptive) or hyper.weight_decay for hyper, _ in self.groups)
        firsts = [hyper.phi_first for hyper in hypers]
        self._first = np.array([np.nan if phi is None else phi for phi in firsts], dtype=np.float64)
        # These do not change from block to block: the rates of a usual step, as many rows of them as tensors, β.
        self._usual: np.ndarray | None = None
        self._rows: tuple[int, list[Tensor]] = 0, []
        self._betas: list[Tensor] | None = None

    def table(self, times: np.ndarray, updates: np.ndarray, steps: Steps) -> RatesTable:
        """The table of a block, which begins at these times, after as many updates.

        Raises:
            ConfigError: If a rate that does not depend on time is not valid.
        """
        if self.timed:
            return self._along_time(times, updates, steps)
        if self._usual is None:
            self._usual = np.empty((len(self.hypers), 5))
            for hyper, members in self.groups:
                self._usual[members] = hyper.at(0.0)[:5]
        pending, count = (updates == 0) & ~np.isnan(self._first), steps.count
        if steps.tau is None and not pending.any():
            return RatesTable(self, times, updates, steps, count, self._usual[None], usual=True)
        rates = np.broadcast_to(self._usual, (count, *self._usual.shape)).copy()
        if steps.tau is not None:
            wrong = (steps.tau < 0).any(1)
            count = int(wrong.argmax()) if wrong.any() else count
            for hyper, members in self.groups:
                gaps, places = np.unique(steps.tau[:count, members], return_inverse=True)
                rates[:count, members] = hyper.along(gaps)[places.reshape(count, len(members))]
        if pending.any():
            # It holds until a member has learned from its first target.
            before = np.cumsum(steps.learns, 0) - steps.learns == 0
            rates[..., 4] = np.where(before & pending, self._first, rates[..., 4])
        return RatesTable(self, times, updates, steps, count, rates[:count])

    def _along_time(self, times: np.ndarray, updates: np.ndarray, steps: Steps) -> RatesTable:
        """The table if something depends on time: rates step by step, as each member would ask for them alone."""
        count, rates = steps.count, np.ones((steps.count, len(self.hypers), 5))
        betas: list[list[Betas]] = []
        for member, (hyper, velocity) in enumerate(zip(self.hypers, self.velocities, strict=True)):
            t, done, own = float(times[member]), int(updates[member]), []
            for index in range(count if steps.active[member] else 0):
                tau = float(steps.tau[index, member]) if steps.tau is not None else 0.0
                try:
                    row = hyper.at(t, tau or None, first=done == 0)
                    own.append(velocity.values(t))
                except Exception:
                    # The eager engine takes this sample when its turn comes, and raises the error.
                    count = index
                    break
                rates[index, member] = row[:5]
                done += int(steps.learns[index, member])
                t += row.tau
            betas.append(own)
        # Any values do for a member that rests.
        example = next((own for own in betas if own), [])
        return RatesTable(self, times, updates, steps, count, rates[:count], [own or example for own in betas])

    def packed_betas(self, along: Sequence[Sequence[Betas]] | None, count: int) -> list[Tensor]:
        """β of each weight as the engine takes it: one row per step if it depends on time, else once."""
        if self.scheduled and along is not None:
            rows = [self._betas_of([own[index] for own in along]) for index in range(count)]
            return [torch.stack(column) for column in zip(*rows, strict=True)]
        if self._betas is not None:
            return self._betas
        values: list[Any] = [None] * len(self.hypers)
        for _, members in self.groups:
            found = self.velocities[members[0]].values(0.0)
            for member in members:
                values[member] = found
        packed = self._betas_of(values)
        if not any(velocity.has_tensors for velocity in self.velocities):
            # A tensor may be written to between two blocks.
            self._betas = packed
        return packed

    def _betas_of(self, members: Sequence[Betas]) -> list[Tensor]:
        """One tensor for each weight, given β of all members; a number among tensors takes their shape."""
        found = []
        for column in zip(*members, strict=True):
            tensors = [torch.as_tensor(beta, dtype=torch.float64) for beta in column]
            found.append(self.fold(torch.stack(torch.broadcast_tensors(*tensors)).to(self.device)))
        return found

    def packed_rates(self, table: RatesTable) -> list[Tensor]:
        """τ, stride, η, η_z and φ as the engine takes them, one row per step."""
        count, rows = self._rows
        if table.usual and count == table.count:
            return rows
        rows = self.packed(np.broadcast_to(table.rates, (table.count, *table.rates.shape[1:])))
        if table.usual:
            self._rows = table.count, rows
        return rows

    def packed(self, values: np.ndarray) -> list[Tensor]:
        """The entries along the last axis, each as a tensor of rows by step."""
        columns = torch.from_numpy(np.moveaxis(values, -1, 0).copy())
        return list(self.fold(columns.to(self.device), 2).unbind())


@dataclass
class RatesTable:
    """Rates and β of the steps of a block, as far as they are valid.

    Attributes:
        settings: What it was made from.
        begun: Time of each member before the block.
        updates: Updates of each member before the block.
        steps: What the samples say.
        count: Number of steps before the first one that has no valid rates for some member.
        rates: τ, stride, η, η_z and φ by step and member; one step stands for all if they are alike.
        betas: β by member, step and weight, if a rate depends on time.
        usual: Whether every step is a usual one.
    """

    settings: RateSettings
    begun: np.ndarray
    updates: np.ndarray
    steps: Steps
    count: int
    rates: np.ndarray
    betas: list[list[Betas]] | None = None
    usual: bool = False

    @cached_property
    def times(self) -> list[float]:
        """Time of a single learner before each step, and after the last one."""
        found: list[float] = self.clock[:, 0].tolist()
        return found

    @property
    def learned(self) -> int:
        """Updates of a single learner after the block."""
        return int(self.updates[0]) + int(self.steps.learns[: self.count].sum())

    @property
    def phis(self) -> np.ndarray:
        """φ of the steps of a single learner; one for all if it does not change."""
        phis: np.ndarray = self.rates[:, 0, 4]
        return phis

    @cached_property
    def clock(self) -> np.ndarray:
        """Time of each member before each step, and after the last one."""
        taus, begun, active = self.rates[..., 0], self.begun, self.steps.active
        everywhere = bool(active.all())
        if everywhere and len(taus) == 1 and (begun == begun[0]).all() and (taus == taus[0, 0]).all():
            # Often all members have one clock.
            taus, begun = taus[:, :1], begun[:1]
        clock = np.empty((self.count + 1, len(begun)))
        clock[0], clock[1:] = begun, taus
        if not everywhere:
            clock[1:] *= active
        # Added up one by one, as single steps do.
        np.add.accumulate(clock, out=clock)
        return np.broadcast_to(clock, (self.count + 1, len(self.begun)))

    def phi(self, index: int, member: int = 0) -> float:
        """φ of a step."""
        return float(self.rates[min(index, len(self.rates) - 1), member, 4])

    def rates_of(self, member: int = 0) -> list[Rates]:
        """The rates of a member step by step; once if they are alike."""
        s = self.settings.hypers[member].s
        return [Rates._make([*row, s, 0.0]) for row in self.rates[:, member].tolist()]

    def pace(self) -> Pace:
        """Rates and β as the engine takes them; φ is 0 if a sample has no target."""
        settings, known, flags = self.settings, self.steps.known, list[Tensor]()
        rows, betas = settings.packed_rates(self), settings.packed_betas(self.betas, self.count)
        if known is not None:
            (targets,) = settings.packed(known[: self.count, :, None].astype(np.float64))
            rows = [*rows[:4], rows[4] * targets]
            # An order of the user's may do without a target what it would not do with φ = 0.
            flags = [targets.bool()] if settings.order not in ORDERS else []
        if settings.reads_time:
            rows = [*rows, *settings.packed(self.clock[: self.count, :, None])]
        return Pace(rows, betas, settings.scheduled, self._drive() if settings.driven else [], flags)

    def _drive(self) -> list[Tensor]:
        """Weight decay and the moments of an adaptive β; settings without have zeros."""
        settings, learns = self.settings, self.steps.learns[: self.count]
        enters = learns & (np.broadcast_to(self.rates[..., 4], learns.shape) != 0)
        tables = [
            (own, _drive_rows(hyper, settings.order, self.updates[own], learns[:, own], enters[:, own]))
            for hyper, own in settings.groups
        ]
        rows = np.zeros((*learns.shape, max(table.shape[-1] for _, table in tables)))
        for own, table in tables:
            rows[:, own, : table.shape[-1]] = table
        return settings.packed(rows)


def _drive_rows(
    hyper: Hyper, order: str, updates: np.ndarray, learns: np.ndarray, enters: np.ndarray
) -> np.ndarray:
    """λ, and where β adapts its `Moments`, by step and member.

    Args:
        hyper: The hyper-parameters.
        order: In sequential order β is that after the step, in parallel order that before it.
        updates: Updates of each member before the block.
        learns: Whether each step has a target.
        enters: Whether a loss enters ω there: v stays where φ is 0.

    Example:
        >>> yes = np.array([[True], [True]])
        >>> _drive_rows(Hyper.from_adam(betas=(0.5, 0.75)), "sequential", np.array([0]), yes, yes)[:, 0, 3]
        array([0.5 , 0.75])
    """
    rows = np.empty((*learns.shape, 7))
    rows[..., 0] = hyper.weight_decay
    beta = hyper.beta
    if not isinstance(beta, Adaptive):
        return rows[..., :1]
    rows[..., 1] = np.where(enters, beta.keep, 1.0)
    rows[..., 2] = np.where(enters, 1 - beta.keep, 0.0)
    rows[..., 3:5] = 1.0
    k = updates + np.cumsum(learns, 0)
    if order == "parallel":
        k -= learns
    if beta.momentum is not None:
        rows[..., 3] = 1 - beta.momentum ** np.maximum(k, 1)
        rows[..., 4] = np.sqrt(1 - beta.keep ** np.maximum(k, 1))
    rows[..., 3] = np.where(k < 1, np.inf, rows[..., 3])  # β is 0 before the first update, as `Adaptive.at` says
    rows[..., 5], rows[..., 6] = beta.eps, beta.shrink
    return rows
