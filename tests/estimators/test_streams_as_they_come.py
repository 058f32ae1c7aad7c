"""What real streams do: columns and classes that come later, texts, missing values, a member that diverges."""

import numpy as np
import pytest
import torch

import hamlearn as hl
from hamlearn.errors import ConfigError, SampleError
from hamlearn.estimators.counts import NumberCounts
from hamlearn.estimators.encoder import Encoder, Layout, quantiles


def numbers(count, seed=0, columns=3):
    return np.random.default_rng(seed).normal(size=(count, columns))


def test_a_classifier_learns_what_no_line_divides_and_the_same_row_shuffled_labels_do_not():
    X = numbers(1500)
    y = np.where(X[:, 0] * X[:, 1] > 0, "same", "other")
    said = hl.estimators.Classifier().predict_then_learn(X, y)
    assert (said[500:] == y[500:]).mean() > 0.9
    shuffled = np.random.default_rng(1).permutation(np.where(np.arange(1500) % 10 < 7, "often", "rare"))
    said = hl.estimators.Classifier().predict_then_learn(X, shuffled)
    assert (said[500:] == shuffled[500:]).mean() > 0.68


def test_intervals_of_a_regressor_cover_what_they_say_though_the_noise_grows():
    X = numbers(3000)
    noise = np.random.default_rng(2).normal(size=3000) * np.where(np.arange(3000) < 1500, 1.0, 5.0)
    y = 100 + 10 * np.abs(X[:, 0]) + noise
    said, low, high = hl.estimators.Regressor().predict_interval_then_learn(X, y, coverage=0.9)
    for part in (slice(500, 1500), slice(1700, 3000)):
        assert 0.85 < ((low <= y) & (y <= high))[part].mean() < 0.95
    assert np.abs(said - y)[500:1500].mean() < 1.2


def test_columns_categories_and_classes_that_come_later_keep_what_was_learned():
    model, X = hl.estimators.Classifier(), numbers(700)
    rows = [{"a": a, "b": b, "c": c} for a, b, c in X.tolist()]
    model.learn_many(rows[:500], [str(row["a"] > 0) for row in rows[:500]])
    before = [model.predict_proba_one(row)["True"] for row in rows[500:540]]
    wide = [row | {"new": 0.0, "also": None, "place": "here"} for row in rows[:3]]
    model.learn_many(wide, [str(row["a"] > 0) for row in wide])
    after = [model.predict_proba_one(row)["True"] for row in rows[500:540]]
    assert np.abs(np.array(before) - after).mean() < 0.03
    model.learn_many(rows[540:543], ["third", "fourth", "fifth"])
    assert model.classes[2:] == ["third", "fourth", "fifth"]
    assert model.predict_one({"a": 2.0}) in model.classes
    model.learn_one({}, "True")


def test_numbers_that_are_missing_are_inputs_of_their_own():
    random = np.random.default_rng(0)
    gone = random.uniform(size=1200) < 0.5
    X = np.where(gone, np.nan, random.normal(size=1200))[:, None]
    said = hl.estimators.Classifier().predict_then_learn(
        np.hstack([X, X * 0 + 1, random.normal(size=(1200, 1))]), gone
    )
    assert (said[200:] == gone[200:]).mean() > 0.98


@pytest.mark.parametrize("name", [str, float])
def test_values_that_come_again_are_learned_one_by_one_texts_and_numbers(name):
    random = np.random.default_rng(0)
    codes, answers = random.integers(0, 60, size=1500), random.permutation(np.arange(60) % 2)
    rows = [
        {"code": name(code), "noise": noise} for code, noise in zip(codes, random.normal(size=1500), strict=True)
    ]
    said = hl.estimators.Classifier().predict_then_learn(rows, answers[codes])
    assert (said[700:] == answers[codes][700:]).mean() > 0.97
    said = hl.estimators.Regressor().predict_then_learn(rows, 10.0 * answers[codes])
    assert np.abs(said - 10.0 * answers[codes])[700:].mean() < 1.0


