"""What the runs say: a row for each comparison with SGD, and whether it is within its bound."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from hamlearn.experiments.comparison import Difference, Run
from hamlearn.experiments.reproduce.job import Job
from hamlearn.experiments.reproduce.store import Store

ROUND_OFF = {"float32": 1e-5, "float64": 1e-10}
"""|Δθ| allowed where equality to the bit is not promised."""


@dataclass(frozen=True)
class Row:
    """Hamiltonian Learning against SGD in one cell.

    Attributes:
        job: The cell.
        gap: |Δθ| at the end.
        bound: What the largest |Δθ| may be.
        sgd_loss: Mean loss of each epoch, by SGD; the others likewise.
        chance: Accuracy of guessing.
    """

    job: Job
    gap: Difference
    bound: float
    sgd_loss: list[float]
    hl_loss: list[float]
    sgd_accuracy: list[float]
    hl_accuracy: list[float]
    chance: float

    @property
    def cell(self) -> str:
        """The cell in words."""
        job = self.job
        return f"{job.model} {job.scenario.name} {job.how} in {job.dtype}"

    @property
    def misses(self) -> list[str]:
        """What is wrong with this cell, in words; empty where all is as it should be."""
        found = []
        # Written so that a gap that is not a number is a miss.
        if not self.gap.max <= self.bound:
            found.append(
                f"{self.cell}: |Δθ| is {self.gap.max:.1e}, allowed is {self.bound:.0e}".replace("0e+00", "0")
            )
        if self.job.part == "paper":
            if _fell(self.sgd_loss) and not _fell(self.hl_loss):
                found.append(f"{self.cell}: the loss does not fall, where SGD's does")
            if self.sgd_accuracy[-1] > self.chance >= self.hl_accuracy[-1]:
                found.append(f"{self.cell}: no better than chance, where SGD is")
        return found

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.misses


def bound(job: Job) -> float:
    """What |Δθ| may be: exactly 0 for output nets in float32 with the paper's settings, else round-off.

    With drawn settings τβ, 1 − τη and τφ are not exactly lr, μ and 1 − ρ, so that even output nets differ by
    round-off.
    """
    if job.part == "paper" and job.how == "output" and job.dtype == "float32":
        return 0.0
    return ROUND_OFF[job.dtype]


def rows(jobs: Iterable[Job], store: Store, classes: dict[str, int]) -> list[Row]:
    """A row for every job but SGD's own, in the order of `jobs`.

    Args:
        jobs: Finished ones, SGD's among them.
        store: Where their runs are.
        classes: Number of classes of each data set.
    """
    judge = lru_cache(maxsize=1)(store.read)
    found = []
    for job in jobs:
        if job.how != "SGD":
            found.append(_row(job, judge(job.beside("SGD")), store.read(job), 1 / classes[job.data]))
    return found


def _row(job: Job, sgd: Run, hl: Run, chance: float) -> Row:
    sgd_loss, sgd_accuracy = sgd.epoch_means(job.epochs)
    hl_loss, hl_accuracy = hl.epoch_means(job.epochs)
    gap = Difference.between(hl, sgd)
    return Row(job, gap, bound(job), sgd_loss, hl_loss, sgd_accuracy, hl_accuracy, chance)


def _fell(losses: list[float]) -> bool:
    return losses[-1] < losses[0]
