"""Who is compared by `hamlearn bench credit`: a cell, a readout, and a rule.

Every rule learns by the same plain loop and the same Adam, so that the rule is all that differs. Where the
library has it as a credit, a step's time is that of a learner of the library, run by the compiled engine.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.credit_tasks.looped import Looped
from benchmarks.credit_tasks.nets import DenseTanh, Restarting
from benchmarks.credit_tasks.online import Online
from benchmarks.credit_tasks.rules import Exact, Own, RankOne, Rule
from benchmarks.credit_tasks.task import Task
from benchmarks.credit_tasks.windowed import NO_RULE, Windowed, windows
from hamlearn.cells import LRU, RTU, ColumnarGRU
from hamlearn.cells.columnar import slots
from hamlearn.credit import RFLO, Cleared, Credit, Echo, Sensitivity
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner
from hamlearn.network import Network

WINDOW = 25
"""Steps that truncated BPTT stores, and makes one update of."""
ONLINE, WINDOWED = (3e-4, 1e-3, 3e-3), (1e-3, 3e-3, 1e-2)
"""Adam's rates: for rules that move the weights at every target, and for those that do once in a window."""
LOWER = 3e-4
"""One more rate for windows on recall, where the lowest of theirs does best."""
RADII = (0.9, 1.0)
"""Spectral radii, about, that U of a dense net starts with for rules whose names end in "-radius-…"."""
CHUNK = 1_000


def _wide(inputs: int, units: int, span: int, radius: float) -> DenseTanh:
    return DenseTanh(inputs, units, radius)


CELLS: dict[str, Callable[[int, int, int], Any]] = {
    "dense": lambda inputs, units, span: DenseTanh(inputs, units),
    "GRU": lambda inputs, units, span: ColumnarGRU(inputs, units, t_max=max(2, span)),
    "RTU": lambda inputs, units, span: RTU(inputs, units),
    "LRU": lambda inputs, units, span: LRU(inputs, units),
}
CELLS |= {f"dense, radius {radius:g}": functools.partial(_wide, radius=radius) for radius in RADII}


@dataclass(frozen=True)
class Contender:
    """A rule on a cell.

    Attributes:
        name: As in tables.
        cell: One of `CELLS`.
        rule: The tensors carried forward; `None` for truncated BPTT, which looks back over a window.
        credit: The same as a credit of the library, where it has it.
        rates: Those tried.
        learns: Whether the state net learns; the control's does not.
        units: Instead of the task's.
        only: How the names of its tasks begin; on others it learns where `--rule` names it.
    """

    name: str
    cell: str
    rule: Rule | None
    credit: Credit | None = None
    rates: tuple[float, ...] = ONLINE
    learns: bool = True
    units: int | None = None
    only: str = ""

    def grid(self, task: Task) -> tuple[float, ...]:
        """The rates tried on a task."""
        return (LOWER, *self.rates) if self.rule is None and task.name.startswith("recall") else self.rates

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
        if self.rule is None:
            return WINDOW * lanes * (task.u.shape[-1] + task.outputs + k * cell.units)
        if isinstance(self.rule, Exact):
            return lanes * cell.units * weights
        if isinstance(self.rule, RankOne):
            return lanes * (cell.units + weights)
        return lanes * k * weights if self.rule != Own(keep=0.0) else 0


