"""Iris learned by `torch.optim.SGD` and by Hamiltonian Learning: the same weights, shown as table and figure."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hamlearn.errors import ConfigError
from hamlearn.experiments.comparison import Data, Difference, Role, Run, compare
from hamlearn.experiments.models import IRIS_MODELS
from hamlearn.experiments.scenarios import SCENARIOS

ROLES: tuple[Role, ...] = ("output", "state")
EPOCHS = 40
TOLERANCE = {("output", torch.float32): 0.0, ("state", torch.float32): 1e-5}
TOLERANCE |= {(role, torch.float64): 1e-10 for role in ROLES}

Results = dict[tuple[str, str], dict[str, Run]]


def iris(dtype: torch.dtype, seed: int) -> Data:
    """The 150 samples of Iris, one by one, in an order drawn from `seed`."""
    try:
        from sklearn.datasets import load_iris
    except ImportError as error:
        raise ConfigError("Iris comes with scikit-learn: pip install 'hamlearn[experiments]'") from error
    features, classes = load_iris(return_X_y=True)
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(seed))
    u, target = torch.tensor(features, dtype=dtype)[order], torch.tensor(classes)[order]
    return [(u[i : i + 1], target[i : i + 1]) for i in range(len(target))]


def run(
    out: Path,
    epochs: int = EPOCHS,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    console: Console | None = None,
) -> bool:
    """Train, print the table of |Δθ|, write figure and curves; answers whether every difference is in bounds."""
    console = console or Console()
    out.mkdir(parents=True, exist_ok=True)
    data = iris(dtype, seed)
    results: Results = {}
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("training", total=len(IRIS_MODELS) * len(SCENARIOS) * (1 + len(ROLES)))
        for model, make in IRIS_MODELS.items():
            for scenario in SCENARIOS.values():
                progress.update(task, description=f"{model} {scenario.name}")
                torch.manual_seed(seed)
                module = make().to(dtype)
                results[model, scenario.name] = compare(
                    module, data, epochs, scenario, ROLES, on_run=lambda _: progress.advance(task)
                )
    rows = _rows(results, dtype)
    console.print(_table(rows, epochs, dtype))
    _write_csv(out / "differences.csv", rows)
    _write_curves(out / "curves.csv", results, len(data))
    figure(out / "loss.png", results, len(data))
    passed = all(row["passed"] for row in rows)
    console.print(f"Loss figure: {out / 'loss.png'}; curves: {out / 'curves.csv'}")
    console.print(
        "[green]Every difference is within its bound.[/]" if passed else "[red]A difference is too large.[/]"
    )
    return passed


def _rows(results: Results, dtype: torch.dtype) -> list[dict[str, Any]]:
    rows = []
    for (model, scenario), runs in results.items():
        for role in ROLES:
            gap = Difference.between(runs[role], runs["SGD"])
            rows.append(
                {
                    "model": model,
                    "scenario": scenario,
                    "role": role,
                    "mean": gap.mean,
                    "min": gap.min,
                    "max": gap.max,
                    "sgd_loss": runs["SGD"].loss[-150:].mean().item(),
                    "hl_loss": runs[role].loss[-150:].mean().item(),
                    "hl_accuracy": runs[role].correct[-150:].double().mean().item(),
                    "passed": gap.max <= TOLERANCE[role, dtype],
                }
            )
    return rows


def _table(rows: list[dict[str, Any]], epochs: int, dtype: torch.dtype) -> Table:
    kind = str(dtype).removeprefix("torch.")
    title = f"|Δθ| between Hamiltonian Learning and SGD on Iris: {epochs} epochs, batch 1, {kind}"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("model", "setting", "HL as"):
        table.add_column(name)
    for name in ("mean", "min", "max", "L(SGD)", "L(HL)", "right", ""):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row["model"],
            row["scenario"],
            row["role"],
            *(f"{row[name]:.1e}" if row[name] else "0" for name in ("mean", "min", "max")),
            f"{row['sgd_loss']:.4f}",
            f"{row['hl_loss']:.4f}",
            f"{row['hl_accuracy']:.1%}",
            "[green]✓[/]" if row["passed"] else "[red]✗[/]",
            end_section=row["role"] == ROLES[-1] and row["scenario"] == list(SCENARIOS)[-1],
        )
    return table


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _write_curves(path: Path, results: Results, samples: int) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "scenario", "learner", "epoch", "loss", "accuracy"])
        for (model, scenario), runs in results.items():
            for learner, result in runs.items():
                loss, accuracy = result.epoch_means(samples)
                for epoch, pair in enumerate(zip(loss.tolist(), accuracy.tolist(), strict=True), start=1):
                    writer.writerow([model, scenario, learner, epoch, *pair])


def figure(path: Path, results: Results, samples: int) -> None:
    """Mean loss of each epoch, a panel per model; one line per scenario, one marker per learner."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    palette = dict(zip(SCENARIOS, ("#0072b2", "#e69f00", "#009e73", "#cc79a7"), strict=True))
    markers = {"SGD": ("o", 7.5), "output": ("x", 6.0), "state": ("D", 3.0)}
    models = list(dict.fromkeys(model for model, _ in results))
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        canvas = Figure(figsize=(4.6 * len(models), 3.8), layout="constrained")
        axes = canvas.subplots(1, len(models), squeeze=False, sharey=True)[0]
        for axis, model in zip(axes, models, strict=True):
            for scenario, color in palette.items():
                for learner, (marker, size) in markers.items():
                    loss, _ = results[model, scenario][learner].epoch_means(samples)
                    epochs = range(1, len(loss) + 1)
                    hollow = {"markerfacecolor": "none"} if learner == "SGD" else {}
                    axis.plot(
                        epochs,
                        loss,
                        color=color,
                        linewidth=1.1,
                        marker=marker,
                        markersize=size,
                        markevery=max(1, len(loss) // 10),
                        **hollow,
                    )
            axis.set(title=f"Iris, {model}", xlabel="epoch")
            axis.grid(alpha=0.25, linewidth=0.6)
        axes[0].set_ylabel("cross-entropy")
        axes[0].set_ylim(bottom=0)
        handles = [Line2D([], [], color=color, label=name) for name, color in palette.items()]
        for learner, (marker, size) in markers.items():
            fill = "none" if learner == "SGD" else "0.3"
            label = "torch.optim.SGD" if learner == "SGD" else f"HL as {learner} net"
            handles.append(
                Line2D(
                    [],
                    [],
                    color="0.3",
                    linestyle="",
                    marker=marker,
                    markersize=size,
                    markerfacecolor=fill,
                    label=label,
                )
            )
        canvas.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
        canvas.savefig(path, dpi=150)
