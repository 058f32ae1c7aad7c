"""Tables and figures of `hamlearn bench credit`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.credit_tasks.symbols import FLOORS

COLORS = {
    "sensitivity": "#d55e00",
    "rtu": "#cc79a7",
    "lru": "#0072b2",
    "tbptt": "#009e73",
    "tbptt-gru": "#56b4e9",
    "snap1": "#e69f00",
    "rtrl": "#f0e442",
}
"""Of lines by rule; all others are grey."""


def show(found: dict[str, Any], console: Console) -> None:
    """One task as a table."""
    title = (
        f"{found['title']}: {found['metric']} ({found['better']} is better), {found['steps']:,} steps, "
        f"{found['lanes']} lanes, mean of {found['seeds']} seeds"
    )
    table = Table(
        "rule", "cell", "score", "seeds", "rate, of those tried", "µs a step", "kept for credit", title=title
    )
    for row in found["rows"]:
        seeds = " ".join(f"{score:.4f}" for score in row["scores"])
        if "steps until 0.95" in row:
            seeds += "; .95 after " + " ".join(str(step or "–") for step in row["steps until 0.95"])
        grid = ", ".join(f"{rate}: {score:.4f}" for rate, score in row["grid"].items())
        table.add_row(
            row["name"],
            f"{row['units']} {row['cell']}",
            f"{row['score']:.4f}",
            seeds,
            f"{row['rate']:g} ({grid})",
            f"{row['microseconds']:.1f}",
            f"{4 * row['kept for credit'] / 1024:,.0f} KiB",
        )
    console.print(table)


def figure(path: Path, found: dict[str, Any]) -> None:
    """The metric over time, one line a rule."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        canvas = Figure(figsize=(7.6, 4.2), layout="constrained")
        axis = canvas.subplots()
        greys = itertools.cycle(["-", "--", ":", "-.", (0, (5, 1)), (0, (1, 3)), (0, (3, 1, 1, 1)), "-"])
        for row in found["rows"]:
            count = max(1, len(row["curve"]))
            steps = [found["steps"] * (k + 1) / count for k in range(len(row["curve"]))]
            # A rule from another start has the rule's colour, dashed.
            rule = row["rule"].partition("-radius-")[0]
            known, label = rule in COLORS, f"{row['name']}, {row['cell']}"
            (line,) = axis.plot(steps, row["curve"], label=label, color=COLORS.get(rule, "0.55"))
            style = "-" if rule == row["rule"] else "--"
            line.set(linewidth=1.8 if known else 1.0, linestyle=style if known else next(greys))
        for name, level in _levels(found["task"]):
            axis.axhline(level, color="0.7", linewidth=0.8, linestyle="--")
            axis.annotate(name, (0, level), xytext=(2, 2), textcoords="offset points", color="0.4", fontsize=8)
        if found["metric"] == "NMSE":
            axis.set_yscale("log")
        axis.set(xlabel="steps", ylabel=found["metric"], title=found["title"])
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
        path.parent.mkdir(parents=True, exist_ok=True)
        canvas.savefig(path, dpi=130)


def _levels(task: str) -> list[tuple[str, float]]:
    if task == "delayed-add":
        return list(FLOORS.items())
    if task.startswith("recall"):
        return [("chance", 0.25)]
    return [("ceiling", 0.948)] if task == "anbn" else []
