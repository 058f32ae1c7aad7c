"""Results: a row for each comparison with SGD, its bound, and all rows as CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hamlearn.experiments.comparison import Difference, Run
from hamlearn.experiments.reproduce.plan import Job
from hamlearn.state import files

ROUND_OFF = {"float32": 1e-5, "float64": 1e-10}
"""|Δθ| allowed if equality bit-for-bit is not promised."""
_CELL = ("model", "scenario", "implementation", "dtype")
_ENDS = ("sgd_loss", "hl_loss", "sgd_accuracy", "hl_accuracy")


@dataclass(frozen=True)
class Row:
    """Hamiltonian Learning against SGD in one cell.

    Attributes:
        job: The cell.
        gap: |Δθ| at the end.
        sgd_loss: Mean loss of each epoch, by SGD; the others likewise.
        chance: Accuracy of guessing.
    """

    job: Job
    gap: Difference
    sgd_loss: list[float]
    sgd_accuracy: list[float]
    hl_loss: list[float]
    hl_accuracy: list[float]
    chance: float

    @property
    def bound(self) -> float:
        """What the largest |Δθ| may be: exactly 0 for output nets in float32, else round-off."""
        return 0.0 if (self.job.how, self.job.dtype) == ("output", "float32") else ROUND_OFF[self.job.dtype]

    @property
    def misses(self) -> list[str]:
        """The faults of this cell, in words; empty if it has none."""
        model, scenario, how, dtype = self.job.cell
        cell, found = f"{model} {scenario} {how} in {dtype}", []
        # Written so that a gap that is not a number is a miss.
        if not self.gap.max <= self.bound:
            found.append(f"{cell}: |Δθ| is {self.gap.max:.1e}, allowed is {self.bound:.0e}".replace("0e+00", "0"))
        if _fell(self.sgd_loss) and not _fell(self.hl_loss):
            found.append(f"{cell}: the loss does not fall, and SGD's does")
        if self.sgd_accuracy[-1] > self.chance >= self.hl_accuracy[-1]:
            found.append(f"{cell}: no better than chance, and SGD is")
        return found

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.misses


def _fell(losses: list[float]) -> bool:
    return losses[-1] < losses[0]


def rows(runs: Mapping[Job, Run], classes: Mapping[str, int]) -> Iterator[Row]:
    """A row for every job but SGD's own, in the order of the jobs.

    Args:
        runs: Of all jobs.
        classes: Number of classes of each data set.
    """
    for job, run in runs.items():
        if job.how != "SGD":
            sgd = runs[replace(job, how="SGD")]
            curves = (*sgd.epoch_means(job.epochs), *run.epoch_means(job.epochs))
            yield Row(job, Difference.between(run, sgd), *curves, 1 / classes[job.data])


def write_table(path: Path, rows: Iterable[Row]) -> None:
    """A line for each comparison: setting, |Δθ| and its bound, and how both ended (means of the last epoch)."""
    lines: list[Sequence[Any]] = [
        (*_CELL, "lr", "momentum", "dampening", "tau", "epochs", "mean", "min", "max", "bound", *_ENDS, "passed")
    ]
    for row in rows:
        sgd, gap = row.job.scenario, row.gap
        setting = [sgd.lr, sgd.momentum, sgd.dampening, sgd.tau, row.job.epochs]
        ends = [getattr(row, name)[-1] for name in _ENDS]
        lines.append([*row.job.cell, *setting, gap.mean, gap.min, gap.max, row.bound, *ends, row.passed])
    _write(path, lines)


def write_curves(path: Path, runs: Mapping[Job, Run]) -> None:
    """Mean loss and accuracy of each epoch of each run: what the figures show."""
    lines: list[Sequence[Any]] = [[*_CELL, "epoch", "loss", "accuracy"]]
    for job, run in runs.items():
        means = zip(*run.epoch_means(job.epochs), strict=True)
        lines += [[*job.cell, epoch, *pair] for epoch, pair in enumerate(means, start=1)]
    _write(path, lines)


def _write(path: Path, lines: Iterable[Sequence[Any]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    files.replace(path, text.getvalue().encode())
