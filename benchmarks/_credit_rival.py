"""braintrace beside the library in one run: one lane of the Hénon series, 64 units, Adam at 1e-3, no restarts.

braintrace is a JAX library, in an environment of its own; its D_RTRL on MiniGRU comes closest to `Sensitivity`.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks._credit_contenders import CONTENDERS, Trial
from benchmarks.credit_tasks import series
from benchmarks.credit_tasks.task import Task
from hamlearn.errors import ConfigError

SCRIPT = Path(__file__).with_name("_credit_rival_jax.py")
RATE, STEPS, QUICK, UNITS, TIMED, ROUNDS = 1e-3, 15_000, 2_000, 64, 1_000, 7
THEIRS = ("MiniGRU", "GRUCell")
OURS = ("sensitivity", "snap1")


def compare(python: Path, quick: bool, console: Console) -> dict[str, Any]:
    """Loss over the last fifth, and µs a step, of both; ours are timed before and after theirs."""
    task = dataclasses.replace(series.henon(QUICK if quick else STEPS, lanes=1), restart=None)
    ways = {rule: Trial(CONTENDERS[rule]) for rule in OURS}
    rows: dict[str, Any] = {}
    for rule, way in ways.items():
        contender = CONTENDERS[rule]
        score = task.score(way.learn(task, RATE, 0))
        rows[rule] = {"name": f"hamlearn {contender.name}, {contender.cell}", "score": score, "times": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "series.npy"
        np.save(path, torch.cat([task.u[:, 0, 0], task.target[-1:, 0, 0]]).numpy())
        for cell in THEIRS:
            _time(ways, rows, task)
            found = _theirs(python, path, cell)
            last = found["losses"][-len(found["losses"]) // 5 :]
            rows[cell] = {"name": f"braintrace D_RTRL, {cell}", "score": statistics.fmean(last)}
            rows[cell] |= {"microseconds": found["microseconds"], "versions": found["versions"]}
            _time(ways, rows, task)
    for rule in OURS:
        rows[rule]["microseconds"] = statistics.median(rows[rule].pop("times"))
    table = Table("", "NMSE", "µs a step", title=f"{task.name}, one lane, {UNITS} units, Adam {RATE:g}")
    for row in rows.values():
        table.add_row(row["name"], f"{row['score']:.4f}", f"{row['microseconds']:.1f}")
    console.print(table)
    return {"about": __doc__, "steps": len(task.u), "rate": RATE, "rows": rows}


def _time(ways: dict[str, Trial], rows: dict[str, Any], task: Task) -> None:
    for _ in range(ROUNDS):
        for rule, way in ways.items():
            rows[rule]["times"].append(way.microseconds(task, TIMED))


def _theirs(python: Path, series: Path, cell: str) -> dict[str, Any]:
    command = [str(python), str(SCRIPT), str(series), str(UNITS), str(RATE), cell]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ConfigError(f"--braintrace {str(python)!r} could not be started: {error.strerror}") from error
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ConfigError(
            f"--braintrace {str(python)!r} failed with {reason!r}: give an interpreter in whose environment "
            "`pip install braintrace` was run"
        )
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
