"""Who is compared by `hamlearn bench credit`: a cell, a readout, and a way to give credit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hamlearn.bench.credit_tasks.looped import Looped
from hamlearn.bench.credit_tasks.nets import DenseTanh, Restarting
from hamlearn.bench.credit_tasks.online import Online
from hamlearn.bench.credit_tasks.rules import Exact, Own, RankOne, Rule
from hamlearn.bench.credit_tasks.task import Task
from hamlearn.cells import LRU, RTU, ColumnarGRU
from hamlearn.cells.columnar import slots
from hamlearn.credit import Cleared, Credit, Echo, Forward, Sensitivity
from hamlearn.errors import NonFiniteError
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner
from hamlearn.networks import Network

WINDOW = 25
"""Steps that truncated BPTT stores, and makes one update of."""
ONLINE, WINDOWED = (3e-4, 1e-3, 3e-3), (1e-3, 3e-3, 1e-2)
"""Adam's rates: for rules that move the weights at every target, and for those that do once in a window."""
CHUNK = 1_000

CELLS: dict[str, Callable[[int, int, int], Any]] = {
    "dense": lambda inputs, units, span: DenseTanh(inputs, units),
    "GRU": lambda inputs, units, span: ColumnarGRU(inputs, units, t_max=max(2, span)),
    "RTU": lambda inputs, units, span: RTU(inputs, units),
    "LRU": lambda inputs, units, span: LRU(inputs, units),
}


@dataclass(frozen=True)
class Contender:
    """A rule on a cell.

    Attributes:
        name: As in tables.
        cell: One of `CELLS`.
        by: A credit of the library, or a plain rule.
        rates: Those tried.
        learns: Whether the state net learns; the control's does not.
        units: Instead of the task's.
    """

    name: str
    cell: str
    by: Credit | Rule
    rates: tuple[float, ...] = ONLINE
    learns: bool = True
    units: int | None = None

    def network(self, task: Task, seed: int) -> tuple[Any, nn.Module]:
        """A new cell and its readout: linear, but for the LRU, which leaves all bending to it."""
        torch.manual_seed(seed)
        cell = CELLS[self.cell](task.u.shape[-1], self.units or task.units, task.span)
        seen = cell.hidden_size
        readout: nn.Module = nn.Linear(seen, task.outputs)
        if self.cell == "LRU":
            readout = nn.Sequential(nn.Linear(seen, 32), nn.ReLU(), nn.Linear(32, task.outputs))
        return cell, readout

    def kept(self, task: Task) -> int:
        """Numbers kept for credit alone, beyond weights, Adam's moments and state."""
        cell, _ = self.network(task, 0)
        lanes, k = task.u.shape[1], len(slots(cell.initial_state(task.u[0])))
        weights = sum(weight.numel() for weight in cell.parameters())
        if isinstance(self.by, Echo):
            return WINDOW * lanes * (task.u.shape[-1] + task.outputs + k * cell.units)
        if isinstance(self.by, Sensitivity | Own):
            return lanes * k * weights
        if isinstance(self.by, Exact):
            return lanes * cell.units * weights
        if isinstance(self.by, RankOne):
            return lanes * (cell.units + weights)
        return lanes * k * cell.units if isinstance(self.by, Forward) else 0


CONTENDERS = {
    "frozen": Contender("frozen control", "dense", Cleared(), learns=False),
    "cleared": Contender("Cleared", "dense", Cleared()),
    "forward": Contender("Forward", "dense", Forward()),
    "rflo": Contender("RFLO / e-prop", "dense", Own(leak=0.9)),
    "uoro": Contender("UORO", "dense", RankOne()),
    "snap1": Contender("SnAp-1", "dense", Sensitivity(strict=False)),
    "rtrl": Contender("exact RTRL", "dense", Exact(), units=32),
    "tbptt": Contender(f"truncated BPTT, {WINDOW}", "dense", Echo(every=WINDOW), WINDOWED),
    "cleared-gru": Contender("Cleared", "GRU", Cleared()),
    "tbptt-gru": Contender(f"truncated BPTT, {WINDOW}", "GRU", Echo(every=WINDOW), WINDOWED),
    "sensitivity": Contender("Sensitivity", "GRU", Sensitivity()),
    "rtu": Contender("Sensitivity", "RTU", Sensitivity()),
    "lru": Contender("Sensitivity", "LRU", Sensitivity()),
}
"""By the names that `--rule` takes."""


