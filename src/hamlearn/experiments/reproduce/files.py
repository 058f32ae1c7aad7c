"""Results as files: the tables and the curves, as CSV."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from hamlearn.experiments.reproduce.job import Job
from hamlearn.experiments.reproduce.results import Row
from hamlearn.experiments.reproduce.store import Store

_CELL = ("part", "model", "scenario", "implementation", "dtype")


def write_table(path: Path, rows: Iterable[Row]) -> None:
    """A line for each comparison: setting, |Δθ| and its bound, and how both ended (means of the last epoch)."""
    names = [*_CELL, "lr", "momentum", "dampening", "tau", "epochs", "mean", "min", "max", "bound"]
    names += ["sgd_loss", "hl_loss", "sgd_accuracy", "hl_accuracy", "passed"]
    lines = []
    for row in rows:
        sgd, gap = row.job.scenario, row.gap
        lines.append([*_cell(row.job), sgd.lr, sgd.momentum, sgd.dampening, sgd.tau, row.job.epochs])
        lines[-1] += [gap.mean, gap.min, gap.max, row.bound, row.sgd_loss[-1], row.hl_loss[-1]]
        lines[-1] += [row.sgd_accuracy[-1], row.hl_accuracy[-1], row.passed]
    with _replacing(path) as raw:
        _write(raw, [names, *lines])


def write_curves(path: Path, jobs: Iterable[Job], store: Store) -> None:
    """Mean loss and accuracy of each epoch of each run: what the figures show."""
    lines: list[Sequence[Any]] = [[*_CELL, "epoch", "loss", "accuracy"]]
    for job in jobs:
        means = zip(*store.read(job).epoch_means(job.epochs), strict=True)
        lines += [[*_cell(job), epoch, *pair] for epoch, pair in enumerate(means, start=1)]
    with _replacing(path) as raw:
        _write(raw, lines)


def write_steps(path: Path, jobs: Iterable[Job], store: Store) -> None:
    """The raw curves: loss, and whether the answer was right, at each step of each run; gzipped."""
    # No name and no time in the header: equal curves make equal files.
    with _replacing(path) as raw, gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed:
        _write(packed, [[*_CELL, "step", "loss", "correct"]])
        for job in jobs:
            run = store.read(job)
            pairs = zip(run.loss.tolist(), run.correct.int().tolist(), strict=True)
            _write(packed, ([*_cell(job), step, *pair] for step, pair in enumerate(pairs, start=1)))


def _cell(job: Job) -> list[str]:
    return [job.part, job.model, job.scenario.name, job.how, job.dtype]


def _write(file: IO[bytes] | gzip.GzipFile, lines: Iterable[Sequence[Any]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    file.write(text.getvalue().encode())


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        yield file
    temporary.replace(path)
