"""Predictions as a table: what was predicted for each sample, and the target when it came."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hamlearn.errors import ConfigError, SampleError, install
from hamlearn.evaluate.evaluation import in_unit
from hamlearn.evaluate.views import View, outputs_of
from hamlearn.record.fields import Row
from hamlearn.record.jsonl import LineSink
from hamlearn.record.recorder import Moment, Recorder

TOGETHER = 500
"""Rows that are written at a time. A run that is resumed predicts those after its checkpoint again."""
Names = Sequence[str] | Callable[[], Sequence[str] | None]


class Predictions(LineSink):
    """A row for each prediction: `index`, `time`, `id`, `y` and `target`, in the unit of the data.

    `time` is when the sample was taken: the sum of all τ up to and with its own, `Hyper.tau` where it has none. A
    target that comes later has a row of its own, with the time at which it came, the `id` of its sample and the
    prediction made for it.
    Several outputs have columns `y_0`, `y_1`, … and `target_0`, …; so have batches. If the loss is one of classes,
    `y` and `target` are classes, and `p` is the probability of `y` if the loss tells it.

    Args:
        path: A file that ends in `.csv`, or in `.parquet` (needs polars): then a file `.csv` of the same name is
            written while the run continues, and the Parquet file is made of it at the end.
        classes: The names of the classes in their order, or a function that returns those found so far; `None`:
            their numbers.
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

    def __init__(self, path: str | os.PathLike[str], classes: Names | None = None, append: bool = False) -> None:
        path = Path(path)
        if path.suffix not in (".csv", ".parquet"):
            raise ConfigError(f"{path.name} must end in .csv or .parquet.")
        self._parquet = path if path.suffix == ".parquet" else None
        if self._parquet is not None:
            _polars()
        super().__init__(path.with_suffix(".csv"), 1, (), append)
        self._classes = classes
        self._names: Sequence[str] = () if classes is None or callable(classes) else classes
        self._view: View | None = None
        self._tau: Any = 0.0
        self._rows: list[list[Any]] = []
        self._width = 0

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
                f"{self.path.name} has {self._width} predictions in a row, but sample {moment.step - 1} has "
                f"{wrong[0]}. All samples must have as many outputs."
            )
        if self.end == 0 and not self._rows:
            several = [f"_{k}" for k in range(self._width)] if self._width > 1 else [""]
            self._rows.append(["index", "time", "id", *(f"{name}{k}" for name in columns for k in several)])
        name = "" if report.sample.id is None else str(report.sample.id).replace("\n", " ")
        values = [value for column in columns.values() for value in column]
        self._rows.append([moment.step - 1, self._time(report), name, *values])
        if len(self._rows) >= TOGETHER:
            self._flush()

    def put(self, row: Row) -> None:
        """Not used: a prediction is not a row of a record."""

    def close(self) -> None:
        """Write everything, and make the Parquet file."""
        try:
            self._flush()
        finally:
            super().close()
        if self._parquet is not None and self.end:
            whole = self._parquet.with_name(f".{self._parquet.name}.tmp")
            _polars().read_csv(self.path, infer_schema_length=None).write_parquet(whole)
            whole.replace(self._parquet)

    def state_dict(self) -> dict[str, Any]:
        """Where the file ends, once the disk has all rows."""
        self._flush()
        return super().state_dict()

    def _flush(self) -> None:
        """Write the rows that wait."""
        text, rows = io.StringIO(), self._rows
        self._rows = []
        csv.writer(text, lineterminator="\n").writerows(rows)
        self.write(text.getvalue())

    def _time(self, report: Any) -> float:
        """When a sample was taken, or when its label came. The report's own time is that before the step."""
        if getattr(report, "late", False):
            return report.t
        tau = report.sample.tau
        if tau is None:
            tau = self._tau(report.t) if callable(self._tau) else self._tau
        return report.t + float(tau)

    def _columns(self, y: Tensor, target: Tensor | None) -> dict[str, list[Any]]:
        """The values of a row, by column; those of a target that has not come are empty."""
        view = self._view
        if view is not None and (view.several or y.shape[-1:] in ((), (1,))):
            labels, p = view.predicted(y)
            truth = None if target is None else view.labels(y, target)[1]
            found = {"y": self._called(labels), "target": [] if truth is None else self._called(truth)}
            if p is not None:
                found["p"] = _digits(p)
        else:
            found = {"y": _digits(y), "target": [] if target is None else _digits(target)}
        found["target"] = found["target"] or [""] * len(found["y"])
        return found

    def _called(self, labels: Tensor) -> list[Any]:
        """Classes by name; by number if they have none, or none yet."""
        numbers = labels.flatten().tolist()
        if callable(self._classes) and max(numbers) >= len(self._names):
            # Only then: a table that has read ahead goes back to say which classes it had found.
            self._names = self._classes() or ()
        return [self._names[number] if number < len(self._names) else number for number in numbers]


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