class Learned(Protocol):
    """A way to learn a task."""

    def learn(self, task: Task, lr: float, seed: int) -> Tensor:
        """Outputs (steps, lanes, outputs), each told before it was learned from."""

    def microseconds(self, task: Task, steps: int) -> float:
        """A step's time, in a stretch of so many, going on from where it is."""


def made(contender: Contender) -> Learned:
    """By a learner of the library, or by the plain loop."""
    return ByLearner(contender) if isinstance(contender.by, Credit) else ByRule(contender)


class ByLearner:
    """A learner of the library, run by the compiled engine."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.learner: Learner | None = None

    def learn(self, task: Task, lr: float, seed: int) -> Tensor:
        """Outputs; those after a step that could not be finite are not numbers."""
        cell, readout = self.contender.network(task, seed)
        cell.requires_grad_(self.contender.learns)
        network = Network.recurrent(cell if task.together else Restarting(cell), readout)
        assert isinstance(self.contender.by, Credit)
        self.learner = Learner(network, task.loss, Hyper.from_adam(lr), credit=self.contender.by)
        samples, found = task.samples(), []
        try:
            for report in self.learner.run(samples, engine="compiled", chunk=CHUNK):
                found.append(report.y)
        except NonFiniteError:
            found += [torch.full_like(found[0], torch.nan)] * (len(samples) - len(found))
        return torch.stack(found)

    def microseconds(self, task: Task, steps: int) -> float:
        """Stream and reports included."""
        assert self.learner is not None
        # To the last boundary: a stream that stops within a sequence is refused.
        stretch = task.samples()[:steps]
        stretch[-1].boundary = task.restart is not None and task.together
        begin = time.perf_counter()
        for _ in self.learner.run(stretch, engine="compiled", chunk=CHUNK):
            pass
        return (time.perf_counter() - begin) / len(stretch) * 1e6


class ByRule:
    """The plain loop, compiled; one recording serves all seeds and rates."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.loop: Looped | None = None

    def learn(self, task: Task, lr: float, seed: int) -> Tensor:
        """Outputs."""
        cell, readout = self.contender.network(task, seed)
        assert not isinstance(self.contender.by, Credit)
        online = Online(Restarting(cell), readout, self.contender.by, task.loss, lr)
        samples = self._samples(task, cell.units, seed)
        carry = online.start(samples[0][0])
        if self.loop is None:
            self.loop = Looped(online.step, carry, [row[0] for row in samples])
        self.loop.begin(carry)
        return self.loop(samples)[0]

    def microseconds(self, task: Task, steps: int) -> float:
        """The loop alone, over samples that lie ready."""
        assert self.loop is not None
        samples = self._samples(task, self.contender.units or task.units, 0)
        samples = [row[:steps].contiguous() for row in samples]
        begin = time.perf_counter()
        self.loop(samples)
        return (time.perf_counter() - begin) / steps * 1e6

    def _samples(self, task: Task, units: int, seed: int) -> list[Tensor]:
        u = task.flagged()
        # Only a rule that draws signs reads them.
        width = units if isinstance(self.contender.by, RankOne) else 1
        generator = torch.Generator().manual_seed(seed)
        signs = torch.randint(2, (len(u), u.shape[1], width), generator=generator).to(u) * 2 - 1
        return [u, task.target, task.has, signs]
