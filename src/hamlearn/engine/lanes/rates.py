"""One table of rates for all members: τ, stride, η, η_z and φ by step and lane, and β of each weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn.engine.blocks.driven import drive_rows
from hamlearn.engine.blocks.step_runner import first_watch
from hamlearn.engine.lanes.batch import LaneBatch
from hamlearn.engine.lanes.lanes import Lanes, Layout
from hamlearn.engine.recorded import Pace, Watch
from hamlearn.hyper import Hyper
from hamlearn.rules.velocity import Velocity


class LaneHyper:
    """The hyper-parameters of all members.

    Args:
        hypers: Of each member.
        velocities: β of each member, resolved for its weights.
        order: Name of the order.

    Attributes:
        groups: Each setting, with the lanes that have it.
        timed: Whether a rate or β depends on time.
        scheduled: Whether β does.
        driven: Whether weights decay, or β adapts.
        first: φ of the first update, by lane; NaN if it is that of all others.
        rows: Rates of a usual step, by lane; `None` if they depend on time.
        kept: Number of steps of a block, and the rates of its steps, if they are the usual ones.
        betas: β of each weight as the engine takes it, if it is the same for every block.
    """

    def __init__(self, hypers: Sequence[Hyper], velocities: Sequence[Velocity], order: str, driven: bool) -> None:
        self.hypers, self.velocities, self.order, self.driven = hypers, velocities, order, driven
        found: dict[int, tuple[Hyper, list[int]]] = {}
        for lane, hyper in enumerate(hypers):
            found.setdefault(id(hyper), (hyper, []))[1].append(lane)
        self.groups = [(hyper, np.array(lanes)) for hyper, lanes in found.values()]
        self.scheduled = any(velocity.scheduled for velocity in velocities)
        self.timed = self.scheduled or not all(hyper.constant() for hyper, _ in self.groups)
        self.has_tensors = any(velocity.has_tensors for velocity in velocities)
        firsts = [hyper.phi_first for hyper in hypers]
        self.first = np.array([np.nan if first is None else first for first in firsts])
        self.rows: np.ndarray | None = None
        if not self.timed:
            self.rows = np.empty((len(hypers), 5))
            for hyper, lanes in self.groups:
                self.rows[lanes] = hyper.at(0.0)[:5]
        self.kept: tuple[int, list[Tensor]] = 0, []
        self.betas: list[Tensor] | None = None

    def still_betas(self) -> list[list[list[float | Tensor]]]:
        """β of each weight by lane, for one step that stands for all."""
        found: list[Any] = [None] * len(self.hypers)
        for _, lanes in self.groups:
            values = [self.velocities[lanes[0]].values(0.0)]
            for lane in lanes:
                found[lane] = values
        return found


class LaneRates:
    """Rates and β of the steps of a batch.

    Args:
        hyper: The hyper-parameters of all members.
        lanes: Where they are before the batch.
        batch: The samples.

    Attributes:
        count: Number of steps before the first one that has no valid rates in some lane.
        rates: τ, stride, η, η_z and φ by step and lane; one step stands for all if they are alike.
        independent: Whether a step that is skipped changes nothing for those after it.
        skipped: Which steps were skipped, by step and lane; `None` if none was.
        times: Time of each lane before each step and after the last one.
    """

    def __init__(self, hyper: LaneHyper, lanes: Lanes, batch: LaneBatch) -> None:
        self.hyper, self.lanes, self.batch = hyper, lanes, batch
        self.count, self.usual = batch.count, False
        self.rates: np.ndarray
        self.betas: list[list[list[float | Tensor]]]
        self.pending = (lanes.updates == 0) & ~np.isnan(hyper.first)
        if hyper.rows is None:
            self._along_time()
        else:
            self._at_any_time(hyper.rows)
        self.rates = self.rates[: self.count]
        self.independent = not (hyper.timed or hyper.driven or self.pending.any())

    def finish(self, skipped: np.ndarray | None) -> np.ndarray | int:
        """Note which steps were skipped; returns how many targets each lane has learned from."""
        batch, lanes = self.batch, self.lanes
        taus, begun = self.rates[:, :, 0], lanes.times
        self.skipped = skipped
        everywhere = skipped is None and bool(batch.active.all())
        if everywhere and len(taus) == 1 and (begun == begun[0]).all() and (taus == taus[0, 0]).all():
            # Often all lanes have one clock.
            taus, begun = taus[:, :1], begun[:1]
        clock = np.empty((self.count + 1, len(begun)))
        clock[0], clock[1:] = begun, taus
        if not everywhere:
            clock[1:] *= batch.active if skipped is None else batch.active & ~skipped
        # Added up one by one, as single steps do.
        np.add.accumulate(clock, out=clock)
        self.times = np.broadcast_to(clock, (self.count + 1, len(lanes.times)))
        if batch.complete and skipped is None:
            return self.count
        return (batch.learns if skipped is None else batch.learns & ~skipped).sum(0)

    def phi(self, index: int, lane: int) -> float:
        """φ of a step of a lane."""
        return float(self.rates[min(index, len(self.rates) - 1), lane, 4])

    def watch(self, on_nonfinite: str) -> Watch:
        """What has to be checked at each step."""
        if on_nonfinite == "ignore":
            return "nothing"
        distinct = {id(lane): lane for lane in self.betas}.values()
        betas = (step for lane in distinct for step in lane)
        return first_watch(self.rates, betas, [hyper for hyper, _ in self.hyper.groups])

    def pace(self) -> Pace:
        """Rates and β as the engine takes them."""
        layout, batch, (count, rows) = self.lanes.layout, self.batch, self.hyper.kept
        if not self.usual or count != self.count:
            table = np.broadcast_to(self.rates, (self.count, *self.rates.shape[1:]))
            rows = [layout.fold(torch.from_numpy(table[..., i].copy()), 1) for i in range(5)]
            if self.usual:
                self.hyper.kept = self.count, rows
        if batch.known is not None:
            known = torch.from_numpy(batch.known.astype(np.float64))
            rows = [*rows[:4], rows[4] * layout.fold(known, 1)]
        return Pace(rows, self._packed_betas(), self.hyper.scheduled, self._drive())

    def _at_any_time(self, usual: np.ndarray) -> None:
        """Nothing depends on time, except for gaps and the first φ."""
        batch, hyper, self.betas = self.batch, self.hyper, self.hyper.still_betas()
        if batch.tau is None and not self.pending.any():
            self.rates, self.usual = usual[None], True
            return
        table = np.broadcast_to(usual, (batch.count, *usual.shape)).copy()
        if batch.tau is not None:
            wrong = (batch.tau < 0).any(1)
            self.count = int(wrong.argmax()) if wrong.any() else batch.count
            for setting, lanes in hyper.groups:
                gaps, places = np.unique(batch.tau[:, lanes], return_inverse=True)
                rates = setting.along([gap if gap > 0 else None for gap in gaps.tolist()])
                table[:, lanes] = rates[places.reshape(batch.count, len(lanes))]
        if self.pending.any():
            # It holds until a lane has learned from its first target.
            before = np.cumsum(batch.learns, 0) - batch.learns == 0
            table[..., 4] = np.where(before & self.pending, hyper.first, table[..., 4])
        self.rates = table

    def _along_time(self) -> None:
        """Something does: rates are asked for step by step and lane by lane, as each member would alone."""
        batch, lanes, hyper = self.batch, self.lanes, self.hyper
        self.rates, self.betas = np.ones((batch.count, len(hyper.hypers), 5)), []
        for lane, (setting, velocity) in enumerate(zip(hyper.hypers, hyper.velocities, strict=True)):
            t, updates, betas = float(lanes.times[lane]), int(lanes.updates[lane]), []
            for index in range(self.count if batch.active[lane] else 0):
                tau = batch.tau[index, lane] if batch.tau is not None else 0.0
                try:
                    rates = setting.at(t, float(tau) if tau else None, first=updates == 0)
                    betas.append(velocity.values(t))
                except Exception:
                    # The eager engine takes this sample when its turn comes, and raises the error.
                    self.count = index
                    break
                self.rates[index, lane] = rates[:5]
                updates += int(batch.learns[index, lane])
                t += rates.tau
            self.betas.append(betas)
        example = next((betas for betas in self.betas if betas), [])
        self.betas = [betas or example[:1] for betas in self.betas]

    def _packed_betas(self) -> list[Tensor]:
        hyper, layout = self.hyper, self.lanes.layout
        if hyper.betas is not None:
            return hyper.betas
        rows = []
        for index in range(self.count if hyper.scheduled else 1):
            step = [lane[min(index, len(lane) - 1)] for lane in self.betas]
            rows.append([_packed(column, layout) for column in zip(*step, strict=True)])
        packed = [torch.stack(column) for column in zip(*rows, strict=True)] if hyper.scheduled else rows[0]
        if not hyper.has_tensors and not hyper.scheduled:
            # A tensor may be written to between two blocks.
            hyper.betas = packed
        return packed

    def _drive(self) -> list[Tensor]:
        """Weight decay and the moments of an adaptive β; settings without have zeros."""
        if not self.hyper.driven:
            return []
        learns, tables = self.batch.learns, []
        enters = learns & (np.broadcast_to(self.rates[..., 4], learns.shape) != 0)
        for hyper, lanes in self.hyper.groups:
            begun = self.lanes.updates[lanes]
            tables.append((lanes, drive_rows(hyper, self.hyper.order, begun, learns[:, lanes], enters[:, lanes])))
        rows = np.zeros((*learns.shape, max(table.shape[-1] for _, table in tables)))
        for lanes, table in tables:
            rows[:, lanes, : table.shape[-1]] = table
        return [self.lanes.layout.fold(torch.from_numpy(rows[..., i].copy()), 1) for i in range(rows.shape[-1])]


def _packed(betas: Sequence[float | Tensor], layout: Layout) -> Tensor:
    """β of one weight for all members; a number among tensors takes their shape."""
    if not any(isinstance(beta, Tensor) for beta in betas):
        return layout.fold(torch.tensor(betas, dtype=torch.float64))
    tensors = [torch.as_tensor(beta, dtype=torch.float64) for beta in betas]
    return layout.fold(torch.stack(torch.broadcast_tensors(*tensors)))
