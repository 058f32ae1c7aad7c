"""The T-mazes of `hamlearn bench credit`: success, and how long it takes to be sure of the way."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks._credit_contenders import CELLS
from benchmarks._credit_study import Row, best
from benchmarks.credit_tasks.nets import Restarting
from benchmarks.credit_tasks.rules import Own
from benchmarks.credit_tasks.tmaze import LANES, OBSERVED, ActorCritic, Maze, Walk, reached, shares
from hamlearn.cells.columnar import slots

TASKS = {"t-maze-10": (10, 60_000), "t-maze-20": (20, 100_000), "t-maze-40": (40, 150_000)}
"""By the names that `--task` takes: length of the corridor, and steps."""
RATES = (1e-4, 3e-4, 1e-3)
UNITS, POINTS, QUICK = 64, 40, 60


@dataclass(frozen=True)
class Walker:
    """A rule on a cell; `Own` is what `Sensitivity` does, written plainly so that the maze is in the loop."""

    name: str
    cell: str
    rule: Own
    learns: bool = True


WALKERS = {
    "frozen": Walker("frozen control", "GRU", Own(keep=0.0), learns=False),
    "cleared-gru": Walker("Cleared", "GRU", Own(keep=0.0)),
    "snap1": Walker("SnAp-1", "dense", Own()),
    "sensitivity": Walker("Sensitivity", "GRU", Own()),
    "rtu": Walker("Sensitivity", "RTU", Own()),
}
"""By the names that `--rule` takes."""


def study(
    name: str,
    rules: list[str],
    seeds: int,
    quick: bool,
    told: Callable[[str], None],
    rates: tuple[float, ...] = (),
) -> dict[str, Any]:
    """Walk one maze by those of the rules that can, at the best of some rates."""
    length, steps = TASKS[name]
    steps, usual = (QUICK, RATES[1:2]) if quick else (steps, RATES)
    rows = []
    for rule in rules:
        if rule in WALKERS:
            rows.append({"rule": rule, **_row(WALKERS[rule], length, steps, seeds, rates or usual)})
            told(f"{name}: {WALKERS[rule].name}, {WALKERS[rule].cell}: {rows[-1]['score']:.3f}")
    return {
        "task": name,
        "title": f"T-maze {length}",
        "steps": steps,
        "lanes": LANES,
        "units": UNITS,
        "metric": "share of successes",
        "better": "higher",
        "scored": "the last 400 episodes",
        "seeds": seeds,
        "rows": rows,
    }


def _row(walker: Walker, length: int, steps: int, seeds: int, rates: tuple[float, ...]) -> Row:
    walk: Walk | None = None
    seconds = 0.0

    def walked(rate: float, seed: int) -> list[tuple[int, float]]:
        nonlocal walk, seconds
        torch.manual_seed(seed)
        cell = Restarting(CELLS[walker.cell](OBSERVED, UNITS, length))
        agent = ActorCritic(cell, walker.rule, Maze(length), rate, frozen=not walker.learns)
        walk = walk or Walk(agent)
        begin = time.process_time()
        found = shares(walk(agent, steps, seed))
        seconds = time.process_time() - begin
        return found

    walks = {rate: [walked(rate, seed) for seed in range(seeds)] for rate in rates}
    grid = {rate: _last(found[0]) for rate, found in walks.items()}
    rate = best(grid, higher=True)
    runs = walks[rate]
    cell = CELLS[walker.cell](OBSERVED, UNITS, length)
    k = len(slots(cell.initial_state(torch.zeros(1, OBSERVED))))
    kept = LANES * k * sum(weight.numel() for weight in cell.parameters()) if walker.rule.keep else 0
    return {
        "name": walker.name,
        "cell": walker.cell,
        "units": UNITS,
        "rate": rate,
        "grid": {f"{rate:g}": share for rate, share in grid.items()},
        "scores": [_last(found) for found in runs],
        "score": statistics.fmean(_last(found) for found in runs),
        "steps until 0.95": [reached(found) for found in runs],
        "by rate": {f"{rate:g}": _summary(found) for rate, found in walks.items()},
        "curve": _mean_curve(runs, steps),
        "kept for credit": kept,
        "microseconds": seconds / steps * 1e6,
    }


def _summary(runs: list[list[tuple[int, float]]]) -> dict[str, Any]:
    return {"scores": [_last(run) for run in runs], "steps until 0.95": [reached(run) for run in runs]}


def _last(found: list[tuple[int, float]]) -> float:
    return found[-1][1] if found else 0.0


def _mean_curve(runs: list[list[tuple[int, float]]], steps: int) -> list[float]:
    """The share at so many points in time, in the mean over runs; 0 before it is known."""
    curve = []
    for point in range(1, POINTS + 1):
        until = steps * point / POINTS
        curve.append(statistics.fmean(_last([pair for pair in run if pair[0] < until]) for run in runs))
    return curve
