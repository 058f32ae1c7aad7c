"""`hamlearn reproduce`: trains what is not trained yet, then writes every result from the finished runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from hamlearn.experiments.data import load
from hamlearn.experiments.folder import alone_in
from hamlearn.experiments.reproduce import figures, report, results
from hamlearn.experiments.reproduce.plan import Job, Settings, plan
from hamlearn.experiments.reproduce.train import Store, train_all

SECONDS_BETWEEN_LINES = 60.0


def reproduce(settings: Settings, out: Path, processes: int = 1, console: Console | None = None) -> bool:
    """Train, compare, and write tables, figures, curves and report; returns whether every check passed.

    Finished runs are in `out/runs`, and are used again if all that determines them is the same: setting, data,
    seed, versions, kind of machine. Everything else in `out` is written again from them.

    Args:
        settings: What to reproduce.
        out: Folder for the results.
        processes: How many runs at a time.
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
        data = {
            (name, dtype): load(name, settings.source, dtype=getattr(torch, dtype), seed=settings.seed)  # type: ignore[arg-type]
            for name in settings.data
            for dtype in settings.dtypes
        }
        named = {name: data[name, settings.dtypes[0]] for name in settings.data}
        console.print("Data: " + "; ".join(one.description for one in named.values()), highlight=False)
        store, jobs = Store(out / "runs"), list(plan(settings, data))
        _train(jobs, store, processes, console)
        rows = list(results.rows(jobs, store, {name: one.classes for name, one in named.items()}))
        results.write_table(out / "table.csv", rows)
        results.write_curves(out / "curves.csv", jobs, store)
        pictures = figures.draw_both(out, [row for row in rows if row.job.dtype == settings.dtypes[0]], settings)
        report.write_page(out / "report.html", settings, named, rows, pictures)
        _show(settings, rows, console)
        misses = [miss for row in rows for miss in row.misses]
        for miss in misses:
            console.print(f"[red]missed:[/] {miss}", highlight=False)
        verdict = f"[red]{len(misses)} checks missed.[/]" if misses else f"[green]All {len(rows)} cells passed.[/]"
        seconds = time.monotonic() - begin
        console.print(f"{verdict} {seconds:.0f} s. Report: {out / 'report.html'}", highlight=False)
        return not misses


def _train(jobs: Sequence[Job], store: Store, processes: int, console: Console) -> None:
    """Train what the store does not have, with a progress bar, or a line each minute without a terminal."""
    store.folder.mkdir(exist_ok=True)
    todo = [job for job in jobs if not store.has(job)]
    if len(todo) < len(jobs):
        console.print(f"{len(jobs) - len(todo)} of {len(jobs)} runs are done already", highlight=False)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    text, said = TextColumn("{task.description}"), time.monotonic()
    with Progress(*columns, text, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(jobs), completed=len(jobs) - len(todo))
        # Backwards, since the long runs, of recurrent nets and in float64, come last in the tables.
        with contextlib.closing(train_all(todo[::-1], store, processes)) as finished:
            for k, job in enumerate(finished, start=1):
                progress.update(task, advance=1, description=" ".join(job.cell))
                if not console.is_terminal and time.monotonic() - said > SECONDS_BETWEEN_LINES:
                    said = time.monotonic()
                    console.print(f"{k} of {len(todo)} runs", highlight=False)


def _show(settings: Settings, rows: Sequence[results.Row], console: Console) -> None:
    for dtype in settings.dtypes:
        console.print(
            f"\n[bold]|Δθ| between Hamiltonian Learning and torch.optim.SGD, {dtype}[/]", highlight=False
        )
        console.print(report.conditions(settings), highlight=False)
        console.print(report.bounds(settings, dtype), highlight=False)
        console.print(report.terminal_table([row for row in rows if row.job.dtype == dtype]))