def test_estimators_side_by_side_share_no_more_than_memory():
    X = numbers(300)
    y = (X[:, 0] > 0).astype(int)
    alone, first, second = (hl.estimators.Classifier(seed) for seed in (1, 1, 2))
    alone.learn_many(X, y)
    for row, label in zip(X.tolist(), y.tolist(), strict=True):
        first.learn_one(dict(enumerate(row)), label)
        second.predict_one({0: row[1]})
        second.learn_one({0: row[1], 1: row[0], 2: 0.0}, 1 - label)
    np.testing.assert_array_equal(alone.predict_proba_many(X), first.predict_proba_many(X))


@pytest.mark.parametrize("broken", [float("nan"), 1e30])
def test_a_member_that_diverges_is_reset_and_the_answers_stay_finite(broken):
    model, X = hl.estimators.Regressor(), numbers(900)
    y = X[:, 0] * 3 + 10
    model.learn_many(X[:400], y[:400])
    with torch.no_grad():
        for net in model._pipeline.team.nets[-4:]:
            next(net.parameters()).fill_(broken)
    said = model.predict_then_learn(X[400:], y[400:])
    assert np.isfinite(said).all()
    assert np.abs(said - y[400:])[:100].mean() < 2.0
    for weight in model._pipeline.team.parameters():
        assert float(weight.detach().abs().max()) < 100


def test_new_quantiles_leave_the_answers_as_they_are():
    encoder = Encoder(Layout(1, 1, 0, 32, 1), NumberCounts(3, 1, 0, True))
    encoder.remember(np.linspace(0, 1, 1024)[:, None])
    assert encoder.refit() == []
    weights = np.random.default_rng(0).normal(size=8)

    def answer(x, weights):
        low, inverse, present = (part[0].numpy() for part in encoder.bins[0])
        return (2 * np.clip((x - low) * inverse, 0, 1) - 1) * present @ weights

    at = quantiles(np.linspace(0.2, 1.6, 1024), 8)
    before = [answer(x, weights) for x in at]
    encoder.remember(np.linspace(0.2, 1.6, 1024)[:, None])
    start, count, matrix, offset = encoder.refit()[0]
    assert (start, count) == (encoder.layout.edges[6], 8)
    after = [answer(x, matrix @ weights) + offset @ weights for x in at]
    np.testing.assert_allclose(after, before, atol=1e-9)


def test_arrays_frames_tensors_and_dictionaries_are_the_same_rows():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    X, y = numbers(80), [0, 1] * 40
    named = {name: X[:, place] for place, name in enumerate("abc")}
    kinds = [
        pandas.DataFrame(named),
        polars.DataFrame(named),
        [dict(zip("abc", row, strict=True)) for row in X.tolist()],
    ]
    found = []
    for rows in kinds:
        model = hl.estimators.Classifier()
        model.learn_many(rows, y)
        found.append(model.predict_proba_many(rows))
    model = hl.estimators.Classifier()
    model.learn_many(torch.from_numpy(X), y)
    np.testing.assert_array_equal(found[0], model.predict_proba_many(X))
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def test_ordinary_mistakes_are_named():
    model = hl.estimators.Classifier()
    assert model.predict_one({"a": 1.0}) is None
    with pytest.raises(SampleError, match="3 rows and 2 targets"):
        model.learn_many(numbers(3), [0, 1])
    with pytest.raises(SampleError, match="is not a class"):
        model.learn_one({"a": 1.0}, None)
    with pytest.raises(SampleError, match="a row is a list"):
        model.learn_one([1.0], 0)
    with pytest.raises(ConfigError, match="seed"):
        hl.estimators.Classifier(seed=-1)
    with pytest.raises(ConfigError, match="coverage"):
        hl.estimators.Regressor().predict_interval_one({"a": 1.0}, coverage=0.7)
