"""Predictions as a table: what was predicted for each sample, and the target when it came."""

from __future__ import annotations

import csv
import io
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hamlearn.errors import ConfigError, SampleError, install
from hamlearn.evaluate.evaluation import in_unit
from hamlearn.evaluate.views import View, outputs_of
from hamlearn.record.fields import Moment, Row
from hamlearn.record.jsonl import Lines
from hamlearn.record.recorder import Recorder
from hamlearn.record.sinks import Sink

TOGETHER = 500
"""Rows that are written at a time. A run that is resumed predicts those after its checkpoint again."""


class Predictions(Sink):
    """A row for each prediction: `index`, `time`, `id`, `y` and `target`, in the unit of the data.

    `time` is when the sample was taken: the sum of all τ up to and with its own, `Hyper.tau` where it has none. A
    target that comes later has a row of its own, with the time at which it came, the `id` of its sample and the
    prediction made for it.
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
        super().__init__(None, ())
        self._path, self._classes = Path(path), classes
        if self._path.suffix not in (".csv", ".parquet"):
            raise ConfigError(f"{self._path.name} must end in .csv or .parquet.")
        self._parquet = self._path.suffix == ".parquet"
        text = self._path.with_name(f".{self._path.name}.csv") if self._parquet else self._path
        if self._parquet:
            polars = _polars()
            if append and self._path.exists() and not text.exists():
                polars.read_parquet(self._path).write_csv(text)
        self._lines = Lines(text, append)
        self._view: View | None = None
        self._tau: Any = 0.0
        self._text = io.StringIO()
        self._writer = csv.writer(self._text, lineterminator="\n")
        self._rows, self._width = 0, 0

    def open(self, recorder: Recorder) -> None:
        """Find out by the loss whether outputs are classes."""
        loss = getattr(recorder.learner, "loss", None)
        self._tau = getattr(getattr(recorder.learner, "hyper", None), "tau", 0.0)
        outputs = outputs_of(loss)
        self._view = View(loss) if outputs is not None and outputs.codes is not None else None

    def take(self, moment: Moment) -> None:
        """Keep what was predicted."""
        report = moment.report
        if report.sample is None or report.skipped:
            return
        columns = self._columns(*in_unit(report.y, report.sample))
        self._width = self._width or len(columns["y"])
        wrong = [len(values) for values in columns.values() if len(values) != self._width]
        if wrong:
            raise SampleError(
                f"{self._path.name} has {self._width} predictions in a row, but sample {moment.step - 1} has "
                f"{wrong[0]}. All samples must have as many outputs."
            )
        if self._lines.end == 0 and not self._text.tell():
            several = [f"_{k}" for k in range(self._width)] if self._width > 1 else [""]
            names = [f"{column}{number}" for column in columns for number in several]
            self._writer.writerow(["index", "time", "id", *names])
        name = "" if report.sample.id is None else str(report.sample.id).replace("\n", " ")
        self._writer.writerow(
            [moment.step - 1, self._time(report), name, *itertools.chain.from_iterable(columns.values())]
        )
        self._rows += 1
        if self._rows % TOGETHER == 0:
            self._flush()

    def _time(self, report: Any) -> float:
        """When a sample was taken, or when its label came. The report's own time is that before the step."""
        if getattr(report, "late", False):
            return report.t
        tau = report.sample.tau
        if tau is None:
            tau = self._tau(report.t) if callable(self._tau) else self._tau
        return report.t + float(tau)

    def put(self, row: Row) -> None:
        """Not used: a prediction is not a row of a record."""

    def _flush(self) -> None:
        """Write what waits."""
        self._lines.write(self._text.getvalue())
        self._text.seek(0)
        self._text.truncate()

    def _columns(self, y: Tensor, target: Tensor | None) -> dict[str, list[Any]]:
        """The values of a row, by column; those of a target that has not come are empty."""
        view = self._view
        if view is not None and (view.several or y.shape[-1:] in ((), (1,))):
            labels, p = view.predicted(y)
            truth = None if target is None else view.labels(y, target)[1]
            found = {"y": self._called(labels), "target": self._called(truth)}
            if p is not None:
                found["p"] = _digits(p)
        else:
            found = {"y": _digits(y), "target": [] if target is None else _digits(target)}
        found["target"] = found["target"] or [""] * len(found["y"])
        return found

    def _called(self, labels: Tensor | None) -> list[Any]:
        numbers = [] if labels is None else labels.flatten().tolist()
        return numbers if self._classes is None else [self._classes[number] for number in numbers]

    def close(self) -> None:
        """Write everything, and make the Parquet file."""
        try:
            self._flush()
        finally:
            self._lines.close()
        if self._parquet and self._lines.path.exists():
            whole = self._path.with_name(f".{self._path.name}.tmp")
            _polars().read_csv(self._lines.path, infer_schema_length=None).write_parquet(whole)
            whole.replace(self._path)
            self._lines.path.unlink()

    def state_dict(self) -> dict[str, Any]:
        """How many rows the file has, once the disk has them."""
        self._flush()
        self._lines.sync()
        return {"rows": self._rows, "width": self._width}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Cut the file to the rows that it had when the state was taken."""
        self._rows, self._width = int(state["rows"]), int(state["width"])
        with self._lines.path.open("rb") as file:
            # One line more, for the header.
            self._lines.cut(sum(map(len, itertools.islice(file, self._rows + 1 if self._rows else 0))))


def _digits(values: Tensor) -> list[str]:
    """Numbers by as few digits as tell them from others of their type: 4.22, and not 4.21999979019165."""
    values = values.float() if values.dtype is torch.bfloat16 else values
    return values.flatten().cpu().numpy().astype(str).tolist()


def _polars() -> Any:
    try:
        import polars
    except ImportError as error:
        raise ConfigError(f"a Parquet file of predictions needs polars: {install('tables')}") from error
    return polars
