"""Numbers, one row at a time or many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hamlearn.errors import ConfigError, SampleError
from hamlearn.estimators.base import Estimator, Row
from hamlearn.estimators.encoder import is_number
from hamlearn.estimators.mixing import LEVELS
from hamlearn.estimators.tasks import Numbers


class Regressor(Estimator):
    """Learns numbers from a stream, with nothing to set: a mixture of networks over columns of any kind.

    Columns are encoded as by `Classifier`. The target is scaled by its running deviation. Ten networks learn from
    every row by Huber's loss and Hamiltonian Learning, and are mixed by exponential weights and by recursive least
    squares, which are themselves mixed. Intervals follow the errors on line, so that each keeps its coverage.

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

    def learn_one(self, x: Row, y: float) -> None:
        """Learn that the row `x` has the target `y`."""
        if not is_number(y) or not math.isfinite(y):
            raise SampleError(f"y={y!r} must be a finite number")
        pipeline = self._learn_one(x)
        pipeline.y[0, 0] = y
        pipeline.learn(1)

    def learn_many(self, X: Any, y: Sequence[float] | np.ndarray) -> None:
        """Learn many rows, in order: the same as `learn_one` for each."""
        self.predict_then_learn(X, y)

    def predict_one(self, x: Row) -> float:
        """The expected target of `x`; 0 before the first row was learned."""
        return float(self._ask(x)[0])

    def predict_interval_one(self, x: Row, coverage: float = 0.9) -> tuple[float, float]:
        """An interval that holds the target with this probability: 0.5, 0.8, 0.9, 0.95 or 0.99.

        Its width follows the errors made so far: where they have grown, it grows, until it holds its share of the
        latest targets again.
        """
        place = _level(coverage)
        said = self._ask(x)
        return float(said[0] - said[1 + place]), float(said[0] + said[1 + place])

    def predict_many(self, X: Any) -> np.ndarray:
        """The expected targets of many rows."""
        rows = [pipeline.said[0][:size, 0].copy() for _, size, pipeline in self._ask_many(X)]
        return np.concatenate(rows) if rows else np.zeros(len(X))

    def predict_then_learn(self, X: Any, y: Sequence[float] | np.ndarray) -> np.ndarray:
        """Test-then-train: the expected target of each row, from before its target was learned."""
        return self.predict_interval_then_learn(X, y)[0]

    def predict_interval_then_learn(
        self, X: Any, y: Sequence[float] | np.ndarray, coverage: float = 0.9
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Test-then-train: expected targets, lower and upper ends of their intervals."""
        place = _level(coverage)
        values = np.asarray(y, dtype=np.float64).reshape(-1)
        if not np.isfinite(values).all():
            bad = int(np.argmin(np.isfinite(values)))
            raise SampleError(f"y[{bad}]={values[bad]} must be a finite number")
        rows = self._rows_of(X, values)
        out, half = np.zeros(len(values)), np.zeros(len(values))
        for start, size, pipeline in self._blocks(rows):
            pipeline.y[:size, 0] = values[start : start + size]
            pipeline.learn(size)
            out[start : start + size] = pipeline.answers[0][:size, 0]
            half[start : start + size] = pipeline.answers[1][:size, place]
        return out, out - half, out + half

    def _ask(self, x: Row) -> np.ndarray:
        pipeline = self._pipeline
        if pipeline is None:
            return np.zeros(1 + len(LEVELS))
        self._write(x, pipeline.asked[0], pipeline)
        pipeline.ask(1)
        return pipeline.said[0][0]

    def _task(self, outputs: int) -> Numbers:
        return Numbers(outputs)

    def _outputs(self) -> int:
        return 1


def _level(coverage: float) -> int:
    if coverage not in LEVELS:
        raise ConfigError(f"coverage={coverage!r} is not followed: give one of {', '.join(map(str, LEVELS))}")
    return LEVELS.index(coverage)