_NOTHING, _BACK = Own(keep=0.0), Echo(every=WINDOW)
CONTENDERS = {
    "frozen": Contender("frozen control", "dense", _NOTHING, Cleared(), learns=False),
    "cleared": Contender("Cleared", "dense", _NOTHING, Cleared()),
    "rflo": Contender("fixed leak 0.9", "dense", Own(leak=0.9), RFLO(leak=0.9, feedback=None)),
    "uoro": Contender("UORO", "dense", RankOne()),
    "snap1": Contender("SnAp-1", "dense", Own(), Sensitivity(strict=False)),
    "rtrl": Contender("exact RTRL", "dense", Exact(), units=32),
    "tbptt": Contender(f"truncated BPTT, {WINDOW}", "dense", None, _BACK, WINDOWED),
    "cleared-gru": Contender("Cleared", "GRU", _NOTHING, Cleared()),
    "tbptt-gru": Contender(f"truncated BPTT, {WINDOW}", "GRU", None, _BACK, WINDOWED),
    "sensitivity": Contender("Sensitivity", "GRU", Own(), Sensitivity()),
    "rtu": Contender("Sensitivity", "RTU", Own(), Sensitivity()),
    "lru": Contender("Sensitivity", "LRU", Own(), Sensitivity()),
}
CONTENDERS |= {
    f"{rule}-radius-{radius:g}": replace(CONTENDERS[rule], cell=f"dense, radius {radius:g}", only="recall")
    for radius in RADII
    for rule in ("frozen", "cleared", "snap1", "tbptt")
}
"""By the names that `--rule` takes."""


def taking_part(task: str) -> list[str]:
    """The rules that learn a task where none is named.

    Example:
        >>> "snap1-radius-1" in taking_part("recall-10"), "snap1-radius-1" in taking_part("henon")
        (True, False)
    """
    return [rule for rule, contender in CONTENDERS.items() if task.startswith(contender.only)]


class Trial:
    """A contender on a task; one recording of its loop serves all seeds and rates."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.loop: Looped | None = None
        self.learner: Learner | None = None

    def learn(self, task: Task, lr: float, seed: int) -> Tensor:
        """Outputs (steps, lanes, outputs), each given before it was learned from."""
        contender = self.contender
        cell, readout = contender.network(task, seed)
        restarting = Restarting(cell)
        samples = [task.flagged(), task.target, task.has, self._signs(task, seed)]
        first = samples[0][0]
        if contender.rule is None:
            online: Online = Windowed(restarting, readout, NO_RULE, task.loss, lr)
            samples = [windows(rows, WINDOW) for rows in samples]
        else:
            online = Online(restarting, readout, contender.rule, task.loss, lr, frozen=not contender.learns)
        carry = online.start(first)
        if self.loop is None:
            self.loop = Looped(online.step, carry, [row[0] for row in samples])
        self.loop.begin(carry)
        y = self.loop(samples)[0]
        return y if contender.rule is not None else y.flatten(0, 1)

    def microseconds(self, task: Task, steps: int) -> float:
        """A step's time: of a learner that follows SGD with momentum, stream and reports included.

        Of a rule that the library does not have: of the loop alone, over samples that lie ready. It is the time of
        the one core that works, so that others at work on the machine do not count.
        """
        if self.contender.credit is not None:
            return self._by_learner(task, steps, self.contender.credit)
        assert self.loop is not None
        samples = [task.flagged(), task.target, task.has, self._signs(task, 0)]
        samples = [row[:steps].contiguous() for row in samples]
        begin = time.process_time()
        self.loop(samples)
        return (time.process_time() - begin) / steps * 1e6

    def _by_learner(self, task: Task, steps: int, credit: Credit) -> float:
        stretch = task.samples()[:steps]
        # A stream that stops within a sequence raises an error.
        stretch[-1].boundary = task.restart is not None and task.together
        if self.learner is None:
            cell, readout = self.contender.network(task, 0)
            cell.requires_grad_(self.contender.learns)
            network = Network.recurrent(cell if task.together else Restarting(cell), readout)
            hyper = Hyper.from_sgd(lr=1e-4, momentum=0.9, dampening=0.9)
            self.learner = Learner(network, task.loss, hyper, credit=credit)
            self._run(stretch)
        begin = time.process_time()
        self._run(stretch)
        return (time.process_time() - begin) / len(stretch) * 1e6

    def _run(self, stretch: list[Any]) -> None:
        assert self.learner is not None
        for _ in self.learner.run(stretch, engine="compiled", chunk=CHUNK):
            pass

    def _signs(self, task: Task, seed: int) -> Tensor:
        """Random signs; only a rule that draws them reads them."""
        width = task.units if isinstance(self.contender.rule, RankOne) else 1
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(2, (*task.u.shape[:2], width), generator=generator).to(task.u) * 2 - 1
