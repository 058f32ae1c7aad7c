"""scikit-learn's own checks of the shells: all of them pass."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from hamlearn.interop.sklearn import SklearnClassifier, SklearnRegressor


@pytest.mark.parametrize(
    ("model", "check"),
    [
        pytest.param(estimator, check, id=f"{type(model).__name__}-{check.func.__name__}-{number}")
        for model in (SklearnClassifier(), SklearnRegressor())
        for number, (estimator, check) in enumerate(estimator_checks_generator(model))
    ],
)
def test_checks_of_scikit_learn_pass(model, check):
    check(model)


def test_rows_are_learned_in_parts_as_they_are_at_once():
    random = np.random.default_rng(0)
    X = random.normal(size=(300, 3))
    y = np.where(X[:, 0] > 0, "yes", "no")
    whole, parts = SklearnClassifier().fit(X, y), SklearnClassifier()
    for start in range(0, 300, 100):
        parts.partial_fit(X[start : start + 100], y[start : start + 100], classes=["maybe", "no", "yes"])
    assert parts.classes_.tolist() == ["maybe", "no", "yes"]
    np.testing.assert_array_equal(parts.predict_proba(X)[:, 1:], whole.predict_proba(X))
    assert whole.score(X, y) > 0.9
