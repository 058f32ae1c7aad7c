"""braintrace beside the library in one run: one lane of the Hénon series, 64 units, Adam at 1e-3, no restarts.

braintrace is a JAX library, in its own environment; its D_RTRL on MiniGRU comes closest to `Sensitivity`. Both
take arrays of 5,000 steps in one call: theirs by a compiled `for_loop`, ours by `Learner.scan`.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import mse_loss

from benchmarks._credit_contenders import CONTENDERS, Contender
from benchmarks.credit_tasks import series
from benchmarks.credit_tasks.task import Task
from hamlearn.errors import ConfigError
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner
from hamlearn.network import Network

SCRIPT = Path(__file__).with_name("_credit_rival_jax.py")
RATE, STEPS, QUICK, UNITS, PIECE = 1e-3, 15_000, 5_000, 64, 5_000
THEIRS = ("MiniGRU", "GRUCell")
OURS = ("sensitivity", "snap1")


class Ours:
    """A credit of the library on the same lane: whole tensors in, losses out, in pieces as long as theirs.

    Args:
        task: The series.
        contender: Cell and credit.
    """

    def __init__(self, task: Task, contender: Contender) -> None:
        assert contender.credit is not None
        network = Network.recurrent(*contender.network(task, 0))
        self._learner = Learner(network, mse_loss, Hyper.from_adam(lr=RATE), credit=contender.credit)
        self._pieces = [
            (task.u[k : k + PIECE], task.target[k : k + PIECE]) for k in range(0, len(task.u) - PIECE + 1, PIECE)
        ]

    def learn(self) -> list[float]:
        """The loss of every step, each before its sample was learned from."""
        return [loss for u, target in self._pieces for loss in self._scanned(u, target).tolist()]

    def microseconds(self) -> list[float]:
        """µs a step of each piece; of the one core that works, so that others at work do not count."""
        times = []
        for u, target in self._pieces:
            begin = time.process_time()
            self._scanned(u, target)
            times.append((time.process_time() - begin) / PIECE * 1e6)
        return times

    def _scanned(self, u: Tensor, target: Tensor) -> Tensor:
        loss = self._learner.scan(u, target).loss
        assert loss is not None
        return loss


def compare(python: Path, quick: bool, console: Console) -> dict[str, Any]:
    """Loss over the last fifth, and µs a step, of both; ours are timed before and after theirs."""
    task = dataclasses.replace(series.henon(QUICK if quick else STEPS, lanes=1), restart=None)
    ways = {rule: Ours(task, CONTENDERS[rule]) for rule in OURS}
    rows: dict[str, Any] = {}
    for rule, way in ways.items():
        name = f"hamlearn {CONTENDERS[rule].name}, {CONTENDERS[rule].cell}"
        rows[rule] = {"name": name, "score": _last_fifth(way.learn()), "times": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "series.npy"
        np.save(path, torch.cat([task.u[:, 0, 0], task.target[-1:, 0, 0]]).numpy())
        for cell in THEIRS:
            _time(ways, rows)
            found = _theirs(python, path, cell)
            rows[cell] = {"name": f"braintrace D_RTRL, {cell}", "score": _last_fifth(found["losses"])}
            rows[cell] |= {"microseconds": found["microseconds"], "versions": found["versions"]}
            _time(ways, rows)
    for rule in OURS:
        rows[rule]["microseconds"] = statistics.median(rows[rule].pop("times"))
    table = Table("", "NMSE", "µs a step", title=f"{task.name}, one lane, {UNITS} units, Adam {RATE:g}")
    for row in rows.values():
        table.add_row(row["name"], f"{row['score']:.4f}", f"{row['microseconds']:.1f}")
    console.print(table)
    return {"about": __doc__, "steps": len(task.u), "rate": RATE, "rows": rows}


def _last_fifth(losses: list[float]) -> float:
    return statistics.fmean(losses[-len(losses) // 5 :])


def _time(ways: dict[str, Ours], rows: dict[str, Any]) -> None:
    for rule, way in ways.items():
        rows[rule]["times"] += way.microseconds()


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
