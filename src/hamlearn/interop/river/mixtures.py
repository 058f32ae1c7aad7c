"""The estimators without settings as River models: shells, which hand everything on."""

from __future__ import annotations

from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from river import base
from river.time_series.base import Forecaster as RiverForecaster

from hamlearn.errors import ConfigError
from hamlearn.estimators import Classifier, Forecaster, Regressor


class MixtureClassifier(base.MiniBatchClassifier):
    """`hl.estimators.Classifier` as a River classifier.

    Args:
        seed: Of the first weights.

    Example:
        >>> from river import datasets, evaluate, metrics
        >>> score = evaluate.progressive_val_score(datasets.Phishing(), MixtureClassifier(), metrics.Accuracy())
        >>> score.get() > 0.89
        True
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.model = Classifier(seed)

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: dict[Any, Any], y: Any) -> None:
        """Learn that `x` is a `y`."""
        self.model.learn_one(x, y)

    def predict_proba_one(self, x: dict[Any, Any]) -> dict[Any, float]:  # type: ignore[override]
        """Probabilities of the classes that were seen so far."""
        return self.model.predict_proba_one(x)

    def learn_many(self, X: pd.DataFrame, y: pd.Series) -> None:
        """Learn the rows of a table, in order."""
        self.model.learn_many(X, y.tolist())

    def predict_proba_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """Probabilities of the classes that were seen so far, for the rows of a table."""
        return pd.DataFrame(self.model.predict_proba_many(X), index=X.index, columns=self.model.classes)


class MixtureRegressor(base.MiniBatchRegressor):
    """`hl.estimators.Regressor` as a River regressor.

    Args:
        seed: Of the first weights.

    Example:
        >>> from river import datasets, evaluate, metrics
        >>> evaluate.progressive_val_score(datasets.TrumpApproval(), MixtureRegressor(), metrics.MAE()).get() < 0.4
        True
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.model = Regressor(seed)

    def learn_one(self, x: dict[Any, Any], y: float) -> None:
        """Learn that `x` goes with `y`."""
        self.model.learn_one(x, y)

    def predict_one(self, x: dict[Any, Any]) -> float:
        """The expected number; nothing moves."""
        return self.model.predict_one(x)

    def learn_many(self, X: pd.DataFrame, y: pd.Series) -> None:
        """Learn the rows of a table, in order."""
        self.model.learn_many(X, y.tolist())

    def predict_many(self, X: pd.DataFrame) -> pd.Series:
        """The expected numbers of the rows of a table."""
        return pd.Series(self.model.predict_many(X), index=X.index)


class MixtureForecaster(RiverForecaster):
    """`hl.estimators.Forecaster` as a River forecaster; features beside the series are not used.

    Args:
        horizon: Most steps ahead.
        seed: Of the first weights.

    Example:
        >>> model = MixtureForecaster(horizon=3)
        >>> for k in range(200):
        ...     model.learn_one(float(k % 4))
        >>> [round(value) for value in model.forecast(3)]
        [0, 1, 2]
    """

    def __init__(self, horizon: int = 24, seed: int = 0) -> None:
        self.horizon, self.seed = horizon, seed
        self.model = Forecaster(horizon, seed)

    def learn_one(self, y: float, x: dict[Any, Any] | None = None) -> None:
        """Learn the next value of the series."""
        self.model.learn_one(y)

    def forecast(self, horizon: int, xs: list[dict[Any, Any]] | None = None) -> list[float]:
        """The next values.

        Raises:
            ConfigError: If these are more than were asked for at first.
        """
        if horizon > self.horizon:
            raise ConfigError(f"horizon={horizon}, but the forecaster was made for {self.horizon} steps")
        return [float(value) for value in self.model.forecast()[:horizon]]
