"""The default estimators on River's bundled data, beside River's models and simple guesses: half a minute.

Test-then-train, all rows, nothing set: each model as its documentation gives it. In a folder that holds the page
of `hamlearn reproduce`, table and figure are added to that page, as `make demo` does; elsewhere they are a page of
their own.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks import _report
from hamlearn.estimators import Classifier, Regressor

CLASSES = ("Phishing", "Bananas", "ImageSegments")
NUMBERS = ("TrumpApproval", "ChickWeights")
BEGIN, END = "<!-- River's data -->", "<!-- end of River's data -->"
Scores = dict[str, np.ndarray]
"""For each model, whether it was right at each row; or how far off it was."""


class Last:
    """The last target again."""

    def __init__(self) -> None:
        self._last: Any = 0

    def predict_one(self, x: Mapping[str, Any]) -> Any:
        """The last target."""
        return self._last

    def learn_one(self, x: Mapping[str, Any], y: Any) -> None:
        """Remember the target."""
        self._last = y


def models(classes: bool) -> dict[str, Callable[[], Any]]:
    """The contenders, by name."""
    from river import dummy, forest, linear_model, multiclass, preprocessing, stats, tree

    scaled = lambda model: preprocessing.StandardScaler() | model  # noqa: E731
    if classes:
        line = lambda: scaled(multiclass.OneVsRestClassifier(linear_model.LogisticRegression()))  # noqa: E731
        return {
            "hamlearn's Classifier": Classifier,
            "River's logistic regression": line,
            "River's Hoeffding tree": tree.HoeffdingAdaptiveTreeClassifier,
            "River's adaptive forest of 10": lambda: forest.ARFClassifier(n_models=10, seed=0),
            "last class": Last,
            "most frequent class": dummy.PriorClassifier,
        }
    return {
        "hamlearn's Regressor": Regressor,
        "River's linear regression": lambda: scaled(linear_model.LinearRegression()),
        "River's Hoeffding tree": lambda: scaled(tree.HoeffdingAdaptiveTreeRegressor()),
        "River's adaptive forest of 10": lambda: forest.ARFRegressor(n_models=10, seed=0),
        "last value": Last,
        "mean": lambda: dummy.StatisticRegressor(stats.Mean()),
    }


def compare(name: str, rows: int | None) -> Scores:
    """All models on one data set."""
    from river import datasets

    stream = list(getattr(datasets, name)())[:rows]
    found = {}
    for title, make in models(name in CLASSES).items():
        model, scores = make(), []
        for x, y in stream:
            said = model.predict_one(x)
            scores.append(said == y if name in CLASSES else abs((said or 0.0) - y))
            model.learn_one(x, y)
        found[title] = np.array(scores, dtype=float)
    return found


def run(out: Path, quick: bool = False) -> dict[str, Scores]:
    """Compare on all data sets; write a dated report, and the tables with a figure over time to `report.html`."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    found = {name: compare(name, 100 if quick else None) for name in CLASSES + NUMBERS}
    page = Console(record=True, width=100)
    for names, title in ((CLASSES, "Accuracy"), (NUMBERS, "Mean absolute error")):
        table = Table("model", *names, title=f"{title} on River's data, test-then-train, all rows")
        for model in found[names[0]]:
            table.add_row(model, *(f"{found[name][model].mean():.4g}" for name in names))
        page.print(table)
    tables = page.export_html(inline_styles=True, code_format="<pre style='line-height: 1.3'>{code}</pre>")
    means = {name: {model: float(all.mean()) for model, all in scores.items()} for name, scores in found.items()}
    _report.write(out, "bundled", {"methods": __doc__, "data": means})
    path = out / "report.html"
    onto(path, f"{tables}\n{_figure(found)}")
    page.print(f"{time.perf_counter() - start:.0f} s. Report: {path}", highlight=False)
    return found


def _figure(found: Mapping[str, Scores]) -> str:
    """Scores over time, as HTML."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(found), 3.4), layout="constrained")
    for plot, (name, scores) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
        for number, (model, values) in enumerate(scores.items()):
            window = max(len(values) // 10, 1)
            smooth = np.convolve(values, np.ones(window) / window, "valid")
            color, style = ("grey" if number >= 4 else f"C{number}"), (":" if number == 5 else "-")
            plot.plot(smooth, color=color, linestyle=style, linewidth=0.8 + (number == 0), label=model)
        plot.set(title=name, xlabel="row")
        if name in NUMBERS:
            plot.set_yscale("log")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    caption = "Accuracy, and absolute error, over the latest tenth of the rows"
    code = base64.b64encode(buffer.getvalue()).decode()
    return f'<p>{caption}</p><img alt="{caption}" style="max-width: 100%" src="data:image/png;base64,{code}">'


def onto(path: Path, section: str) -> None:
    """Put the section at the end of a page, instead of an older one; without a page, make one."""
    page = path.read_text("utf-8") if path.exists() else '<!doctype html><meta charset="utf-8"><body></body>'
    before, _, after = page.partition(BEGIN)
    before, end, after = (before + after.partition(END)[2]).rpartition("</body>")
    path.write_text(f"{before}{BEGIN}{section}{END}{end}{after}", "utf-8")
