"""Credit over time: synthetic tasks, each learned by every rule at its best rate; kept as dated reports.

`hamlearn bench credit` takes all tasks and rules, a core-hour or so; `--task` and `--rule` choose, `--seeds` says
how many runs a score is the mean of, and `--rate` which of Adam's rates are tried. Each task has a report and a
figure of its own. `--braintrace PYTHON` also runs the closest rival, in an interpreter that has it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks import _credit_mazes, _credit_price, _credit_rival, _credit_study, _credit_views, _report
from benchmarks._credit_contenders import CONTENDERS, taking_part
from hamlearn.errors import ConfigError

PRICE = "price"
"""No task: what forward credit adds to the time of a step."""
TASKS = [*_credit_study.TASKS, *_credit_mazes.TASKS, PRICE]
SEEDS = 3


def options(arguments: Sequence[str]) -> dict[str, Any]:
    """Arguments of `run` from options of the command line."""
    parser = argparse.ArgumentParser("hamlearn bench credit")
    parser.add_argument("--task", dest="tasks", action="append", default=[], help="which task, such as recall-40")
    parser.add_argument(
        "--rule", dest="rules", action="append", default=[], help="which rule, such as sensitivity"
    )
    parser.add_argument("--seeds", type=int, help="how many runs a score is the mean of")
    parser.add_argument("--rate", dest="rates", type=float, action="append", default=[], help="a rate of Adam")
    parser.add_argument("--braintrace", type=Path, help="a Python interpreter with braintrace, to compare with")
    return vars(parser.parse_args(arguments))


def run(
    out: Path,
    quick: bool = False,
    tasks: Sequence[str] = (),
    rules: Sequence[str] = (),
    seeds: int | None = None,
    rates: Sequence[float] = (),
    braintrace: Path | None = None,
) -> dict[str, Any]:
    """Learn the tasks, print a table of each, draw its figure, and write its report.

    Args:
        out: Folder for reports and figures.
        quick: A few hundred steps of two tasks by two rules, where none are named: whether it works.
        tasks: Some of `TASKS`; none: all.
        rules: Some of `CONTENDERS`; none: all that take part in the task.
        seeds: Runs of each rule; `SEEDS` if not given, one if quick.
        rates: Adam's rates to choose from; none: each rule's own grid.
        braintrace: An interpreter in whose environment braintrace is installed.
    """
    _require(tasks, TASKS, "--task")
    _require(rules, list(CONTENDERS), "--rule")
    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds {seeds} leaves nothing to take a mean of: give at least 1")
    if not all(0 < rate < math.inf for rate in rates):
        raise ConfigError(f"--rate {', '.join(map(str, rates))}: give rates above 0")
    console, threads = Console(), torch.get_num_threads()
    chosen = list(tasks) or (["anbn", "t-maze-10", PRICE] if quick else TASKS)
    runs = seeds or (1 if quick else SEEDS)
    found = {}
    torch.set_num_threads(1)
    try:
        for name in chosen:
            if name == PRICE:
                found[name] = _credit_price.study(quick)
                _credit_price.show(found[name], console)
                _report.write(out, "credit-price", found[name], rerun="hamlearn bench credit --task price")
                continue
            study = _credit_mazes.study if name in _credit_mazes.TASKS else _credit_study.study
            by = list(rules) or (["uoro", "sensitivity"] if quick else taking_part(name))
            found[name] = study(name, by, runs, quick, console.log, tuple(rates))
            _credit_views.show(found[name], console)
            _credit_views.figure(out / f"credit-{name}.png", found[name])
            options = "".join(f" --rule {rule}" for rule in rules) + (f" --seeds {seeds}" if seeds else "")
            options += "".join(f" --rate {rate:g}" for rate in rates)
            rerun = f"hamlearn bench credit --task {name}{options}"
            _report.write(out, f"credit-{name}", found[name], rerun=rerun)
        if braintrace is not None:
            found["braintrace"] = _credit_rival.compare(braintrace, quick, console)
            rerun = "hamlearn bench credit --task henon --braintrace PYTHON"
            _report.write(out, "credit-braintrace", found["braintrace"], rerun=rerun)
    finally:
        torch.set_num_threads(threads)
    if not tasks:
        scores = {name: _scores(one) for name, one in found.items() if "rows" in one}
        _report.write(out, "credit", {"methods": __doc__, "scores": scores})
    return found


def _scores(found: dict[str, Any]) -> dict[str, float]:
    return {row["rule"]: row["score"] for row in found["rows"]}


def _require(given: Sequence[str], known: list[str], option: str) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ConfigError(f"{option} {unknown[0]!r} is not known: give one of {', '.join(known)}")
