"""Experiment trackers as sinks: TensorBoard, MLflow, and Weights & Biases.

The runs of MLflow and of Weights & Biases are the caller's to start, to name, to continue and to end.
"""

from __future__ import annotations

import importlib
import math
import os
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from hamlearn.errors import ConfigError, install
from hamlearn.record.fields import DEFAULT, Row
from hamlearn.record.sinks import Every, Sink


class Tracker(Sink):
    """The numbers of rows, for a library of the class.

    Args:
        policy: Which steps are written; `None` is every hundredth step.
        fields: The measured values.
    """

    _state = ("policy", "_step")
    package, extra = "", ""

    def __init__(self, policy: Every | None = None, fields: Iterable[str] = DEFAULT) -> None:
        super().__init__(Every(100) if policy is None else policy, (*fields, "step"))
        try:
            self._library: Any = importlib.import_module(self.package)
        except ImportError as error:
            raise ConfigError(f"{type(self).__name__} needs {self.extra}: {install(self.extra)}") from error
        self._step = 0

    def put(self, row: Row) -> None:
        """Write each number of a row."""
        numbers = {n: v for n, v in row.items() if n != "step" and type(v) in (int, float) and math.isfinite(v)}
        self._write(numbers, row["step"])
        self._step = row["step"]

    @abstractmethod
    def _write(self, numbers: dict[str, float], step: int) -> None:
        """Write the numbers of a step."""


class TensorBoard(Tracker):
    """Rows as scalars for TensorBoard (extra `tensorboard`).

    Args:
        folder: Where its event files go.
        policy: Which steps are written; `None` is every hundredth step.
        fields: The measured values.

    Example:
        >>> import tempfile
        >>> TensorBoard(tempfile.mkdtemp(), Every(1000), fields=("loss",)).fields
        ('loss', 'step')
    """

    package, extra = "torch.utils.tensorboard", "tensorboard"

    def __init__(
        self, folder: str | os.PathLike[str], policy: Every | None = None, fields: Iterable[str] = DEFAULT
    ) -> None:
        super().__init__(policy, fields)
        self._folder = os.fspath(folder)
        self._writer: Any = None

    def _write(self, numbers: dict[str, float], step: int) -> None:
        if self._writer is None:
            # Rows that were written after the checkpoint of a resumed run are hidden.
            self._writer = self._library.SummaryWriter(
                self._folder, purge_step=self._step + 1 if self._step else None
            )
        for name, value in numbers.items():
            self._writer.add_scalar(f"hamlearn/{name}", value, step)

    def close(self) -> None:
        """Write what waits."""
        if self._writer is not None:
            self._writer.close()

    def state_dict(self) -> dict[str, Any]:
        """The last step, once it is written."""
        if self._writer is not None:
            self._writer.flush()
        return super().state_dict()


class MLflow(Tracker):
    """Rows as metrics of the active MLflow run (extra `mlflow`), as `mlflow.log_metrics` finds or starts it.

    Example:
        >>> import mlflow  # doctest: +SKIP
        >>> with mlflow.start_run(run_name="pump"):  # doctest: +SKIP
        ...     sink = MLflow(Every(1000))
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
        ...     sink = WandB(Every(1000))
    """

    package, extra = "wandb", "wandb"

    def _write(self, numbers: dict[str, float], step: int) -> None:
        self._library.log(numbers, step=step)
