"""Rates of many members for each step of a sheet, each at its own time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn.engines.blocks.driven import drive_rows
from hamlearn.engines.blocks.step_runner import StepPlan, first_watch
from hamlearn.engines.eager.parts import LearnerParts
from hamlearn.engines.lanes.agent_lanes import AgentLanes
from hamlearn.engines.lanes.agent_sheet import Sheet
from hamlearn.engines.lanes.lanes import Layout
from hamlearn.engines.lanes.population_runner import alike_betas
from hamlearn.engines.recorded import Pace, Watch
from hamlearn.hyper import Hyper
from hamlearn.rates import Rates


class Settings:
    """What the hyper-parameters of the members say once and for all.

    Attributes:
        groups: Each hyper-parameter setting, with the lanes that have it.
        timed: Whether anything depends on time.
        scheduled: Whether β does.
        has_tensors: Whether β is a tensor, which may be written to.
        driven: Whether weights decay, or β adapts.
        first: φ of the first update, by lane; not a number where it is as all others.
        rows: Rates of a usual step, by lane; empty where anything depends on time.
        kept: What has been found for blocks of some length.
    """

    def __init__(self, members: list[LearnerParts]) -> None:
        found: dict[int, tuple[Hyper, list[int]]] = {}
        for lane, parts in enumerate(members):
            found.setdefault(id(parts.hyper), (parts.hyper, []))[1].append(lane)
        self.groups = [(hyper, np.array(lanes)) for hyper, lanes in found.values()]
        firsts = [members[lanes[0]] for _, lanes in self.groups]
        self.scheduled = any(parts.system.velocity.scheduled for parts in firsts)
        self.timed = any(parts.timed for parts in firsts)
        self.has_tensors = any(parts.system.velocity.has_tensors for parts in firsts)
        self.driven = any(parts.system.drive is not None for parts in firsts)
        self.first = np.full(len(members), np.nan)
        self.rows = np.empty((len(members), 5))
        self.kept: dict[Any, Any] = {}
        for hyper, lanes in self.groups:
            if hyper.phi_first is not None:
                self.first[lanes] = hyper.phi_first
            if not self.timed:
                self.rows[lanes] = hyper.at(0.0)[:5]


class AgentPlan:
    """Rates and β of the steps of a sheet, as far as they are valid for each lane.

    Attributes:
        counts: How many samples of each lane have a valid time step.
        rates: By step, lane and kind; one step stands for all where they are alike.
        alone: Whether a step that is skipped changes nothing for those after it.
    """

    def __init__(self, members: list[LearnerParts], lanes: AgentLanes, sheet: Sheet, settings: Settings) -> None:
        self.members, self.lanes, self.sheet, self.settings = members, lanes, sheet, settings
        self.counts = sheet.counts
        self.betas: list[list[list[float | Tensor]]] = []
        if settings.timed:
            self._along_time()
        else:
            self._at_any_time()
        self.alone = not (settings.timed or settings.driven or self._pending().any())

    @property
    def usual(self) -> bool:
        """Whether all steps of a lane are alike."""
        return len(self.rates) < self.sheet.count or self.sheet.count == 1

    def clock(self, taken: np.ndarray | None) -> np.ndarray:
        """Times of the lanes before each step and after the last, as repeated addition gives them.

        Args:
            taken: Which steps were taken, by step and lane; `None`: all.
        """
        count, (_, lanes, _), times = self.sheet.count, self.rates.shape, self.lanes.times
        taus = self.rates[:, :, 0]
        together = (
            taken is None and len(taus) == 1 and bool((times == times[0]).all() and (taus == taus[0, 0]).all())
        )
        columns = 1 if together else lanes
        clock = np.empty((count + 1, columns))
        clock[0], clock[1:] = times[:columns], taus[:, :columns]
        if taken is not None:
            clock[1:] *= taken
        return np.broadcast_to(np.add.accumulate(clock, out=clock), (count + 1, lanes))

    def phi(self, index: int, lane: int) -> float:
        """φ of a step of a lane."""
        return float(self.rates[min(index, len(self.rates) - 1), lane, 4])

    def phis(self, index: int) -> np.ndarray:
        """φ of a step, by lane."""
        return self.rates[min(index, len(self.rates) - 1), :, 4]

    def warn(self) -> None:
        """Let members tell where a step is too long for its dissipation."""
        for lane, parts in enumerate(self.members):
            if parts.hyper.clock == "events":
                continue
            rows = self.rates[: self.counts[lane], lane]
            parts.usual.overshoot.look(Rates._make([*row, parts.hyper.s]) for row in rows.tolist())

    def watch(self, on_nonfinite: str) -> Watch:
        """What has to be looked at step by step."""
        if on_nonfinite == "ignore":
            return "nothing"
        hypers = [hyper for hyper, _ in self.settings.groups]
        betas = (step for lane in self.betas for step in lane) if self.betas else self._values()
        return first_watch(self.rates, betas, hypers)

    def pace(self) -> Pace:
        """Rates and β as the engine takes them."""
        sheet, layout, kept = self.sheet, self.lanes.layout, self.settings.kept
        key = ("rates", sheet.count)
        if self.usual and self.rates is self.settings.kept.get("usual") and key in kept:
            rows = kept[key]
        else:
            table = np.broadcast_to(self.rates, (sheet.count, *self.rates.shape[1:]))
            rows = [layout.fold(torch.from_numpy(table[..., i].copy()), 1) for i in range(5)]
            if self.usual and self.rates is self.settings.kept.get("usual"):
                for old in [old for old in kept if old[0] == "rates" and old != key]:
                    del kept[old]
                kept[key] = rows
        if sheet.known is not None:
            mask = torch.from_numpy(sheet.known.astype(np.float64))
            rows = [*rows[:4], rows[4] * layout.fold(mask, 1)]
        return Pace(rows, self._packed_betas(), self.settings.scheduled, self._drive())

    def _at_any_time(self) -> None:
        """Nothing depends on time, but for gaps and the first φ."""
        settings, sheet, pending = self.settings, self.sheet, self._pending()
        if sheet.tau is None and not pending.any():
            self.rates = settings.kept.setdefault("usual", settings.rows[None])
            return
        table = np.broadcast_to(settings.rows, (sheet.count, *settings.rows.shape)).copy()
        if sheet.tau is not None:
            wrong = sheet.tau < 0
            self.counts = np.where(wrong.any(0), np.minimum(wrong.argmax(0), sheet.counts), sheet.counts)
            for hyper, lanes in settings.groups:
                gaps, places = np.unique(sheet.tau[:, lanes], return_inverse=True)
                rates = hyper.along([gap if gap > 0 else None for gap in gaps.tolist()])
                table[:, lanes] = rates[places.reshape(sheet.count, len(lanes))]
        if pending.any():
            # It holds until something has been learned.
            stop: Any = 1 if sheet.together.target else sheet.count
            if sheet.known is not None:
                stop = np.where(sheet.known.any(0), sheet.known.argmax(0) + 1, sheet.count)
            early = (np.arange(sheet.count)[:, None] < stop) & pending
            table[..., 4] = np.where(early, settings.first, table[..., 4])
        self.rates = table

    def _along_time(self) -> None:
        """Something does: each member's steps are planned as if it were alone."""
        sheet, lanes = self.sheet, self.lanes
        self.rates = np.ones((sheet.count, len(self.members), 5))
        self.counts = sheet.counts.copy()
        for lane, (parts, block) in enumerate(zip(self.members, sheet.blocks, strict=True)):
            betas: list[list[float | Tensor]] = []
            if block is not None:
                plan = StepPlan(parts.system, parts.choices.order, parts.timed, lanes.state(lane), block)
                self.counts[lane] = plan.count
                if plan.count:
                    self.rates[: plan.count, lane] = plan.rates
                betas = plan.betas
            self.betas.append(betas)

    def _pending(self) -> np.ndarray:
        return (self.lanes.updates == 0) & ~np.isnan(self.settings.first)

    def _betas(self) -> list[list[list[float | Tensor]]]:
        """β of each weight, by lane and step; one step stands for all where β does not depend on time."""
        if self.betas:
            example = next(betas for betas in self.betas if betas)
            return [betas or example[:1] for betas in self.betas]
        found: list[Any] = [None] * len(self.members)
        for (_, lanes), values in zip(self.settings.groups, self._values(), strict=True):
            for lane in lanes:
                found[lane] = [values]
        return found

    def _values(self) -> list[list[float | Tensor]]:
        """β of each weight, for each setting of the hyper-parameters."""
        return [self.members[lanes[0]].system.velocity.values(0.0) for _, lanes in self.settings.groups]

    def _packed_betas(self) -> list[Tensor]:
        settings, layout = self.settings, self.lanes.layout
        lasting = not settings.has_tensors and not settings.scheduled
        if lasting and "packed" in settings.kept:
            return settings.kept["packed"]
        given, steps = self._betas(), self.sheet.count if settings.scheduled else 1
        rows = []
        for k in range(steps):
            now = [betas[min(k, len(betas) - 1)] for betas in given]
            rows.append([_packed(column, layout) for column in zip(*now, strict=True)])
        packed = [torch.stack(column) for column in zip(*rows, strict=True)] if settings.scheduled else rows[0]
        if lasting:
            settings.kept["packed"] = packed
        return packed

    def _drive(self) -> list[Tensor]:
        if not self.settings.driven:
            return []
        sheet, lanes, order = self.sheet, self.lanes, self.members[0].choices.order
        learns, tables = sheet.learns(), {}
        phis = np.broadcast_to(self.rates[..., 4], learns.shape)
        for hyper, group in self.settings.groups:
            mine = learns[:, group]
            enters = mine & (phis[:, group] != 0)
            tables[id(hyper)] = drive_rows(hyper, order, lanes.updates[group], mine, enters)
        width = max(table.shape[-1] for table in tables.values())
        rows = np.zeros((*learns.shape, width))
        for hyper, group in self.settings.groups:
            table = tables[id(hyper)]
            rows[:, group, : table.shape[-1]] = table
        return [lanes.layout.fold(torch.from_numpy(rows[..., i].copy()), 1) for i in range(width)]


def _packed(betas: Sequence[float | Tensor], layout: Layout) -> Tensor:
    if any(isinstance(beta, Tensor) for beta in betas):
        return layout.pack(alike_betas(betas))
    return layout.fold(torch.tensor(betas, dtype=torch.float64))
