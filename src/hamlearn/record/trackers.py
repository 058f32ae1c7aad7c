"""Experiment trackers as sinks: TensorBoard, MLflow, and Weights & Biases.

The runs of MLflow and of Weights & Biases are the caller's to start, to name, to continue and to end.
"""

from __future__ import annotations

import importlib
import math
import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from hamlearn.errors import ConfigError, install
from hamlearn.record.fields import DEFAULT, Row
from hamlearn.record.recorder import Sink


class Tracker(Sink):
    """The numbers of rows, for a library of the class.

    Args:
        every: Write every so many-th step.
        fields: The measured values.
    """

    package, extra = "", ""

    def __init__(self, every: int = 100, fields: Iterable[str] = DEFAULT) -> None:
        super().__init__(every, (*fields, "step"))
        try:
            self._library: Any = importlib.import_module(self.package)
        except ImportError as error:
            raise ConfigError(f"{type(self).__name__} needs {self.extra}: {install(self.extra)}") from error

    def put(self, row: Row) -> None:
        """Write each number of a row."""
        numbers = {n: v for n, v in row.items() if n != "step" and type(v) in (int, float) and math.isfinite(v)}
        self._write(numbers, row["step"])

    @abstractmethod
    def _write(self, numbers: dict[str, float], step: int) -> None:
        """Write the numbers of a step."""


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

    package, extra = "torch.utils.tensorboard", "tensorboard"
    kept = True

    def __init__(self, folder: str | os.PathLike[str], every: int = 100, fields: Iterable[str] = DEFAULT) -> None:
        super().__init__(every, fields)
        self._folder, self._step = os.fspath(folder), 0
        self._writer: Any = None

    def _write(self, numbers: dict[str, float], step: int) -> None:
        if self._writer is None:
            # Rows that were written after the checkpoint of a resumed run are hidden.
            purge = self._step + 1 if self._step else None
            self._writer = self._library.SummaryWriter(self._folder, purge_step=purge)
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


class MLflow(Tracker):
    """Rows as metrics of the active MLflow run (extra `mlflow`), as `mlflow.log_metrics` finds or starts it.

    Example:
        >>> import mlflow  # doctest: +SKIP
        >>> with mlflow.start_run(run_name="pump"):  # doctest: +SKIP
        ...     sink = MLflow(every=1000)
    """

    package, extra = "mlflow", "mlflow"

    def _write(self, numbers: dict[str, float], step: int) -> None:
        # MLflow does not take brackets in names.
        named = {name.replace("(", "").replace(")", ""): value for name, value in numbers.items()}
        self._library.log_metrics(named, step=step)


class WandB(Tracker):
    """Rows as metrics of the run of Weights & Biases (extra `wandb`) that `wandb.init` has started.

    Example:
        >>> import wandb  # doctest: +SKIP
        >>> with wandb.init(project="pump", mode="offline"):  # doctest: +SKIP
        ...     sink = WandB(every=1000)
    """

    package, extra = "wandb", "wandb"

    def _write(self, numbers: dict[str, float], step: int) -> None:
        self._library.log(numbers, step=step)
