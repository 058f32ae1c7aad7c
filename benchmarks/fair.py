"""Every rule of credit on the same net, each at its own best rate: one table for all.

A rule is a credit of the library, followed by Adam, on one leaky dense net of 16 units that meets one sample at a
time. `Sensitivity` has a cell of its own. The rate is the best of `RATES` on seeds that are not reported, and the
score is the mean of 20 other seeds. A frozen control shows what the start of the net does without any credit.
`hamlearn bench fair -- --task recall-5 --rule rtrl` takes a part of the table, `--jobs` more processes.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import hamlearn as hl
from benchmarks import _report
from benchmarks._credit_study import best
from benchmarks.credit_tasks import symbols
from benchmarks.credit_tasks.task import Task
from hamlearn.credit import RFLO, RTRL, UORO, EProp

UNITS, LEAK, RATES = 16, 0.5, (1e-3, 3e-3, 1e-2)
TUNING, SEEDS, TIMED, QUICK = (100, 101, 102), 20, 2_000, 300

TASKS: dict[str, tuple[Callable[[int, int], Task], int, int]] = {
    "recall-5": (lambda steps, seed: symbols.recall(steps, 5, seed, lanes=1), 30_000, 7),
    "recall-10": (lambda steps, seed: symbols.recall(steps, 10, seed, lanes=1), 30_000, 12),
    "copy": (lambda steps, seed: symbols.copy(steps, seed=seed, lanes=1), 30_000, 11),
    "anbn": (lambda steps, seed: symbols.anbn(steps, seed, lanes=1), 20_000, 33),
    "delayed-add": (lambda steps, seed: symbols.delayed_add(steps, seed, lanes=1), 30_000, 25),
}
"""How a task is made of steps and seed, how many steps, and how many of them an episode has, or BPTT reaches."""


class LeakyDense(nn.Module):
    """h⁺ = leak h + (1 − leak) tanh(W u + U h + b); the spectral radius of U is about 1 at the start."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.units = self.hidden_size = units
        self.inputs, self.recurrent = nn.Linear(inputs, units), nn.Linear(units, units, bias=False)
        nn.init.normal_(self.recurrent.weight, std=units**-0.5)

    def forward(self, u: Tensor, h: Tensor) -> Tensor:
        """h⁺."""
        return LEAK * h + (1 - LEAK) * torch.tanh(self.inputs(u) + self.recurrent(h))


@dataclass(frozen=True)
class Rule:
    """A row of the table.

    Attributes:
        name: As in the table.
        credit: Made from the number of steps that an episode of the task has.
        learns: Whether the state net learns.
        hyper: From a rate.
        feedback: Whether the readout leads errors back through fixed random weights.
        columns: Whether the cell is a columnar GRU.
    """

    name: str
    credit: Callable[[int], hl.Credit]
    learns: bool = True
    hyper: Callable[[float], hl.Hyper] = hl.Hyper.from_adam
    feedback: bool = False
    columns: bool = False


RULES = {
    "frozen": Rule("frozen control", lambda span: hl.Cleared(), learns=False),
    "cleared": Rule("Cleared: immediate derivatives", lambda span: hl.Cleared()),
    "rmsprop": Rule("the same with RMSprop", lambda span: hl.Cleared(), hyper=hl.Hyper.from_rmsprop),
    "alignment": Rule("feedback alignment", lambda span: hl.Cleared(), feedback=True),
    "forward": Rule("Forward", lambda span: hl.Forward()),
    "rflo": Rule("RFLO", lambda span: RFLO(leak=LEAK)),
    "eprop": Rule("e-prop, random feedback", lambda span: EProp(feedback=0)),
    "snap1": Rule("SnAp-1", lambda span: hl.Sensitivity(strict=False)),
    "uoro": Rule("UORO", lambda span: UORO()),
    "rtrl": Rule("RTRL = SnAp-2", lambda span: RTRL()),
    "truncated": Rule("truncated BPTT, 5 steps", lambda span: hl.Echo(every=5)),
    "bptt": Rule("BPTT", lambda span: hl.Echo(every=span)),
    "sensitivity": Rule("Sensitivity, columnar GRU", lambda span: hl.Sensitivity(), columns=True),
    "cleared-gru": Rule("Cleared, columnar GRU", lambda span: hl.Cleared(), columns=True),
}
"""By the names that `--rule` takes."""


