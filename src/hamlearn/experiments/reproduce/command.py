"""`hamlearn reproduce`: trains every model in every way, compares, and writes every result."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import torch
from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hamlearn.errors import HamlearnError
from hamlearn.experiments.comparison import Run, train_hl, train_sgd
from hamlearn.experiments.data import Dataset, load
from hamlearn.experiments.folder import alone_in
from hamlearn.experiments.models import MODELS, Implementation
from hamlearn.experiments.reproduce import figures, results
from hamlearn.experiments.reproduce.plan import Settings, TrainingJob, plan


class WorkerError(HamlearnError, RuntimeError):
    """A process that trained ended before its work was done."""


def reproduce(settings: Settings, out: Path, processes: int = 1, console: Console | None = None) -> bool:
    """Train, compare, and write tables, figures, curves and report; returns whether every check passed.

    Args:
        settings: What to reproduce.
        out: Folder for the results.
        processes: How many runs at a time; -1: one per core.
        console: Where tables and progress are printed.

    Example:
        >>> import tempfile
        >>> settings = Settings(models=("Linear",), scenarios=("GD-a",), epochs=1, precision="float32")
        >>> reproduce(settings, Path(tempfile.mkdtemp()) / "out", console=Console(quiet=True))
        True
    """
    console = console or Console()
    with alone_in(out):
        begin = time.monotonic()
        data = {name: load(name, settings.source, seed=settings.seed) for name in settings.data}  # type: ignore[arg-type]
        console.print("Data: " + "; ".join(one.description for one in data.values()), highlight=False)
        runs = _train(list(plan(settings)), processes, console)
        rows = list(results.rows(runs, {name: one.classes for name, one in data.items()}))
        results.write_table(out / "table.csv", rows)
        results.write_curves(out / "curves.csv", runs)
        pictures = figures.draw_both(out, [row for row in rows if row.job.dtype == settings.dtypes[0]], settings)
        results.write_page(out / "report.html", settings, data, rows, pictures)
        results.show(console, settings, rows)
        misses = [miss for row in rows for miss in row.misses]
        verdict = f"[red]{len(misses)} checks missed.[/]" if misses else f"[green]All {len(rows)} cells passed.[/]"
        seconds = time.monotonic() - begin
        console.print(f"{verdict} {seconds:.0f} s. Report: {out / 'report.html'}", highlight=False)
        return not misses


def _train(jobs: Sequence[TrainingJob], processes: int, console: Console) -> dict[TrainingJob, Run]:
    """Train, with a progress bar if there is a terminal."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    found: dict[TrainingJob, Run] = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(jobs))
        # Backwards, since the long runs, of recurrent nets and in float64, come last in the tables.
        with contextlib.closing(_train_all(jobs[::-1], processes)) as finished:
            for job, run in finished:
                found[job] = run
                progress.update(task, advance=1, description=" ".join(job.cell))
    return {job: found[job] for job in jobs}


def _train_all(jobs: Sequence[TrainingJob], processes: int) -> Generator[tuple[TrainingJob, Run], None, None]:
    """Train, and yield each job with its run when it is finished; one process trains in this one."""
    parallel = Parallel(
        n_jobs=processes,
        return_as="generator_unordered",
        pre_dispatch="n_jobs",
        batch_size=1,
        # Seconds after which a process without work ends, also when this one was killed.
        idle_worker_timeout=10,
    )
    try:
        yield from parallel(delayed(train)(job) for job in jobs)
    except TerminatedWorkerError as error:
        raise WorkerError(
            f"a process that trained ended early ({error}). If memory ran out, use fewer --jobs."
        ) from error


def train(job: TrainingJob) -> tuple[TrainingJob, Run]:
    """Train as the job says."""
    with _one_thread():
        data = _load(job.data, job.source, job.dtype, job.seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(job.seed)
            module = MODELS[job.model].make(data.classes).to(getattr(torch, job.dtype))
        pairs = list(zip(data.inputs, data.targets, strict=True))
        if job.length is not None:
            pairs = [(u[:, : job.length], target) for u, target in pairs]
        if job.how == "SGD":
            return job, train_sgd(module, pairs, job.epochs, job.scenario)
        return job, train_hl(module, pairs, job.epochs, job.scenario, cast(Implementation, job.how))


@lru_cache
def _load(name: Any, source: str, dtype: str, seed: int) -> Dataset:
    return load(name, source, dtype=getattr(torch, dtype), seed=seed)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    # Sums over several threads would depend on their number; and processes would slow each other down.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
