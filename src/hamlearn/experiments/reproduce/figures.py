"""The paper's two figures: loss and accuracy of every model while it learns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from hamlearn.experiments.models import EPOCHS, MODELS
from hamlearn.experiments.reproduce.plan import Settings
from hamlearn.experiments.reproduce.results import Row, conditions
from hamlearn.experiments.scenarios import SCENARIOS

COLORS = dict(zip(SCENARIOS, ("#0072b2", "#e69f00", "#009e73", "#cc79a7"), strict=True))
LINES: dict[str, Any] = dict(zip(SCENARIOS, ("-", "--", "-.", ":"), strict=True))
MARKERS: dict[str, dict[str, Any]] = {
    "SGD": {"marker": "o", "markersize": 8.0, "markerfacecolor": "none"},
    "output": {"marker": "x", "markersize": 5.5},
    "state": {"marker": "D", "markersize": 3.0},
    "state/output": {"marker": "+", "markersize": 9.0},
}
_LABELS = {
    "SGD": "torch.optim.SGD",
    "output": "HL: output",
    "state": "HL: state",
    "state/output": "HL: state/output",
}
Curve = Literal["loss", "accuracy"]


def draw_both(out: Path, rows: Sequence[Row], settings: Settings) -> dict[str, Path]:
    """The figures of loss and accuracy in a folder, by caption.

    Args:
        out: The folder.
        rows: Cells in the first dtype of `settings`.
        settings: Settings of the reproduction.
    """
    note = f"{settings.dtypes[0]}; {conditions(settings)}"
    pictures = {f"Mean {curve} of each epoch": (curve, out / f"{curve}.png") for curve in get_args(Curve)}
    for curve, path in pictures.values():
        _draw(path, rows, curve, note)
    return {caption: path for caption, (_, path) in pictures.items()}


def _draw(path: Path, rows: Sequence[Row], curve: Curve, note: str) -> None:
    """One figure in the paper's arrangement: data sets side by side, their two models one below the other.

    A line and a colour for each scenario, a marker for each learner; where learners agree, markers of all shapes
    lie on one line. The note is printed above: data, epochs, dtype.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    grid = _grid(rows)
    height, width = max(len(column) for column in grid), len(grid)
    style: dict[Any, Any] = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}
    with mpl.rc_context(style):
        figure = Figure(figsize=(4.1 * width + 0.4, 2.9 * height + 1.1), layout="constrained")
        axes = figure.subplots(height, width, squeeze=False)
        for x, column in enumerate(grid):
            for y in range(height):
                if y < len(column):
                    _panel(axes[y][x], [row for row in rows if row.job.model == column[y]], curve)
                else:
                    axes[y][x].set_axis_off()
            axes[len(column) - 1][x].set_xlabel("epoch")
        for y in range(height):
            axes[y][0].set_ylabel("cross-entropy" if curve == "loss" else "accuracy")
        handles = _handles(rows)
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
        figure.suptitle(note, fontsize=9, color="0.35")
        figure.savefig(path, dpi=110, metadata={"Software": None})


def _grid(rows: Sequence[Row]) -> list[list[str]]:
    present = {row.job.model for row in rows}
    columns = [[name for name in MODELS if name in present and MODELS[name].data == data] for data in EPOCHS]
    return [column for column in columns if column]


def _panel(axis: Any, rows: Sequence[Row], curve: Curve) -> None:
    drawn = set()
    for row in rows:
        scenario, how = row.job.scenario.name, row.job.how
        sgd, hl = (row.sgd_loss, row.hl_loss) if curve == "loss" else (row.sgd_accuracy, row.hl_accuracy)
        if scenario not in drawn:
            _line(axis, sgd, scenario, "SGD")
            drawn.add(scenario)
        _line(axis, hl, scenario, how)
    job = rows[0].job
    axis.set_title(f"{job.data}, {job.model}", fontsize=10)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.xaxis.get_major_locator().set_params(integer=True)
    if curve == "loss":
        highest = max(max(curves) for row in rows for curves in (row.sgd_loss, row.hl_loss))
        axis.set_ylim(0, 1.06 * highest)
    else:
        axis.set_ylim(-0.03, 1.03)
        axis.axhline(rows[0].chance, color="0.6", linewidth=0.8, zorder=0)


def _line(axis: Any, values: list[float], scenario: str, how: str) -> None:
    every = max(1, len(values) // 8)
    # Scenarios mark other epochs, so that one's markers do not hide another's.
    first = list(SCENARIOS).index(scenario) * every // len(SCENARIOS)
    axis.plot(
        range(1, len(values) + 1),
        values,
        color=COLORS[scenario],
        linestyle=LINES[scenario] if how == "SGD" else "none",
        linewidth=1.2,
        markevery=(min(first, len(values) - 1), every),
        **MARKERS[how],
    )


def _handles(rows: Sequence[Row]) -> list[Any]:
    from matplotlib.lines import Line2D

    scenarios = [name for name in SCENARIOS if any(row.job.scenario.name == name for row in rows)]
    learners = [name for name in MARKERS if name == "SGD" or any(row.job.how == name for row in rows)]
    lines = [Line2D([], [], color=COLORS[name], linestyle=LINES[name], label=name) for name in scenarios]
    return lines + [
        Line2D([], [], color="0.3", linestyle="", label=_LABELS[name], **MARKERS[name]) for name in learners
    ]