def learner_of(rule: Rule, task: Task, span: int, rate: float, seed: int) -> hl.Learner:
    """A new learner."""
    torch.manual_seed(seed)
    inputs = task.u.shape[-1]
    cell = hl.cells.ColumnarGRU(inputs, UNITS, t_max=task.span) if rule.columns else LeakyDense(inputs, UNITS)
    cell.requires_grad_(rule.learns)
    readout = hl.cells.FeedbackLinear(UNITS, task.outputs) if rule.feedback else nn.Linear(UNITS, task.outputs)
    network = hl.Network.recurrent(cell, readout)
    return hl.Learner(network, task.loss, rule.hyper(rate), credit=rule.credit(span), on_nonfinite="ignore")


def learned(learner: hl.Learner, task: Task) -> float:
    """The score of a learner on a task that it has not seen."""
    ends = None if task.restart is None else torch.cat([task.restart[1:, 0], torch.ones(1, dtype=torch.bool)])
    return task.score(learner.scan(task.u, task.target, boundary=ends, known=task.has).y)


def measured(place: tuple[str, str], seeds: int, quick: bool) -> dict[str, Any]:
    """A rule on a task: scores at the best rate, and the price of a step."""
    torch.set_num_threads(1)
    (make, steps, span), rule = TASKS[place[0]], RULES[place[1]]
    steps = QUICK if quick else steps

    def score(rate: float, seed: int) -> float:
        task = make(steps, seed)
        return learned(learner_of(rule, task, span, rate, seed), task)

    grid = {rate: statistics.fmean(score(rate, seed) for seed in TUNING[: 1 if quick else 3]) for rate in RATES}
    rate = best(grid, higher=make(span, 0).metric == "accuracy")
    scores = [score(rate, seed) for seed in range(seeds)]
    finite = torch.tensor([value for value in scores if math.isfinite(value)], dtype=torch.float64)
    task = make(min(steps, TIMED), 0)
    learner = learner_of(rule, task, span, rate, 0)
    learned(learner, task)
    begin = time.process_time()
    learned(learner, task)
    return {
        "task": place[0],
        "rule": place[1],
        "name": rule.name,
        "rate": rate,
        "grid": {f"{rate:g}": value for rate, value in grid.items()},
        "scores": scores,
        "score": float(finite.mean()),
        "standard error": float(finite.std(correction=min(1, len(finite) - 1))) / math.sqrt(len(finite) or 1),
        "diverged": seeds - len(finite),
        "microseconds": (time.process_time() - begin) / len(task.u) * 1e6,
    }


def options(arguments: Sequence[str]) -> dict[str, Any]:
    """Options of its own on the command line."""
    parser = argparse.ArgumentParser("hamlearn bench fair", description=__doc__)
    parser.add_argument("--task", dest="tasks", action="append", choices=list(TASKS), help="a task; all if none")
    parser.add_argument("--rule", dest="rules", action="append", choices=list(RULES), help="a rule; all if none")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many runs a score is the mean of")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    return vars(parser.parse_args(arguments))


def run(
    out: Path,
    quick: bool = False,
    tasks: Sequence[str] | None = None,
    rules: Sequence[str] | None = None,
    seeds: int = SEEDS,
    jobs: int = 1,
) -> dict[str, Any]:
    """Measure all rules on all tasks, print the table, and write the dated report."""
    chosen = list(tasks or (["copy"] if quick else TASKS))
    by = list(rules or (["uoro", "sensitivity"] if quick else RULES))
    places = [(task, rule) for rule in by for task in chosen]
    work = partial(measured, seeds=2 if quick else seeds, quick=quick)
    if jobs > 1:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            rows = list(pool.map(work, places))
    else:
        rows = [work(place) for place in places]
    found = {"units": UNITS, "seeds": seeds, "rates": list(RATES), "tasks": chosen, "rows": rows}
    _print(found)
    _report.write(out, "fair", found)
    return found


def _print(found: dict[str, Any]) -> None:
    """A row for each rule, a column for each task, and the price of a step on the first one."""
    table = Table("rule", *found["tasks"], "µs a step")
    by_rule: dict[str, list[dict[str, Any]]] = {}
    for row in found["rows"]:
        by_rule.setdefault(row["name"], []).append(row)
    for name, rows in by_rule.items():
        table.add_row(name, *map(shown, rows), f"{rows[0]['microseconds']:.1f}")
    Console(width=140).print(table)


def shown(row: dict[str, Any]) -> str:
    """A score with its standard error, and how many runs diverged, which it leaves out."""
    lost = f" ({row['diverged']} diverged)" if row["diverged"] else ""
    return f"{row['score']:.3f} ± {row['standard error']:.3f}{lost}"


if __name__ == "__main__":
    run(Path("out/bench"))
