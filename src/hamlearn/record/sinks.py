"""Where rows go: the base of all sinks, memory, TensorBoard, MLflow, and Weights & Biases."""

from __future__ import annotations

import importlib
import math
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from hamlearn.errors import ConfigError, install
from hamlearn.record.fields import DEFAULT, Context, Moment, Row
from hamlearn.record.policies import Every, Policy


class Sink(ABC):
    """Takes what its policy keeps.

    Args:
        policy: What is kept; `None` is every step.
        fields: What is measured of it.

    Example:
        >>> class Printed(Sink):
        ...     def put(self, row):
        ...         print(row["step"])
        >>> Printed(Every(2), ("step",)).put({"step": 4})
        4
    """

    kept = True
    """Whether what the sink took is there after the run, so that a resumed run must continue it."""

    def __init__(self, policy: Policy | None = None, fields: Iterable[str] = DEFAULT) -> None:
        self.policy = Every(1) if policy is None else policy
        self.fields = tuple(fields)

    def open(self, context: Context) -> None:
        """Called once, before the first step."""
        context.check((*self.fields, *getattr(self.policy, "over", ())))

    def take(self, moment: Moment) -> None:
        """Called with every step."""
        row = self.policy.offer(moment, self.fields)
        if row is not None:
            self.put(row)

    @abstractmethod
    def put(self, row: Row) -> None:
        """Keep a row."""

    def close(self) -> None:
        """Called once, after the last step; a sink that holds nothing open has nothing to do."""
        return

    def state_dict(self) -> dict[str, Any]:
        """What to continue from, JSON-able; what was put before is on the disk when this returns."""
        return {"policy": self.policy.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, and remove what was put after it."""
        self.policy.load_state_dict(state["policy"])


class Memory(Sink):
    """Rows in memory, in `rows`.

    Args:
        policy: What is kept; `None` is every step.
        fields: What is measured.
        last: How many rows are kept at most, the newest; `None`: all, which fills the memory on an endless stream.

    Example:
        >>> memory = Memory(fields=("step",), last=2)
        >>> for step in (1, 2, 3):
        ...     memory.put({"step": step})
        >>> memory.column("step")
        [2, 3]
    """

    def __init__(
        self, policy: Policy | None = None, fields: Iterable[str] = DEFAULT, last: int | None = None
    ) -> None:
        super().__init__(policy, fields)
        self._rows: deque[Row] = deque(maxlen=last)

    @property
    def rows(self) -> list[Row]:
        """What is kept, oldest first."""
        return list(self._rows)

    def column(self, name: str) -> list[Any]:
        """One field of all rows."""
        return [row.get(name) for row in self._rows]

    def put(self, row: Row) -> None:
        """Keep a row."""
        self._rows.append(row)

    def state_dict(self) -> dict[str, Any]:
        """All rows, and the state of the policy."""
        return {**super().state_dict(), "rows": self.rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with these rows."""
        super().load_state_dict(state)
        self._rows = deque(state["rows"], self._rows.maxlen)


class Tracker(Sink):
    """Numbers of rows, for an experiment tracker.

    A subclass opens its tracker in `_begin`, writes in `_write` and ends in `_end`.

    Args:
        policy: What is written; `None` is every hundredth step.
        fields: What is measured.
    """

    package, extra = "", ""

    def __init__(self, policy: Policy | None = None, fields: Iterable[str] = DEFAULT) -> None:
        super().__init__(Every(100) if policy is None else policy, (*fields, "step"))
        try:
            self._library = importlib.import_module(self.package)
        except ImportError as error:
            raise ConfigError(f"{type(self).__name__} needs {self.extra}: {install(self.extra)}") from error
        self._run: Any = None
        self._step = 0
        self._id: str | None = None

    def put(self, row: Row) -> None:
        """Write each number of a row."""
        if self._run is None:
            self._run = self._begin()
        self._step = row["step"]
        numbers = {n: v for n, v in row.items() if n != "step" and isinstance(v, int | float) and math.isfinite(v)}
        self._write(numbers, self._step)

    def close(self) -> None:
        """Write what waits, and end the run of the tracker."""
        if self._run is not None:
            self._end()
            self._run = None

    def state_dict(self) -> dict[str, Any]:
        """The last step, and the run of the tracker."""
        return {**super().state_dict(), "step": self._step, "id": self._id}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the same run."""
        super().load_state_dict(state)
        self._step, self._id = int(state["step"]), state["id"]

    @abstractmethod
    def _begin(self) -> Any: ...

    @abstractmethod
    def _write(self, numbers: dict[str, float], step: int) -> None: ...

    @abstractmethod
    def _end(self) -> None: ...


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
        super().__init__(policy, fields)
        self._folder = os.fspath(folder)

    def _begin(self) -> Any:
        # What was written after the checkpoint of a resumed run is hidden.
        return self._library.SummaryWriter(self._folder, purge_step=self._step + 1 if self._step else None)

    def _write(self, numbers: dict[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._run.add_scalar(f"hamlearn/{name}", value, step)

    def _end(self) -> None:
        self._run.close()

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
        **run: Passed to `mlflow.start_run`, for example `run_name`.

    Example:
        >>> sink = MLflow(Every(1000), run_name="pump")  # doctest: +SKIP
    """

    package, extra = "mlflow", "mlflow"

    def __init__(self, policy: Policy | None = None, fields: Iterable[str] = DEFAULT, **run: Any) -> None:
        super().__init__(policy, fields)
        self._settings = run

    def _begin(self) -> Any:
        self._active = self._library.active_run()
        if self._active is None:
            own = {"run_id": self._id} if self._id else self._settings
            self._active = self._library.start_run(**own)
            self._id = self._active.info.run_id
        return self._active

    def _write(self, numbers: dict[str, float], step: int) -> None:
        # MLflow does not take brackets in names.
        named = {name.replace("(", "").replace(")", ""): value for name, value in numbers.items()}
        self._library.log_metrics(named, step=step, run_id=self._run.info.run_id)

    def _end(self) -> None:
        # A run that was active before belongs to the caller.
        if self._id is not None:
            self._library.end_run()


class WandB(Tracker):
    """Rows as metrics of a run of Weights & Biases (extra `wandb`).

    Args:
        policy: What is written; `None` is every hundredth step.
        fields: What is measured.
        **run: Passed to `wandb.init`, for example `project`, or `mode="offline"`.

    Example:
        >>> sink = WandB(Every(1000), project="pump", mode="offline")  # doctest: +SKIP
    """

    package, extra = "wandb", "wandb"

    def __init__(self, policy: Policy | None = None, fields: Iterable[str] = DEFAULT, **run: Any) -> None:
        super().__init__(policy, fields)
        self._settings = run

    def _begin(self) -> Any:
        again = {"id": self._id, "resume": "allow"} if self._id else {}
        run = self._library.init(**self._settings | again)
        self._id = run.id
        return run

    def _write(self, numbers: dict[str, float], step: int) -> None:
        self._run.log(numbers, step=step)

    def _end(self) -> None:
        self._run.finish()
