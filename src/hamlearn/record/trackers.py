"""Experiment trackers as sinks: TensorBoard, MLflow, and Weights & Biases."""

from __future__ import annotations

import importlib
import math
import os
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from hamlearn.errors import ConfigError, install
from hamlearn.record.fields import DEFAULT, Row
from hamlearn.record.policies import Every, Policy
from hamlearn.record.sinks import Sink


class Tracker(Sink):
    """The numbers of rows, for a tracker that a subclass opens at the first row.

    Args:
        policy: What is written; `None` is every hundredth step.
        fields: What is measured.
        **settings: Of the run of the tracker.
    """

    _state = ("policy", "_step", "_id")
    package, extra = "", ""

    def __init__(self, policy: Policy | None = None, fields: Iterable[str] = DEFAULT, **settings: Any) -> None:
        super().__init__(Every(100) if policy is None else policy, (*fields, "step"))
        try:
            self._library = importlib.import_module(self.package)
        except ImportError as error:
            raise ConfigError(f"{type(self).__name__} needs {self.extra}: {install(self.extra)}") from error
        self._settings = settings
        self._run: Any = None
        self._step = 0
        self._id: str | None = None

    def put(self, row: Row) -> None:
        """Write each number of a row."""
        self._run = self._run or self._begin()
        self._step = row["step"]
        numbers = {n: v for n, v in row.items() if n != "step" and isinstance(v, int | float) and math.isfinite(v)}
        self._write(self._run, numbers)

    def close(self) -> None:
        """Write what waits, and end the run of the tracker."""
        if self._run is not None:
            self._end(self._run)
            self._run = None

    @abstractmethod
    def _begin(self) -> Any:
        """Open the run of the tracker."""

    @abstractmethod
    def _write(self, run: Any, numbers: dict[str, float]) -> None:
        """Write numbers of the step `self._step`."""

    @abstractmethod
    def _end(self, run: Any) -> None:
        """End the run of the tracker."""


class TensorBoard(Tracker):
    """Rows as scalars for TensorBoard (extra `tensorboard`).

    Args:
        folder: Where its event files go.
        policy: What is written; `None` is every hundredth step.
        fields: What is measured.

    Example:
        >>> import tempfile
        >>> TensorBoard(tempfile.mkdtemp(), Every(1000), fields=("loss",)).fields
        ('loss', 'step')
    """

    package, extra = "torch.utils.tensorboard", "tensorboard"

    def __init__(
        self, folder: str | os.PathLike[str], policy: Policy | None = None, fields: Iterable[str] = DEFAULT
    ) -> None:
        super().__init__(policy, fields, log_dir=os.fspath(folder))

    def _begin(self) -> Any:
        # What was written after the checkpoint of a resumed run is hidden.
        purge = self._step + 1 if self._step else None
        return self._library.SummaryWriter(**self._settings, purge_step=purge)

    def _write(self, run: Any, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            run.add_scalar(f"hamlearn/{name}", value, self._step)

    def _end(self, run: Any) -> None:
        run.close()

    def state_dict(self) -> dict[str, Any]:
        """The last step, once it is written."""
        if self._run is not None:
            self._run.flush()
        return super().state_dict()


class MLflow(Tracker):
    """Rows as metrics of an MLflow run (extra `mlflow`), in the run that is active or in one of its own.

    Args:
        policy: What is written; `None` is every hundredth step.
        fields: What is measured.
        **settings: Passed to `mlflow.start_run`, for example `run_name`.

    Example:
        >>> sink = MLflow(Every(1000), run_name="pump")  # doctest: +SKIP
    """

    package, extra = "mlflow", "mlflow"

    def _begin(self) -> Any:
        run = self._library.active_run()
        if run is None:
            run = self._library.start_run(**({"run_id": self._id} if self._id else self._settings))
            self._id = run.info.run_id
        return run

    def _write(self, run: Any, numbers: dict[str, float]) -> None:
        # MLflow does not take brackets in names.
        named = {name.replace("(", "").replace(")", ""): value for name, value in numbers.items()}
        self._library.log_metrics(named, step=self._step, run_id=run.info.run_id)

    def _end(self, run: Any) -> None:
        # A run that was active before belongs to the caller.
        if self._id is not None:
            self._library.end_run()


class WandB(Tracker):
    """Rows as metrics of a run of Weights & Biases (extra `wandb`).

    Args:
        policy: What is written; `None` is every hundredth step.
        fields: What is measured.
        **settings: Passed to `wandb.init`, for example `project`, or `mode="offline"`.

    Example:
        >>> sink = WandB(Every(1000), project="pump", mode="offline")  # doctest: +SKIP
    """

    package, extra = "wandb", "wandb"

    def _begin(self) -> Any:
        run = self._library.init(**self._settings | ({"id": self._id, "resume": "allow"} if self._id else {}))
        self._id = run.id
        return run

    def _write(self, run: Any, numbers: dict[str, float]) -> None:
        run.log(numbers, step=self._step)

    def _end(self, run: Any) -> None:
        run.finish()
