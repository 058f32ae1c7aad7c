"""The estimators without settings for scikit-learn: shells, which hand everything on (extra `experiments`)."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from hamlearn.estimators import Classifier, Regressor


class _Shell(BaseEstimator):
    """What both share: tables as scikit-learn checks them; NaN is a missing value.

    Args:
        seed: Of the first weights.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _checked(self, X: Any, y: Any, first: bool) -> tuple[np.ndarray, np.ndarray]:
        X, y = validate_data(
            self, X, y, reset=first, dtype=np.float64, ensure_all_finite="allow-nan", y_numeric=self._numeric
        )
        return X, y

    def _table(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        found: np.ndarray = validate_data(self, X, reset=False, dtype=np.float64, ensure_all_finite="allow-nan")
        return found

    _numeric = False


class SklearnClassifier(ClassifierMixin, _Shell):
    """`hl.estimators.Classifier` as a scikit-learn classifier: `fit` is one pass, `partial_fit` continues.

    Args:
        seed: Of the first weights.

    Attributes:
        model_: The estimator.
        classes_: The classes, sorted.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.utils import shuffle
        >>> X, y = shuffle(*load_iris(return_X_y=True), random_state=0)
        >>> SklearnClassifier().fit(X, y).score(X, y) > 0.9
        True
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from the start: all rows, once, in order."""
        self.__dict__.pop("model_", None)
        return self.partial_fit(X, y)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn more rows, once, in order; `classes` may name those that are still to come."""
        first = not hasattr(self, "model_")
        X, y = self._checked(X, y, first)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        if first:
            self.model_, self.classes_ = Classifier(self.seed), unique_labels(y)
        self.classes_ = np.union1d(self.classes_, unique_labels(y if classes is None else classes))
        self.model_.learn_many(X, y)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities, one column for each of `classes_`."""
        X = self._table(X)
        said = self.model_.predict_proba_many(X)
        out = np.zeros((len(said), len(self.classes_)))
        out[:, np.searchsorted(self.classes_, np.asarray(self.model_.classes, self.classes_.dtype))] = said
        return out / out.sum(1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """The most likely classes."""
        said = self.predict_proba(X)
        found: np.ndarray = self.classes_[said.argmax(1)]
        return found


class SklearnRegressor(RegressorMixin, _Shell):
    """`hl.estimators.Regressor` as a scikit-learn regressor: `fit` is one pass, `partial_fit` continues.

    Args:
        seed: Of the first weights.

    Attributes:
        model_: The estimator.

    Example:
        >>> X = [[k % 7] for k in range(400)]
        >>> SklearnRegressor().fit(X, [2 * k for (k,) in X]).score(X, [2 * k for (k,) in X]) > 0.9
        True
    """

    _numeric = True

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from the start: all rows, once, in order."""
        self.__dict__.pop("model_", None)
        return self.partial_fit(X, y)

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Learn more rows, once, in order."""
        first = not hasattr(self, "model_")
        X, y = self._checked(X, y, first)
        if first:
            self.model_ = Regressor(self.seed)
        self.model_.learn_many(X, column_or_1d(y, warn=True))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The expected numbers."""
        X = self._table(X)
        return self.model_.predict_many(X)
