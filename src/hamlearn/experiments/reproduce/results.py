"""Results: a row for each comparison with SGD, as CSV files, as tables of the terminal, and as an HTML page."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hamlearn._base import machine
from hamlearn.experiments.comparison import Difference, Run
from hamlearn.experiments.data import Dataset
from hamlearn.experiments.models import EPOCHS
from hamlearn.experiments.reproduce.plan import WORDS, Settings, TrainingJob
from hamlearn.experiments.scenarios import SCENARIOS
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

    job: TrainingJob
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


def rows(runs: Mapping[TrainingJob, Run], classes: Mapping[str, int]) -> Iterator[Row]:
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


def write_curves(path: Path, runs: Mapping[TrainingJob, Run]) -> None:
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


HEAD = ("model", "setting", "HL as", "mean", "min", "max", "L SGD", "L HL", "% SGD", "% HL", "")
_WORDS = 3
"""Columns of the tables that hold words; the others hold numbers."""
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Hamiltonian Learning against SGD</title>
<body style="margin: 2em auto; max-width: 60em"><pre style="line-height: 1.3">{code}</pre>
IMAGES</body></html>
"""


def number(value: float) -> str:
    """A difference in few letters; 0 is 0 and nothing else.

    Example:
        >>> number(0.0), number(2.2e-16)
        ('0', '2.2e-16')
    """
    return f"{value:.1e}" if value else "0"


def conditions(settings: Settings) -> str:
    """Data and epochs; says so if they are not the paper's.

    Example:
        >>> conditions(Settings(models=("Linear",)))
        "the paper's epochs: Iris 40"
        >>> conditions(Settings(models=("Linear", "RNN"), epochs=5))
        'embedded stand-in for IMDb; REDUCED epochs: Iris 5 (paper: 40), IMDb 5 (paper: 80)'
    """
    shown = {name: settings.epochs_of(name) for name in settings.data}
    if all(shown[name] == EPOCHS[name] for name in shown):
        words = "the paper's epochs: " + ", ".join(f"{name} {count}" for name, count in shown.items())
    else:
        kind = "REDUCED epochs" if settings.reduced else "other epochs than the paper's"
        words = f"{kind}: " + ", ".join(f"{name} {count} (paper: {EPOCHS[name]})" for name, count in shown.items())
    replaced = [name for name in settings.data if settings.source == "embedded" and name != "Iris"]
    if replaced:
        words = f"embedded stand-in{'s' * (len(replaced) > 1)} for {' and '.join(replaced)}; {words}"
    return words


def bounds(settings: Settings, dtype: str) -> str:
    """What is asked of |Δθ|, and what is left out.

    Example:
        >>> bounds(Settings(), "float64")
        'asked: at most 1e-10; here reviews are cut to 64 words, and output nets are left to float32'
    """
    if dtype == "float32":
        return f"asked: exactly 0 for output, at most {ROUND_OFF[dtype]:.0e} for the others"
    words = f"asked: at most {ROUND_OFF[dtype]:.0e}"
    if not settings.is_second(dtype):
        return words
    cut = f"reviews are cut to {WORDS} words, and " if "IMDb" in settings.data else ""
    return f"{words}; here {cut}output nets are left to float32"


def show(console: Console, settings: Settings, rows: Sequence[Row]) -> None:
    """Print a table for each dtype, within 80 columns, and the checks that were missed."""
    for dtype in settings.dtypes:
        title = f"|Δθ| between Hamiltonian Learning and torch.optim.SGD, {dtype}"
        console.print(f"\n[bold]{title}[/]", highlight=False)
        console.print(conditions(settings), highlight=False)
        console.print(bounds(settings, dtype), highlight=False)
        console.print(_table([row for row in rows if row.job.dtype == dtype]))
    for row in rows:
        for miss in row.misses:
            console.print(f"[red]missed:[/] {miss}", highlight=False)


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    for k, name in enumerate(HEAD):
        table.add_column(name, justify="left" if k < _WORDS else "right", no_wrap=True)
    models = [row.job.model for row in rows[1:]] + [""]
    for row, next_model in zip(rows, models, strict=True):
        table.add_row(*_cells(row), end_section=row.job.model != next_model)
    return table


def _cells(row: Row) -> list[str]:
    """The cells of a row; loss and accuracy are means of the last epoch."""
    gaps = [number(gap) for gap in (row.gap.mean, row.gap.min, row.gap.max)]
    ends = [f"{row.sgd_loss[-1]:.4f}", f"{row.hl_loss[-1]:.4f}"]
    ends += [f"{100 * row.sgd_accuracy[-1]:.0f}", f"{100 * row.hl_accuracy[-1]:.0f}"]
    return [*row.job.cell[:3], *gaps, *ends, "[green]✓[/]" if row.passed else "[red]✗[/]"]


def write_page(
    path: Path, settings: Settings, data: Mapping[str, Dataset], rows: Sequence[Row], figures: Mapping[str, Path]
) -> None:
    """Write the tables, what was run, and the figures as an HTML page.

    Args:
        path: The HTML file.
        settings: Settings of the reproduction.
        data: Data sets by name.
        rows: Every comparison.
        figures: PNG files by caption.
    """
    page = Console(record=True, file=io.StringIO(), width=100)
    show(page, settings, rows)
    for name, one in data.items():
        page.print(f"Data: {name}: {one.description}; {len(one)} samples", highlight=False)
    for sgd in (SCENARIOS[name] for name in SCENARIOS if name in settings.scenarios):
        setting = f"lr {sgd.lr:g}, momentum {sgd.momentum:g}, dampening {sgd.dampening:g}, τ {sgd.tau:g}"
        page.print(f"{sgd.name}: {setting}", highlight=False)
    known = machine.versions()
    page.print(f"Seed {settings.seed}; cross-entropy, batch 1, one thread a run", highlight=False)
    page.print(f"hamlearn {known['hamlearn']}, torch {known['torch']}; {machine.kind()}", highlight=False)
    pictures = [
        f'<p>{caption}</p><img alt="{caption}" style="max-width: 100%" '
        f'src="data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}">'
        for caption, picture in figures.items()
    ]
    text = page.export_html(inline_styles=True, code_format=_PAGE)
    path.write_text(text.replace("IMAGES", "\n".join(pictures)), "utf-8")
