"""Which networks and which columns carry the answer now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hamlearn.estimators.encoder import HOT, ColumnNames
from hamlearn.estimators.pipeline import ROWS, Pipeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Explanation(NamedTuple):
    """Which networks and which columns carry the answer now; `print` shows both as a table, `plot` as bars.

    Attributes:
        members: Each network and simple guess with its share of the answer, largest first; the shares add up to 1.
        columns: Each column with how far the answers to the latest rows move, on average, if it is missing there:
            the probability that moves to other classes, or the change in units of the target's deviation.
    """

    members: list[tuple[str, float]]
    columns: list[tuple[Any, float]]

    def __str__(self) -> str:
        width = max(len(str(name)) for name, _ in (*self.members, *self.columns))
        parts = []
        for title, rows in (("share of the answer", self.members), ("moves the answer by", self.columns)):
            parts.append(
                "\n".join([f"{'':{width}}  {title}", *(f"{name!s:{width}}  {x:.3f}" for name, x in rows)])
            )
        return "\n\n".join(parts)

    def plot(self) -> Figure:
        """Both as bars, in a figure of matplotlib."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9.0, 0.6 + 0.25 * max(map(len, self))), layout="constrained")
        titles = ("share of the answer", "moves the answer by")
        for axes, title, rows in zip(figure.subplots(1, 2), titles, self, strict=True):
            axes.barh([str(name) for name, _ in rows], [value for _, value in rows])
            axes.invert_yaxis()
            axes.set(title=title)
        return figure


def explain(pipeline: Pipeline, columns: ColumnNames) -> Explanation:
    """Shares from the weights of the mixture, and effects by leaving out one column after the other."""
    names = [member.name for member in pipeline.team.members]
    shares = pipeline.task.mixer.shares().tolist()
    members = list(zip([*names, *pipeline.task.mixer.simple], shares, strict=True))
    rows = pipeline.encoder.latest(ROWS)
    usual = _answers(pipeline, rows)
    numbers, effects = pipeline.layout.numbers, {}
    codes = numbers + pipeline.layout.hot
    for name, at in (*columns.numbers.items(), *columns.categories.items()):
        without = rows.copy()
        if name in columns.numbers:
            without[:, at] = np.nan
        else:
            without[:, codes + at] = np.nan
            without[:, numbers + HOT * at : numbers + HOT * (at + 1)] = 0.0
        effects[name] = pipeline.task.moved(usual, _answers(pipeline, without))
    by_size = lambda pair: -pair[1]  # noqa: E731
    return Explanation(sorted(members, key=by_size), sorted(effects.items(), key=by_size))


def _answers(pipeline: Pipeline, rows: np.ndarray) -> np.ndarray:
    pipeline.asked[: len(rows)] = rows
    pipeline.ask(len(rows))
    return pipeline.asked_answers[0][: len(rows)].copy()
