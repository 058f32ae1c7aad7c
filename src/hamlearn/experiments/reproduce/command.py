"""`hamlearn reproduce`: trains every model in every way, compares, and writes every result."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from hamlearn.experiments.comparison import Run
from hamlearn.experiments.data import load
from hamlearn.experiments.folder import alone_in
from hamlearn.experiments.reproduce import figures, report, results
from hamlearn.experiments.reproduce.plan import Job, Settings, plan
from hamlearn.experiments.reproduce.train import train_all


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
        report.write_page(out / "report.html", settings, data, rows, pictures)
        report.show(console, settings, rows)
        misses = [miss for row in rows for miss in row.misses]
        verdict = f"[red]{len(misses)} checks missed.[/]" if misses else f"[green]All {len(rows)} cells passed.[/]"
        seconds = time.monotonic() - begin
        console.print(f"{verdict} {seconds:.0f} s. Report: {out / 'report.html'}", highlight=False)
        return not misses


def _train(jobs: Sequence[Job], processes: int, console: Console) -> dict[Job, Run]:
    """Train, with a progress bar if there is a terminal."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    text, found = TextColumn("{task.description}"), dict[Job, Run]()
    with Progress(*columns, text, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(jobs))
        # Backwards, since the long runs, of recurrent nets and in float64, come last in the tables.
        with contextlib.closing(train_all(jobs[::-1], processes)) as finished:
            for job, run in finished:
                found[job] = run
                progress.update(task, advance=1, description=" ".join(job.cell))
    return {job: found[job] for job in jobs}
