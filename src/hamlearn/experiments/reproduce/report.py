"""The results to look at: tables for the terminal, and the same as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from hamlearn._base import machine
from hamlearn.experiments.data import Dataset
from hamlearn.experiments.models import EPOCHS
from hamlearn.experiments.reproduce.plan import WORDS, Settings
from hamlearn.experiments.reproduce.results import ROUND_OFF, Row
from hamlearn.experiments.scenarios import SCENARIOS

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
