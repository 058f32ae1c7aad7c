"""Experiment trackers as sinks: any that takes numbers and a step, and TensorBoard."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hamlearn.errors import ConfigError, install
from hamlearn.record.fields import DEFAULT, Row
from hamlearn.record.recorder import Sink


class Tracker(Sink):
    """Rows as metrics of an experiment tracker: the function of MLflow, of Weights & Biases, or of another.

    The run of the tracker is the caller's to start, to name, to continue and to end.

    Args:
        log: Called with a mapping from names to numbers, and `step=`: `mlflow.log_metrics`, or `wandb.log`.
        every: Write every so many-th step.
        fields: The measured values.

    Example:
        >>> seen = []
        >>> sink = Tracker(lambda numbers, step: seen.append((step, numbers)), every=1000, fields=("loss",))
        >>> sink.put({"step": 1000, "loss": 0.5, "MAE (window)": 0.25})
        >>> seen
        [(1000, {'loss': 0.5, 'MAE window': 0.25})]
    """

    def __init__(self, log: Callable[..., Any], every: int = 100, fields: Iterable[str] = DEFAULT) -> None:
        super().__init__(every, (*fields, "step"))
        self._log = log

    def put(self, row: Row) -> None:
        """Write each number of a row."""
        # MLflow does not take brackets in names.
        numbers = {
            name.replace("(", "").replace(")", ""): value
            for name, value in row.items()
            if name != "step" and type(value) in (int, float) and math.isfinite(value)
        }
        self._log(numbers, step=row["step"])


class TensorBoard(Tracker):
    """Rows as scalars for TensorBoard (extra `tensorboard`).

    Args:
        folder: Where its event files go.
        every: Write every so many-th step.
        fields: The measured values.

    Example:
        >>> import tempfile
        >>> TensorBoard(tempfile.mkdtemp(), 1000, fields=("loss",)).fields
        ('loss', 'step')
    """

    kept = True

    def __init__(self, folder: str | os.PathLike[str], every: int = 100, fields: Iterable[str] = DEFAULT) -> None:
        super().__init__(self._write, every, fields)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(f"TensorBoard needs tensorboard: {install('tensorboard')}") from error
        self._open = lambda purge: SummaryWriter(os.fspath(folder), purge_step=purge)
        self._writer: Any = None
        self._step = 0

    def _write(self, numbers: dict[str, float], step: int) -> None:
        if self._writer is None:
            # Rows that were written after the checkpoint of a resumed run are hidden.
            self._writer = self._open(self._step + 1 if self._step else None)
        for name, value in numbers.items():
            self._writer.add_scalar(f"hamlearn/{name}", value, step)
        self._step = step

    def close(self) -> None:
        """Write what waits."""
        if self._writer is not None:
            self._writer.close()

    def state_dict(self) -> dict[str, Any]:
        """The last step, once it is written."""
        if self._writer is not None:
            self._writer.flush()
        return {"step": self._step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the step of the checkpoint."""
        self._step = int(state["step"])
