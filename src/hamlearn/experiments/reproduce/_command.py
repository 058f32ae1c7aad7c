"""The command: trains what is not trained yet, then tells everything anew from what is stored."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
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

from hamlearn.errors import ConfigError, install
from hamlearn.experiments.data import Dataset, load
from hamlearn.experiments.folder import alone_in
from hamlearn.experiments.reproduce import figures, files, page, results, tables
from hamlearn.experiments.reproduce.job import Job
from hamlearn.experiments.reproduce.plan import Settings, plan
from hamlearn.experiments.reproduce.pool import train_all
from hamlearn.experiments.reproduce.results import Row
from hamlearn.experiments.reproduce.store import Store

SECONDS_BETWEEN_LINES = 60.0


def reproduce(settings: Settings, out: Path, processes: int = 1, console: Console | None = None) -> bool:
    """Train, compare, and write tables, figures, curves and report; answers whether every check passed.

    Finished runs lie in `out/runs`, and are found there again whenever all that determines them is the same:
    setting, data, seed, versions, kind of machine. Everything else in `out` is written anew from them.

    Args:
        settings: What to reproduce.
        out: Folder for the results.
        processes: How many runs at a time.
        console: Where tables and progress are printed.

    Example:
        >>> import tempfile
        >>> few = {"models": ("Linear",), "scenarios": ("GD-a",), "epochs": 1}
        >>> settings = Settings(**few, extension=False, precision="float32")
        >>> quiet = Console(quiet=True)
        >>> reproduce(settings, Path(tempfile.mkdtemp()) / "out", console=quiet)
        True
    """
    console = console or Console()
    with alone_in(out):
        return _reproduce(settings, out, processes, console)


def _reproduce(settings: Settings, out: Path, processes: int, console: Console) -> bool:
    begin = time.monotonic()
    data = _data(settings)
    store = Store(out / "runs")
    store.open()
    jobs = plan(settings, data)
    named = {name: data[name, settings.dtypes[0]] for name in settings.data}
    console.print("Data: " + "; ".join(one.description for one in named.values()), highlight=False)
    _train(jobs, store, processes, console)
    rows = results.rows(jobs, store, {name: one.classes for name, one in named.items()})
    _write(out, settings, named, jobs, store, rows)
    _show(settings, rows, console)
    misses = [miss for row in rows for miss in row.misses]
    for miss in misses:
        console.print(f"[red]missed:[/] {miss}", highlight=False)
    verdict = f"[red]{len(misses)} checks missed.[/]" if misses else f"[green]All {len(rows)} cells passed.[/]"
    console.print(f"{verdict} {time.monotonic() - begin:.0f} s. Report: {out / 'report.html'}", highlight=False)
    return not misses


def _data(settings: Settings) -> dict[tuple[str, str], Dataset]:
    found = {}
    for name in settings.data:
        for dtype in settings.dtypes:
            found[name, dtype] = load(name, settings.source, dtype=getattr(torch, dtype), seed=settings.seed)  # type: ignore[arg-type]
    return found


def _train(jobs: Sequence[Job], store: Store, processes: int, console: Console) -> None:
    todo = [job for job in jobs if not store.has(job)]
    if len(todo) < len(jobs):
        console.print(f"{len(jobs) - len(todo)} of {len(jobs)} runs are done already", highlight=False)
    columns = [
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    ]
    told = time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(jobs), completed=len(jobs) - len(todo))
        # Backwards, since the long runs, of recurrent nets and in float64, come last in the tables.
        order = [job for job in reversed(todo) if job.part == "paper"]
        order += [job for job in todo if job.part != "paper"]
        with contextlib.closing(train_all(order, store, processes)) as finished:
            for k, job in enumerate(finished, start=1):
                progress.update(
                    task, advance=1, description=f"{job.model} {job.scenario.name} {job.how} {job.dtype}"
                )
                if not console.is_terminal and time.monotonic() - told > SECONDS_BETWEEN_LINES:
                    told = time.monotonic()
                    console.print(f"{k} of {len(todo)} runs", highlight=False)


def _write(
    out: Path,
    settings: Settings,
    data: Mapping[str, Dataset],
    jobs: Sequence[Job],
    store: Store,
    rows: Sequence[Row],
) -> None:
    files.write_table(out / "table.csv", rows)
    files.write_curves(out / "curves.csv", jobs, store)
    files.write_steps(out / "steps.csv.gz", jobs, store)
    dtype = settings.dtypes[0]
    shown = [row for row in rows if row.job.part == "paper" and row.job.dtype == dtype]
    pictures: dict[str, Path] = {}
    try:
        for curve in ("loss", "accuracy"):
            pictures[f"Mean {curve} of each epoch"] = out / f"{curve}.png"
            note = f"{dtype}; {tables.conditions(settings)}"
            figures.draw(out / f"{curve}.png", shown, curve, note)
    except ModuleNotFoundError as error:
        raise ConfigError(f"figures need {error.name}: {install('experiments')}") from error
    page.write_page(out / "report.html", settings, data, rows, pictures)


def _show(settings: Settings, rows: Sequence[Row], console: Console) -> None:
    for dtype in settings.dtypes:
        cells = [row for row in rows if row.job.part == "paper" and row.job.dtype == dtype]
        console.print(
            f"\n[bold]|Δθ| between Hamiltonian Learning and torch.optim.SGD, {dtype}[/]", highlight=False
        )
        console.print(tables.conditions(settings), highlight=False)
        console.print(tables.bounds_in_words(settings, dtype), highlight=False)
        console.print(tables.rich_table(tables.PAPER_HEAD, tables.paper_lines(cells), words=3))
    beyond = [row for row in rows if row.job.part != "paper"]
    if beyond:
        console.print("[bold]Beyond the paper: largest |Δθ| over settings of SGD drawn at random[/]")
        lines = tables.extension_lines(beyond, settings.dtypes)
        console.print(tables.rich_table(tables.extension_head(settings.dtypes), lines, words=3))
