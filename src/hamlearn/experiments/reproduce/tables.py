"""The tables as text: the paper's cells, and the extension summed up, for terminal and page alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from hamlearn.experiments.models import EPOCHS
from hamlearn.experiments.reproduce.plan import WORDS, Settings
from hamlearn.experiments.reproduce.results import ROUND_OFF, Row

PAPER_HEAD = ("model", "setting", "HL as", "mean", "min", "max", "L SGD", "L HL", "% SGD", "% HL")
EXTENSION_HEAD = ("model", "HL as", "against", "draws")


@dataclass(frozen=True)
class Line:
    """A line of a table: its words, whether all is well, and whether a rule follows."""

    words: tuple[str, ...]
    passed: bool
    last: bool


def paper_lines(rows: Sequence[Row]) -> list[Line]:
    """A line for each cell, in the order of `rows`; loss and accuracy are means of the last epoch."""
    lines = []
    for k, row in enumerate(rows):
        job = row.job
        words = (job.model, job.scenario.name, job.how, *map(number, (row.gap.mean, row.gap.min, row.gap.max)))
        words += (f"{row.sgd_loss[-1]:.4f}", f"{row.hl_loss[-1]:.4f}")
        words += (f"{100 * row.sgd_accuracy[-1]:.0f}", f"{100 * row.hl_accuracy[-1]:.0f}")
        lines.append(Line(words, row.passed, k + 1 == len(rows) or rows[k + 1].job.model != job.model))
    return lines


def extension_lines(rows: Sequence[Row], dtypes: Sequence[str]) -> list[Line]:
    """A line for each model and implementation: the largest |Δθ| over all drawn settings, in each dtype."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.job.part, row.job.model, row.job.how), []).append(row)
    lines = []
    for k, ((part, model, how), group) in enumerate(groups.items()):
        judge = "SGD, BPTT" if part == "tokens" else "SGD"
        worst = [max(row.gap.max for row in group if row.job.dtype == dtype) for dtype in dtypes]
        settings = len({row.job.scenario for row in group})
        label = "echo, by tokens" if part == "tokens" else how
        words = (model, label, judge, str(settings), *map(number, worst))
        end = k + 1 == len(groups) or list(groups)[k + 1][:2] != (part, model)
        lines.append(Line(words, all(row.passed for row in group), end))
    return lines


def extension_head(dtypes: Sequence[str]) -> tuple[str, ...]:
    """Names of the columns."""
    return (*EXTENSION_HEAD, *dtypes)


def conditions(settings: Settings) -> str:
    """Data and epochs; says plainly where they are not the paper's.

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


def bounds_in_words(settings: Settings, dtype: str) -> str:
    """What is asked of |Δθ| in the paper's cells, and what is left out of them.

    Example:
        >>> bounds_in_words(Settings(), "float64")
        'asked: at most 1e-10; here reviews are cut to 64 words, and output nets are left to float32'
    """
    if dtype == "float32":
        return f"asked: exactly 0 for output, at most {ROUND_OFF[dtype]:.0e} for the others"
    words = f"asked: at most {ROUND_OFF[dtype]:.0e}"
    if not settings.second(dtype):
        return words
    cut = f"reviews are cut to {WORDS} words, and " if "IMDb" in settings.data else ""
    return f"{words}; here {cut}output nets are left to float32"


def rich_table(head: Sequence[str], lines: Sequence[Line], words: int) -> Table:
    """The table for a terminal; the first `words` columns are words, the others numbers."""
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    for k, name in enumerate((*head, "")):
        table.add_column(name, justify="left" if k < words else "right", no_wrap=True)
    for line in lines:
        mark = "[green]✓[/]" if line.passed else "[red]✗[/]"
        table.add_row(*line.words, mark, end_section=line.last)
    return table


def number(value: float) -> str:
    """A difference in few letters; 0 is 0 and nothing else.

    Example:
        >>> number(0.0), number(2.2e-16)
        ('0', '2.2e-16')
    """
    return f"{value:.1e}" if value else "0"
