"""One task of `hamlearn bench credit`: every rule at its best rate, over seeds, with its time and memory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks._credit_contenders import CONTENDERS, Contender, Trial
from benchmarks.credit_tasks import series, symbols
from benchmarks.credit_tasks.task import Task

Row = dict[str, Any]
TASKS: dict[str, tuple[Callable[[int, int], Task], int]] = {
    "mackey-glass": (series.mackey_glass, 15_000),
    "henon": (series.henon, 15_000),
    "lorenz": (series.lorenz, 15_000),
    "recall-10": (lambda steps, seed: symbols.recall(steps, 10, seed), 30_000),
    "recall-20": (lambda steps, seed: symbols.recall(steps, 20, seed), 60_000),
    "recall-40": (lambda steps, seed: symbols.recall(steps, 40, seed), 60_000),
    "delayed-add": (symbols.delayed_add, 30_000),
    "anbn": (symbols.anbn, 20_000),
}
"""By the names that `--task` takes: how a task is made of steps and seed, and how many steps."""
QUICK, TIMED, ROUNDS = 400, 1_000, 5


def study(
    name: str,
    rules: list[str],
    seeds: int,
    quick: bool,
    told: Callable[[str], None],
    rates: tuple[float, ...] = (),
) -> dict[str, Any]:
    """Learn one task by the rules named.

    The rate is chosen by the score of the first seed, the grid is kept in the report, and the result is the mean
    over all seeds at that rate. `rates` are tried in the place of each rule's own.
    """
    make, steps = TASKS[name]
    steps = QUICK if quick else steps
    tasks = [make(steps, seed) for seed in range(seeds)]
    rows, ready = [], {}
    for rule in rules:
        contender, way = CONTENDERS[rule], Trial(CONTENDERS[rule])
        rows.append({"rule": rule, **_row(contender, way, tasks, rates or contender.grid(tasks[0]))})
        ready[rule] = way
        told(f"{name}: {contender.name}, {contender.cell}: {rows[-1]['score']:.4f} at {rows[-1]['rate']:g}")
    for row in rows:
        row["microseconds"] = []
    stretch = min(steps, TIMED)
    # In turns, so that a machine that is busy for a while is so for all.
    for _ in range(1 if quick else ROUNDS):
        for row in rows:
            row["microseconds"].append(ready[row["rule"]].microseconds(tasks[0], stretch))
    for row in rows:
        row["microseconds"] = statistics.median(row["microseconds"])
    task = tasks[0]
    return {
        "task": name,
        "title": task.name,
        "steps": steps,
        "lanes": task.u.shape[1],
        "units": task.units,
        "metric": task.metric,
        "better": "higher" if task.metric == "accuracy" else "lower",
        "scored": f"the last {task.last:.0%} of the targets",
        "seeds": seeds,
        "rows": rows,
    }


def _row(contender: Contender, way: Trial, tasks: list[Task], rates: tuple[float, ...]) -> Row:
    first = tasks[0]
    outputs = {rate: way.learn(first, rate, 0) for rate in rates}
    grid = {rate: first.score(y) for rate, y in outputs.items()}
    rate = best(grid, higher=first.metric == "accuracy")
    runs = [outputs[rate], *(way.learn(task, rate, seed) for seed, task in enumerate(tasks[1:], 1))]
    scores = [task.score(y) for task, y in zip(tasks, runs, strict=True)]
    curves = [task.curve(y) for task, y in zip(tasks, runs, strict=True)]
    return {
        "name": contender.name,
        "cell": contender.cell,
        "units": contender.units or first.units,
        "rate": rate,
        "grid": {f"{rate:g}": score for rate, score in grid.items()},
        "scores": scores,
        "score": statistics.fmean(scores),
        "curve": [statistics.fmean(points) for points in zip(*curves, strict=True)],
        "kept for credit": contender.kept(first),
    }


def best(grid: dict[float, float], *, higher: bool) -> float:
    """The rate with the best score; what is not a number is worst.

    Example:
        >>> best({0.1: 2.0, 0.2: 1.0, 0.3: float("nan")}, higher=False)
        0.2
    """
    worst = -math.inf if higher else math.inf
    scores = {rate: score if math.isfinite(score) else worst for rate, score in grid.items()}
    return (max if higher else min)(scores, key=scores.__getitem__)
