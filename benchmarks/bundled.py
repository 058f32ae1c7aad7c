"""The default estimators on River's bundled data, beside River's models and simple guesses: half a minute.

Test-then-train, all rows, nothing set: each model as its documentation gives it. In a folder that holds the page
of `hamlearn reproduce`, table and figure are added to that page, as `make demo` does; elsewhere they are a page of
their own.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks import _report
from hamlearn.estimators import Classifier, Regressor
from hamlearn.record.page import framed

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
    """What is compared, by name."""
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
    """Compare on all data sets, print a table, and write it with a figure over time to `report.html`."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    found = {name: compare(name, 100 if quick else None) for name in CLASSES + NUMBERS}
    for names, title in ((CLASSES, "Accuracy"), (NUMBERS, "Mean absolute error")):
        table = Table("model", *names, title=f"{title}, test-then-train, all rows")
        for row in _cells(found, names):
            table.add_row(*row)
        Console().print(table)
    out.mkdir(parents=True, exist_ok=True)
    means = {
        name: {title: float(values.mean()) for title, values in scores.items()} for name, scores in found.items()
    }
    _report.write(out, "bundled", {"methods": __doc__, "data": means})
    page = _onto(out / "report.html", _section(found))
    Console().print(f"{time.perf_counter() - start:.0f} s. Report: {page}", highlight=False)
    return found


def _cells(found: Mapping[str, Scores], names: tuple[str, ...]) -> Iterator[list[str]]:
    for title in found[names[0]]:
        yield [title, *(f"{found[name][title].mean():.4g}" for name in names)]


def _section(found: Mapping[str, Scores]) -> str:
    """Tables and figure, as HTML."""
    parts = ['<section class="table"><h2>River\'s data, row by row, nothing set</h2>']
    for names, score in ((CLASSES, "accuracy"), (NUMBERS, "mean absolute error")):
        head = "".join(f'<th class="n">{name}, {score}</th>' for name in names)
        rows = [f"<tr>{''.join(map(_cell, range(len(row)), row))}</tr>" for row in _cells(found, names)]
        parts.append(f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>")
    picture = base64.b64encode(_figure(found)).decode()
    caption = "Accuracy, and absolute error, of the latest tenth of the rows"
    parts.append(f'</section><figure><img alt="{caption}" src="data:image/png;base64,{picture}">')
    return f"{BEGIN}{''.join(parts)}<figcaption>{caption}</figcaption></figure>{END}"


def _cell(place: int, text: str) -> str:
    return f'<td class="n">{text}</td>' if place else f"<td>{text}</td>"


def _figure(found: Mapping[str, Scores]) -> bytes:
    """Scores over time, as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(found), 3.4), layout="constrained")
    for plot, (name, scores) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
        for number, (title, values) in enumerate(scores.items()):
            window = max(len(values) // 10, 1)
            smooth = np.convolve(values, np.ones(window) / window, "valid")
            color = "grey" if number >= 4 else f"C{number}"
            label = title.removesuffix("'s Classifier").removesuffix("'s Regressor")
            style = ":" if number == 5 else "-"
            plot.plot(smooth, color=color, linestyle=style, linewidth=0.8 + (number == 0), label=label)
        plot.set(title=name, xlabel="row")
        if name in NUMBERS:
            plot.set_yscale("log")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()


def _onto(path: Path, section: str) -> Path:
    """Put the section at the end of the page, instead of an older one; without a page, make one."""
    if not path.exists():
        path.write_text(framed("Estimators on River's data", "test-then-train, all rows", section), "utf-8")
        return path
    page = path.read_text("utf-8")
    before, begin, after = page.partition(BEGIN)
    if begin:
        page = before + after.partition(END)[2]
    before, end, after = page.rpartition("</main>")
    path.write_text(before + section + end + after, "utf-8")
    return path
