"""`hamlearn run` on River's bundled data sets, against the last value and an online linear model of River.

Each method chooses its settings from a fixed grid on the first three tenths of a stream; what is reported is the
test-then-train score on the other seven tenths, learning from the first sample to the last.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from river import datasets, linear_model, metrics, multiclass, optim, preprocessing

from benchmarks import _report
from hamlearn.errors import NonFiniteError
from hamlearn.experiments.run import run as run_config

RATES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""River's learning rates, and the rate β/η at which θ follows a steady gradient."""


Choice = tuple[str, str, float, float]
"""Network, loss, rate, eta."""


@dataclass(frozen=True)
class Task:
    """A data set and what to run on it."""

    name: str
    metric: str
    stream: str
    losses: tuple[str, ...]

    @property
    def better(self) -> Callable[..., Any]:
        """Of two scores."""
        return max if self.metric == "Accuracy" else min


ETAS = (0.5, 1.0)
NETWORKS = ("linear", "mlp")
PAST = "standardize = true\nlags = 4\nrelative = true"

TASKS = (
    Task("Phishing", "Accuracy", "standardize = true", ("cross_entropy",)),
    Task("ImageSegments", "Accuracy", "standardize = true", ("cross_entropy",)),
    Task("TrumpApproval", "MAE", PAST, ("huber", "l1")),
    # The feed has gaps of up to 32 hours, without a reading.
    Task("WaterFlow", "MAE", f'unit = "hours"\nmax_tau = 1.0\n{PAST}', ("huber", "l1")),
)


def config(task: Task, choice: Choice, steps: int, window: int) -> str:
    """The configuration of one run."""
    network, loss, rate, eta = choice
    return f"""[run]
title = "{task.name}"
steps = {steps}
threads = 1
[stream]
kind = "river.{task.name}"
{task.stream}
[network]
kind = "{network}"
hidden = 30
zero_output = true
[loss]
kind = "{loss}"
[hyper]
eta = {eta}
beta = {rate * eta:.6g}
[records]
metrics = ["{task.metric}"]
metric_window = {window}
report = false
"""


def benchmark(task: Task, out: Path, rates: tuple[float, ...] = RATES) -> dict[str, Any]:
    """Scores of all methods on one data set; the configuration that was chosen is left in `out`."""
    rows = list(getattr(datasets, task.name)())
    n = len(rows)
    prefix = 3 * n // 10
    grid: list[Choice] = list(itertools.product(NETWORKS, task.losses, rates, ETAS))
    with tempfile.TemporaryDirectory() as folder:
        tried = {}
        for choice in grid:
            text = config(task, choice, prefix, prefix)
            try:
                tried[choice] = _run(text, Path(folder) / "-".join(map(str, choice))).scores[task.metric]
            except NonFiniteError:
                continue
    chosen = task.better(tried, key=tried.__getitem__)
    text = config(task, chosen, n, n - prefix)
    (out / f"{task.name}.toml").write_text(text, "utf-8")
    with tempfile.TemporaryDirectory() as folder:
        mine = _run(text, Path(folder) / "run").window[task.metric]
    return {
        "data": task.name,
        "metric": task.metric,
        "scored on": n - prefix,
        "hamlearn": mine,
        "settings": dict(zip(("network", "loss", "rate", "eta"), chosen, strict=True)),
        "tried": len(grid),
        "last": _score(task, _last(rows), prefix),
        **{name: _river(task, data, prefix, rates) for name, data in _inputs(task, rows).items()},
    }


def _run(text: str, folder: Path) -> Any:
    folder.mkdir(parents=True)
    path = folder / "config.toml"
    path.write_text(text, "utf-8")
    return run_config(path, out=folder / "out", progress=False)


def _score(task: Task, pairs: Iterable[tuple[Any, Any]], first: int, last: int | None = None) -> float:
    metric = getattr(metrics, task.metric)()
    for truth, guess in list(pairs)[first:last]:
        metric.update(truth, guess)
    return float(metric.get())


def _last(rows: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    return [(new, old) for (_, old), (_, new) in itertools.pairwise([rows[0], *rows])]


def _inputs(task: Task, rows: list[tuple[Any, Any]]) -> dict[str, list[tuple[dict[str, float], Any, Any]]]:
    """What River's linear models see: (features, target, what is added to the prediction)."""
    plain = [({k: v for k, v in x.items() if isinstance(v, int | float)}, y, 0.0) for x, y in rows]
    if task.metric == "Accuracy":
        return {"river linear": plain}
    y = [target for _, target in rows]
    changes = [0.0, *(b - a for a, b in itertools.pairwise(y))]
    lagged = []
    for k, (x, target, _) in enumerate(plain):
        lags = {f"lag {i}": changes[k - i] for i in range(1, 4) if k - i >= 0}
        # The first value has none before it: to call it a change would be a jump that cannot be foreseen.
        before = y[max(k - 1, 0)]
        lagged.append(({**x, **lags}, target - before, before))
    found = {"river linear on changes and lags": lagged}
    return found if task.name == "WaterFlow" else {"river linear": plain, **found}


def _river(
    task: Task, data: list[tuple[dict[str, float], Any, Any]], prefix: int, rates: tuple[float, ...]
) -> dict[str, Any]:
    """The best learning rate on the prefix, scored on the rest; and the scores of all rates, for comparison."""
    runs = {rate: _guesses(task, data, rate) for rate in rates}
    chosen = task.better(runs, key=lambda rate: _score(task, runs[rate], 0, prefix))
    scores = {str(rate): _score(task, pairs, prefix) for rate, pairs in runs.items()}
    return {"score": scores[str(chosen)], "rate": chosen, "scores of all rates": scores}


def _guesses(task: Task, data: list[tuple[dict[str, float], Any, Any]], rate: float) -> list[tuple[Any, Any]]:
    model: Any
    if task.metric == "Accuracy":
        model = multiclass.OneVsRestClassifier(linear_model.LogisticRegression(optim.SGD(rate)))
    else:
        model = linear_model.LinearRegression(optim.SGD(rate), intercept_lr=rate)
    model = preprocessing.StandardScaler() | model
    pairs = []
    for x, y, add in data:
        guess = model.predict_one(x)
        pairs.append((y, guess) if task.metric == "Accuracy" else (y + add, guess + add))
        model.learn_one(x, y)
    return pairs


def run(out: Path, quick: bool = False) -> list[dict[str, Any]]:
    """Score all data sets (`quick`: one, at two rates); write the chosen configurations and a dated report."""
    folder = out / "river"
    folder.mkdir(parents=True, exist_ok=True)
    rates = RATES[4:6] if quick else RATES
    found = []
    for task in TASKS[:1] if quick else TASKS:
        found.append(benchmark(task, folder, rates))
        Console().print(found[-1])
    _report.write(out, "river", {"methods": __doc__, "data": found})
    return found
