"""The results to look at: tables for the terminal, and one HTML file that needs nothing else."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from hamlearn._base import machine
from hamlearn.experiments.data import Dataset
from hamlearn.experiments.models import EPOCHS
from hamlearn.experiments.reproduce.plan import WORDS, Settings
from hamlearn.experiments.reproduce.results import ROUND_OFF, Row
from hamlearn.experiments.scenarios import SCENARIOS
from hamlearn.record.page import framed

HEAD = ("model", "setting", "HL as", "mean", "min", "max", "L SGD", "L HL", "% SGD", "% HL")
_WORDS = 3
"""Columns of the tables that hold words; the others hold numbers."""


def cells(row: Row) -> list[str]:
    """The cells of a row; loss and accuracy are means of the last epoch."""
    gaps = [number(gap) for gap in (row.gap.mean, row.gap.min, row.gap.max)]
    ends = [f"{row.sgd_loss[-1]:.4f}", f"{row.hl_loss[-1]:.4f}"]
    ends += [f"{100 * row.sgd_accuracy[-1]:.0f}", f"{100 * row.hl_accuracy[-1]:.0f}"]
    return [*row.job.cell[:3], *gaps, *ends]


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


def terminal_table(rows: Sequence[Row]) -> Table:
    """A table for the terminal, within 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    for k, name in enumerate((*HEAD, "")):
        table.add_column(name, justify="left" if k < _WORDS else "right", no_wrap=True)
    for row, last in _with_ends(rows):
        table.add_row(*cells(row), "[green]✓[/]" if row.passed else "[red]✗[/]", end_section=last)
    return table


def _with_ends(rows: Sequence[Row]) -> list[tuple[Row, bool]]:
    """Each row, and whether it is the last one of its model."""
    after = [row.job.model for row in rows[1:]] + [""]
    return [(row, row.job.model != model) for row, model in zip(rows, after, strict=True)]


def write_page(
    path: Path, settings: Settings, data: Mapping[str, Dataset], rows: Sequence[Row], figures: Mapping[str, Path]
) -> None:
    """Write the report from the template `report.html.j2`.

    Args:
        path: The HTML file.
        settings: What was reproduced.
        data: Data sets by name.
        rows: Every comparison.
        figures: PNG files by caption.
    """
    from jinja2 import Environment, PackageLoader

    templates = Environment(loader=PackageLoader(__package__, "."), autoescape=True, trim_blocks=True)
    known = machine.versions()
    by_dtype = {dtype: [row for row in rows if row.job.dtype == dtype] for dtype in settings.dtypes}
    body = templates.get_template("report.html.j2").render(
        head=HEAD,
        words=_WORDS,
        rows=rows,
        exact=[row for row in rows if row.bound == 0],
        worst={dtype: number(max(row.gap.max for row in found)) for dtype, found in by_dtype.items()},
        tables=[(dtype, bounds(settings, dtype), _with_ends(found)) for dtype, found in by_dtype.items()],
        cells=cells,
        figures={name: base64.b64encode(picture.read_bytes()).decode() for name, picture in figures.items()},
        data=data,
        scenarios=[SCENARIOS[name] for name in SCENARIOS if name in settings.scenarios],
        seed=settings.seed,
        versions={name: known[name] for name in ("hamlearn", "torch")},
        machine=machine.kind(),
    )
    style = templates.get_template("report.css").render(reduced=settings.reduced)
    path.write_text(framed("Hamiltonian Learning against SGD", conditions(settings), body, style), "utf-8")
