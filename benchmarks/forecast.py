"""`Forecaster(24)` on hourly series, against simple guesses, Holt-Winters and adaptive random forests.

The protocol is frozen. After each value the next 24 are forecast, and only then is the next value learned. The
score is the mean absolute error of each step, of all forecasts made from the 500th value on. Nothing is set per
series.

The contenders are "no change", the value of the same hour a day before, Holt-Winters, and a direct forest.
Holt-Winters is River's, additive, with a season of 24. For each series and each step it has the best of 12
settings on the first 500 values. The forest is River's `ARFRegressor` of ten trees with its defaults, one for each
step. It reads the last 24 values, the last known values of that hour and of that hour of the week, and the hour.
It learns once the value and once its change from now, and the better of both counts.

A folder of series holds a file `NAME.npz` for each, with `y`. Without a folder there is one series, WaterFlow,
which River brings along.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks import _report
from hamlearn.errors import ConfigError
from hamlearn.estimators import Forecaster

DAY, WEEK = 24, 168
STEPS = (1, DAY)
FIRST = 500
SETTINGS = tuple(itertools.product((0.1, 0.3, 0.6, 0.9), (0.01,), (0.05, 0.1, 0.3)))
"""α, β and γ of Holt-Winters."""


def options(arguments: Sequence[str]) -> dict[str, Any]:
    """Arguments of `run` from options of the command line."""
    parser = argparse.ArgumentParser("hamlearn bench forecast")
    parser.add_argument("--data", type=Path, help="a folder with one NAME.npz for each series")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--values", type=int, help="how many values of each series; without: all")
    return vars(parser.parse_args(arguments))


def run(
    out: Path, quick: bool = False, data: Path | None = None, seeds: int = 1, values: int | None = None
) -> dict[str, Any]:
    """Score all series, print a table, write a dated report and a figure."""
    torch.set_num_threads(1)
    found = {}
    for name, y in (_bundled() if data is None else _stored(data)).items():
        found[name] = measure(y[: FIRST + 100 if quick else values], seeds)
        Console().print(name, found[name])
    _print(found)
    rerun = "hamlearn bench forecast --data DIR" + (f" --values {values}" if values else "")
    path = _report.write(out, "forecast", {"methods": __doc__, "series": found}, rerun)
    plot(found).savefig(path.with_suffix(".png"), dpi=120)
    return found


def _bundled() -> dict[str, np.ndarray]:
    from river import datasets

    return {"water_flow": np.array([y for _, y in datasets.WaterFlow()])}


def _stored(folder: Path) -> dict[str, np.ndarray]:
    paths = sorted(folder.glob("*.npz"))
    if not paths:
        raise ConfigError(f"--data {folder} holds no series: give a folder with files NAME.npz that hold y")
    return {path.stem: np.load(path)["y"].astype(np.float64) for path in paths}


def measure(y: np.ndarray, seeds: int = 1) -> dict[str, Any]:
    """Mean absolute errors at the first and the last step, of all contenders."""
    start = time.perf_counter()
    tried, coverage = [], 0.0
    for seed in range(seeds):
        made, coverage = _forecasts(y, seed)
        tried.append(_errors(made, y))
    seconds = (time.perf_counter() - start) / seeds
    winters = [
        _errors(_holt_winters(y[: 2 * FIRST], *setting), y[: 2 * FIRST], FIRST // 4, FIRST) for setting in SETTINGS
    ]
    errors = {
        "Forecaster": {str(step): float(np.mean([one[str(step)] for one in tried])) for step in STEPS},
        "no change": _errors(dict.fromkeys(STEPS, y), y),
        "a day before": _errors({step: _lagged(y, DAY - step) for step in STEPS}, y),
        "Holt-Winters": {},
        "direct ARF": {},
    }
    for step in map(str, STEPS):
        best = int(np.argmin([one[step] for one in winters]))
        errors["Holt-Winters"][step] = _errors(_holt_winters(y, *SETTINGS[best]), y)[step]
        forests = [_errors({int(step): _forest(y, int(step), change)}, y) for change in (False, True)]
        errors["direct ARF"][step] = min(one[step] for one in forests)
    return {
        "values": len(y),
        "mean absolute error": errors,
        "spread over seeds": {str(step): float(np.ptp([one[str(step)] for one in tried])) for step in STEPS},
        "coverage of intervals of 0.9": coverage,
        "microseconds a value": 1e6 * seconds / len(y),
    }


def _errors(
    made: Mapping[int, np.ndarray], y: np.ndarray, first: int = FIRST, last: int | None = None
) -> dict[str, float]:
    """Mean absolute error by step; `made[step][t]` is the forecast of y[t + step] once y[t] is known."""
    found = {}
    for step, forecast in made.items():
        at = np.arange(first, (len(y) if last is None else last) - step)
        found[str(step)] = float(np.abs(forecast[at] - y[at + step]).mean())
    return found


def _forecasts(y: np.ndarray, seed: int) -> tuple[dict[int, np.ndarray], float]:
    """Forecasts of the estimator, and the share of values that its intervals held, over both steps."""
    model, made, inside = Forecaster(DAY, seed), {step: np.zeros(len(y)) for step in STEPS}, []
    for now, value in enumerate(y.tolist()):
        model.learn_one(value)
        forecast, (low, high) = model.forecast(), model.forecast_interval(0.9)
        for step in STEPS:
            made[step][now] = forecast[step - 1]
            if FIRST <= now < len(y) - step:
                inside.append(low[step - 1] <= y[now + step] <= high[step - 1])
    return made, float(np.mean(inside))


def _lagged(y: np.ndarray, lag: int) -> np.ndarray:
    return y[np.maximum(np.arange(len(y)) - lag, 0)]


def _holt_winters(y: np.ndarray, alpha: float, beta: float, gamma: float) -> dict[int, np.ndarray]:
    from river.time_series import HoltWinters

    model, made = HoltWinters(alpha, beta, gamma, seasonality=DAY), {step: y.copy() for step in STEPS}
    for now, value in enumerate(y.tolist()):
        model.learn_one(value)
        if now >= 2 * DAY:
            forecast = model.forecast(DAY)
            for step in STEPS:
                made[step][now] = forecast[step - 1]
    return made


def _forest(y: np.ndarray, step: int, change: bool) -> np.ndarray:
    """Forecasts of the value, or of its change from now, by a forest that learns when the value has come."""
    from river.forest import ARFRegressor

    model, made = ARFRegressor(n_models=10, seed=0), y.copy()
    due: deque[tuple[dict[str, float], float]] = deque()
    for now in range(WEEK, len(y)):
        if len(due) == step:
            x, before = due.popleft()
            model.learn_one(x, y[now] - before if change else y[now])
        base = y[now] if change else 0.0
        x = {f"lag {lag}": float(y[now - lag] - base) for lag in range(DAY)}
        x |= {"day": float(y[now + step - DAY] - base), "week": float(y[now + step - WEEK] - base)}
        x["hour"] = float((now + step) % DAY)
        made[now] = model.predict_one(x) + base
        due.append((x, base))
    return made


def _print(found: Mapping[str, Any]) -> None:
    names = list(next(iter(found.values()))["mean absolute error"])
    table = Table("series", "step", *names, title="Mean absolute error")
    for series, row in found.items():
        for step in map(str, STEPS):
            table.add_row(series, step, *(f"{row['mean absolute error'][name][step]:.4g}" for name in names))
    Console(width=120).print(table)


def plot(found: Mapping[str, Any]) -> Figure:
    """Errors as parts of those of "no change", one panel for each step."""
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    for axes, step in zip(figure.subplots(1, 2, sharey=True), map(str, STEPS), strict=True):
        names = [name for name in next(iter(found.values()))["mean absolute error"] if name != "no change"]
        for place, name in enumerate(names):
            heights = [
                row["mean absolute error"][name][step] / row["mean absolute error"]["no change"][step]
                for row in found.values()
            ]
            axes.bar(np.arange(len(found)) + 0.2 * place, heights, 0.2, label=name)
        axes.axhline(1.0, color="grey", linestyle=":")
        axes.set_xticks(np.arange(len(found)) + 0.3, [name.replace("_", "\n") for name in found])
        axes.set(title=f"step {step}", ylim=(0, 1.6))
    figure.axes[0].set_ylabel("error / error of no change")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure
