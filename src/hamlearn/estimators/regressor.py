"""Numbers, one row at a time or many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hamlearn.errors import SampleError
from hamlearn.estimators.base import Estimator, Row
from hamlearn.estimators.encoder import is_number
from hamlearn.estimators.mixing import LEVELS, level_of
from hamlearn.estimators.pipeline import Pipeline
from hamlearn.estimators.tasks import NumberTask


class Regressor(Estimator):
    """Learns numbers from a stream, with nothing to set: a mixture of networks over columns of any kind.

    Columns are encoded as by `Classifier`. The target is scaled by its running deviation. Twelve networks, one
    of them recurrent, learn from every row by Huber's loss and Hamiltonian Learning. They are mixed by exponential
    weights and by recursive least squares, which are themselves mixed. Intervals follow the errors, so that each
    keeps its coverage.

    Args:
        seed: Of the first weights.

    Example:
        >>> import hamlearn as hl
        >>> model = hl.estimators.Regressor()
        >>> for hour in range(300):
        ...     model.learn_one({"hour": hour % 24}, 20.0 + hour % 24)
        >>> abs(model.predict_one({"hour": 6}) - 26.0) < 1.0
        True
    """

    kind = "regressor"

    def learn_many(self, X: Any, y: Sequence[float] | np.ndarray) -> None:
        """Learn many rows, in order: the same as `learn_one` for each, if no new places are needed in between.

        A column gets a place with its first value that is not missing, or at once in a table of numbers, and a
        text when it first comes. `learn_many` makes all places that `X` needs before its first row is learned, and
        `learn_one` only when a row needs them. Where they are not needed by the first row already, the answers to
        `X` and later ones differ somewhat, most of all right after a new column came.
        """
        self.predict_then_learn(X, y)

    def predict_one(self, x: Row) -> float:
        """The expected target of `x`; 0 before the first row was learned."""
        return float(self._answer(x)[0])

    def predict_interval_one(self, x: Row, coverage: float = 0.9) -> tuple[float, float]:
        """An interval that holds the target with this probability: 0.5, 0.8, 0.9, 0.95 or 0.99.

        Its width follows the errors made so far: where they have grown, it grows, until it holds its share of the
        latest targets again. Before the first target was learned it is infinite.
        """
        place = level_of(coverage)
        answer = self._answer(x)
        return float(answer[0] - answer[1 + place]), float(answer[0] + answer[1 + place])

    def predict_many(self, X: Any) -> np.ndarray:
        """The expected targets of many rows."""
        rows = [pipeline.asked_answers[0][:size, 0].copy() for _, size, pipeline in self._ask_many(X)]
        return np.concatenate(rows) if rows else np.zeros(len(X))

    def predict_then_learn(self, X: Any, y: Sequence[float] | np.ndarray, delay: int = 0) -> np.ndarray:
        """Test-then-train: the expected target of each row, from before its target was learned.

        The answers are those of a loop of `predict_one` and `learn_one`. With a `delay` of 0 they differ if
        columns or texts come for the first time after the first row of `X`, as `learn_many` says.

        Args:
            X: Rows.
            y: Their targets.
            delay: How many rows later each target comes.
        """
        return self.predict_interval_then_learn(X, y, delay=delay)[0]

    def predict_interval_then_learn(
        self, X: Any, y: Sequence[float] | np.ndarray, coverage: float = 0.9, delay: int = 0
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Test-then-train: expected targets, lower and upper ends of their intervals.

        Intervals are infinite until the first target is known.
        """
        place = level_of(coverage)
        values = np.asarray(y, dtype=np.float64).reshape(-1)
        if not np.isfinite(values).all():
            bad = int(np.argmin(np.isfinite(values)))
            raise SampleError(f"y[{bad}]={values[bad]} must be a finite number")
        rows = self._rows_of(X, values)
        out, half = np.zeros(len(values)), np.zeros(len(values))
        if delay:
            half[:] = np.inf
            for at, pipeline in self._late(rows, values.tolist(), delay):
                if pipeline is not None:
                    out[at], half[at] = pipeline.asked_answers[0][0][[0, 1 + place]]
            return out, out - half, out + half
        first = not self.rows
        for start, size, pipeline in self._blocks(rows):
            self._set(values[start : start + size], pipeline)
            pipeline.learn(size)
            out[start : start + size] = pipeline.answers[0][:size, 0]
            half[start : start + size] = pipeline.answers[1][:size, place]
        if first:
            half[:1] = np.inf
        return out, out - half, out + half

    def _answer(self, x: Row) -> np.ndarray:
        """The answer and its half widths."""
        pipeline = self._ask(x)
        return np.array([0.0, *[np.inf for _ in LEVELS]]) if pipeline is None else pipeline.asked_answers[0][0]

    def _checked(self, y: Any) -> float:
        if not is_number(y) or not math.isfinite(y):
            raise SampleError(f"y={y!r} must be a finite number")
        return float(y)

    def _set(self, targets: Sequence[float] | np.ndarray, pipeline: Pipeline) -> None:
        pipeline.y[: len(targets), 0] = targets

    def _answers(self) -> int:
        return 1 + len(LEVELS)

    def _task(self, outputs: int) -> NumberTask:
        return NumberTask(outputs)

    def _outputs(self) -> int:
        return 1
