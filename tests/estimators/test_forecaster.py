"""Forecasts of all steps at once: better than simple ones, with intervals and seasons, and resumed bit-for-bit."""

import copy
import pickle

import numpy as np
import pytest

import hamlearn as hl
from hamlearn.errors import CheckpointError, ConfigError, SampleError
from hamlearn.estimators.series import find_seasons


def hourly(count=1500, seed=0):
    random, hours = np.random.default_rng(seed), np.arange(count)
    noise = np.zeros(count)
    for hour in range(1, count):
        noise[hour] = 0.8 * noise[hour - 1] + random.normal()
    return 50 + 10 * np.sin(2 * np.pi * hours / 24) + noise


Y = hourly()


def errors(said, y, step, first=500):
    made = np.arange(first, len(y) - step + 1)
    return np.abs(said[made, step - 1] - y[made + step - 1]).mean()


def test_each_step_is_forecast_better_than_by_no_change_and_by_the_last_season():
    model = hl.estimators.Forecaster(24)
    said = model.forecast_then_learn(Y)
    assert model.seasons[0] == 24
    for step in (1, 6, 24):
        now = np.arange(500, len(Y) - step + 1)
        truth = Y[now + step - 1]
        assert errors(said, Y, step) < 0.97 * np.abs(Y[now - 1] - truth).mean()
        assert errors(said, Y, step) < 0.95 * np.abs(Y[now + step - 25] - truth).mean()


def test_intervals_hold_what_they_say_at_each_step():
    model, inside = hl.estimators.Forecaster(6), []
    for now, value in enumerate(Y[:-6]):
        model.learn_one(value)
        low, high = model.forecast_interval(0.8)
        inside.append((low <= Y[now + 1 : now + 7]) & (Y[now + 1 : now + 7] <= high))
    assert np.abs(np.mean(inside[400:], axis=0) - 0.8).max() < 0.06


def test_a_walk_is_forecast_to_stay_where_it_is():
    walk = np.random.default_rng(1).normal(size=1500).cumsum()
    said = hl.estimators.Forecaster(8).forecast_then_learn(walk)
    for step in (1, 8):
        now = np.arange(500, len(walk) - step + 1)
        assert errors(said, walk, step) < 1.1 * np.abs(walk[now - 1] - walk[now + step - 1]).mean()


def test_saved_copied_and_pickled_forecasters_go_on_bit_for_bit(tmp_path):
    model = hl.estimators.Forecaster(5, seed=2)
    model.learn_many(Y[:300])
    model.save(tmp_path / "model")
    loaded = hl.estimators.Forecaster(1)
    loaded.load(tmp_path / "model")
    others = [loaded, copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    said = model.forecast_then_learn(Y[300:600])
    for other in others:
        np.testing.assert_array_equal(other.forecast_then_learn(Y[300:600]), said)
    with pytest.raises(CheckpointError, match="forecaster"):
        hl.estimators.Regressor().load(tmp_path / "model")


def test_values_of_any_size_and_a_series_that_never_changes():
    small, large, flat = (hl.estimators.Forecaster(3) for _ in range(3))
    said = small.forecast_then_learn(1e-6 * Y[:400])
    np.testing.assert_allclose(1e12 * said, large.forecast_then_learn(1e6 * Y[:400]), rtol=1e-2)
    flat.learn_many([5.0] * 100)
    np.testing.assert_allclose(flat.forecast(), 5.0, rtol=1e-4)
    assert np.isfinite(hl.estimators.Forecaster(3).forecast_then_learn([0, 1e9, -1e9, 0, 1e-9])).all()


def test_a_season_is_found_and_stays_while_it_is_about_as_good():
    none = np.zeros(2, dtype=np.int64)
    week = np.tile(np.random.default_rng(0).normal(size=168), 10)
    assert 168 in find_seasons(week, none)
    assert find_seasons(np.random.default_rng(0).normal(size=500), none).tolist() == [0, 0]
    assert find_seasons(Y, np.array([48, 24])).tolist() == [48, 24]


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match="horizon=0"):
        hl.estimators.Forecaster(0)
    with pytest.raises(SampleError, match="finite number"):
        hl.estimators.Forecaster(2).learn_one(float("nan"))
    with pytest.raises(ConfigError, match="coverage"):
        hl.estimators.Forecaster(2).forecast_interval(0.42)
