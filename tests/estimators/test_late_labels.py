"""Labels that come later are learned as a plain loop would: from what was known when their rows came."""

import numpy as np
import pytest

import hamlearn as hl
from hamlearn.errors import ConfigError, SampleError
from tests.estimators.test_same_results import CLASSES, DICTS, KINDS, NUMBERS, X, assert_same

FEW = 150


@pytest.mark.parametrize(("kind", "y"), KINDS)
@pytest.mark.parametrize("delay", [1, 7])
def test_a_delay_is_a_loop_that_learns_each_label_that_many_rows_later_bit_for_bit(kind, y, delay):
    at_once, looped = kind(), kind()
    said = at_once.predict_then_learn(X[:FEW], y[:FEW], delay=delay)
    found = []
    for now in range(FEW):
        if now >= delay:
            looped.label_one(now - delay, y[now - delay].item())
        found.append(looped.predict_one(DICTS[now]))
        looped.wait_one(DICTS[now], now)
    for now in range(FEW - delay, FEW):
        looped.label_one(now, y[now].item())
    assert found == said.tolist()
    assert_same(at_once, looped)


@pytest.mark.parametrize(("kind", "y"), KINDS)
def test_a_label_that_is_not_late_is_learned_as_any_other(kind, y):
    late, usual = kind(), kind()
    for each in (late, usual):
        each.learn_many(X[:50], y[:50])
    for x, target in zip(DICTS[50:FEW], y[50:FEW].tolist(), strict=True):
        late.wait_one(x, "row")
        late.label_one("row", target)
        usual.learn_one(x, target)
    assert late.waiting == 0
    for name, tensor in late.state_dict()["tensors"].items():
        np.testing.assert_allclose(tensor, usual.state_dict()["tensors"][name], rtol=1e-3, atol=1e-3, err_msg=name)


def log_loss(said, y):
    return -np.log(np.clip(said[np.arange(len(y)), y], 1e-6, 1))[700:].mean()


def test_the_last_target_is_the_one_that_was_known_when_the_row_came():
    noise = np.random.default_rng(0).normal(size=(1500, 1))
    # The class six rows ago is always the other one; that of the row before says nothing.
    y = np.arange(1500) // 2 % 2
    said = hl.estimators.Classifier().predict_proba_then_learn(noise, y, delay=6)
    assert log_loss(said, y) < 0.3
    # The class is the same for ten rows: the last one says much if known at once, and nothing twenty rows later.
    y = np.repeat(np.random.default_rng(1).integers(2, size=150), 10)
    said = hl.estimators.Classifier().predict_proba_then_learn(noise, y, delay=20)
    careless, found = hl.estimators.Classifier(), np.full((1500, 2), 0.5)
    for now, x in enumerate(noise[:, 0].tolist()):
        if now >= 20:
            careless.learn_one({"x": noise[now - 20, 0]}, int(y[now - 20]))
        for label, p in careless.predict_proba_one({"x": x}).items():
            found[now, label] = p
    assert log_loss(said, y) < 0.65 * log_loss(found, y)


@pytest.mark.parametrize(("kind", "y"), [(hl.estimators.Classifier, CLASSES), (hl.estimators.Regressor, NUMBERS)])
def test_rows_that_wait_are_saved_with_the_rest(kind, y, tmp_path):
    model = kind()
    model.learn_many(X[:100], y[:100])
    model.wait_one(DICTS[100] | {"place": "here", "gone": None}, "a")
    model.wait_one(DICTS[101], 2)
    model.save(tmp_path / "model")
    other = kind()
    other.load(tmp_path / "model")
    assert other.waiting == 2
    for each in (model, other):
        each.label_one(2, y[101].item())
        each.label_one("a", y[100].item())
    assert_same(model, other)


def test_classes_that_came_while_a_row_waited_do_not_disturb_it():
    model = hl.estimators.Classifier()
    model.learn_many(X[:100], CLASSES[:100])
    model.wait_one(DICTS[100], 0)
    for label in range(2, 7):
        model.learn_one(DICTS[label], label)
    model.label_one(0, 3)
    assert sum(model.predict_proba_one(DICTS[0]).values()) == pytest.approx(1, abs=1e-4)


def test_intervals_cover_what_they_say_though_targets_come_300_rows_late():
    random = np.random.default_rng(4)
    X = random.normal(size=(5000, 2))
    level = 20 * np.sin(np.arange(5000) / 400)
    y = level + 5 * X[:, 0] + random.normal(size=5000) * np.where(np.arange(5000) % 2000 < 1000, 1.0, 4.0)
    _, low, high = hl.estimators.Regressor().predict_interval_then_learn(X, y, coverage=0.9, delay=300)
    assert np.isinf(high[:300]).all()  # no target was known
    inside = (low <= y) & (y <= high)
    assert 0.88 < inside[300:].mean() < 0.92


def test_ids_that_do_not_fit_are_named():
    model = hl.estimators.Classifier()
    model.wait_one({"a": 1.0}, 7)
    with pytest.raises(SampleError, match="id=7 waits for its label already"):
        model.wait_one({"a": 1.0}, 7)
    with pytest.raises(SampleError, match="id=8: no row waits"):
        model.label_one(8, "x")
    with pytest.raises(SampleError, match="is not a class"):
        model.label_one(7, None)
    model.label_one(7, "x")
    with pytest.raises(ConfigError, match="delay=-1"):
        model.predict_then_learn([{"a": 1.0}], ["x"], delay=-1)
