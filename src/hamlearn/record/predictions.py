"""Predictions as a table: what was predicted for each sample, and the target when it came."""

from __future__ import annotations

import csv
import io
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hamlearn.errors import ConfigError, SampleError, install
from hamlearn.evaluate.evaluation import in_unit
from hamlearn.evaluate.views import View, outputs_of
from hamlearn.record.fields import Context, Moment, Row
from hamlearn.record.jsonl import Lines
from hamlearn.record.policies import Every
from hamlearn.record.sinks import Sink

TOGETHER = 500
"""Rows that are written at a time. A run that is resumed predicts those after its checkpoint again."""


class Predictions(Sink):
    """A row for each prediction: `index`, `time`, `id`, `y` and `target`, in the unit of the data.

    A target that comes later has a row of its own, with the `id` of its sample and the prediction made for it.
    Several outputs have columns `y_0`, `y_1`, … and `target_0`, …; so have batches. If the loss is one of classes,
    `y` and `target` are classes, and `p` is the probability of `y` if the loss tells it.

    The rows are written as CSV while the run continues; a Parquet file is made of them at the end.

    Args:
        path: A file that ends in `.csv`, or in `.parquet` (needs polars).
        classes: The names of the classes, in their order; `None`: their numbers.
        append: Whether to continue a file of an earlier run that is resumed.

    Example:
        >>> import tempfile, torch, hamlearn as hl
        >>> path = Path(tempfile.mkdtemp()) / "predictions.csv"
        >>> learner = hl.Learner(hl.Network.feedforward(torch.nn.Linear(1, 1)), torch.nn.functional.mse_loss)
        >>> with hl.record.Recorder(learner, Predictions(path)) as recorder:
        ...     for report in recorder(learner.run([hl.Sample(torch.ones(1), torch.ones(1))] * 3)):
        ...         pass
        >>> path.read_text().splitlines()[0], len(path.read_text().splitlines())
        ('index,time,id,y,target', 4)
    """

    def __init__(
        self, path: str | os.PathLike[str], classes: Sequence[str] | None = None, append: bool = False
    ) -> None:
        super().__init__(Every(1), ())
        self._path, self._classes = Path(path), classes
        if self._path.suffix not in (".csv", ".parquet"):
            raise ConfigError(f"{self._path.name} must end in .csv or .parquet.")
        self._parquet = self._path.suffix == ".parquet"
        if self._parquet:
            _polars()
        text = self._path.with_name(f".{self._path.name}.csv") if self._parquet else self._path
        if self._parquet and append and self._path.exists() and not text.exists():
            _polars().read_parquet(self._path).write_csv(text)
        self._lines = Lines(text, append)
        self._view: View | None = None
        self._waiting: list[tuple[Any, ...]] = []
        self._rows, self._width = 0, 0

    def open(self, context: Context) -> None:
        """Find out by the loss whether outputs are classes."""
        loss = getattr(context.learner, "loss", None)
        entry = outputs_of(loss)
        self._view = View(loss) if entry is not None and entry.metric == "Accuracy" else None

    def take(self, moment: Moment) -> None:
        """Keep what was predicted."""
        report, evaluation = moment.report, moment.evaluation
        if report.sample is None or report.skipped:
            return
        y, target = (evaluation.y, evaluation.target) if evaluation else in_unit(report.y, report.sample)
        self._waiting.append((moment.step - 1, report.t, report.sample.id, y, target))
        if len(self._waiting) >= TOGETHER:
            self.flush()

    def put(self, row: Row) -> None:
        """Not used: a prediction is not a row of a record."""

    def flush(self) -> None:
        """Write what waits."""
        if not self._waiting:
            return
        heads = [(k, t, "" if id is None else str(id).replace("\n", " ")) for k, t, id, *_ in self._waiting]
        columns = self._columns([y for *_, y, _ in self._waiting], [target for *_, target in self._waiting])
        self._width = self._width or len(columns["y"][0])
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if self._lines.end == 0:
            writer.writerow(["index", "time", "id", *(name for part in columns for name in self._names(part))])
        for head, *values in zip(heads, *columns.values(), strict=True):
            if any(len(value) != self._width for value in values):
                raise SampleError(
                    f"{self._path.name} has {self._width} predictions in a row, but sample {head[0]} has "
                    f"{len(values[0])}. All samples must have as many outputs."
                )
            writer.writerow([*head, *itertools.chain.from_iterable(values)])
        self._lines.write(text.getvalue())
        self._rows += len(self._waiting)
        self._waiting = []

    def _columns(self, y: list[Any], targets: list[Any]) -> dict[str, list[list[Any]]]:
        """The values of each row, by column."""
        if self._view is not None and (self._view.several or y[0].shape[-1:] in ((), (1,))):
            return self._class_columns(self._view, y, targets)
        found = {"y": [one.flatten().tolist() for one in y]}
        empty = [""] * len(found["y"][0])
        return found | {"target": [empty if one is None else one.flatten().tolist() for one in targets]}

    def _class_columns(self, view: View, y: list[Any], targets: list[Any]) -> dict[str, list[list[Any]]]:
        pairs = zip(y, targets, strict=True)
        known = [
            None if target is None else view.labels(one, target)[1].flatten().tolist() for one, target in pairs
        ]
        labels, p = zip(*(view.predicted(one) for one in y), strict=True)
        found: dict[str, list[list[Any]]] = {"y": [self._called(one.flatten().tolist()) for one in labels]}
        empty = [""] * len(found["y"][0])
        found["target"] = [empty if one is None else self._called(one) for one in known]
        return found if p[0] is None else found | {"p": [one.flatten().tolist() for one in p]}

    def _called(self, labels: list[int]) -> list[Any]:
        return labels if self._classes is None else [self._classes[label] for label in labels]

    def _names(self, column: str) -> list[str]:
        return [column] if self._width == 1 else [f"{column}_{k}" for k in range(self._width)]

    def close(self) -> None:
        """Write everything, and make the Parquet file."""
        try:
            self.flush()
        finally:
            self._lines.close()
        if self._parquet and self._lines.path.exists():
            whole = self._path.with_name(f".{self._path.name}.tmp")
            _polars().read_csv(self._lines.path, infer_schema_length=None).write_parquet(whole)
            whole.replace(self._path)
            self._lines.path.unlink()

    def state_dict(self) -> dict[str, Any]:
        """How many rows the file has, once the disk has them."""
        self.flush()
        self._lines.sync()
        return {**super().state_dict(), "rows": self._rows, "width": self._width}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Cut the file to the rows that it had when the state was taken."""
        self._rows, self._width = int(state["rows"]), int(state["width"])
        with self._lines.path.open("rb") as file:
            # One line more, for the header.
            self._lines.cut(sum(map(len, itertools.islice(file, self._rows + 1 if self._rows else 0))))


def _polars() -> Any:
    try:
        import polars
    except ImportError as error:
        raise ConfigError(f"a Parquet file of predictions needs polars: {install('tables')}") from error
    return polars
