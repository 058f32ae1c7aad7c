"""One row at a time and in blocks, saved and resumed, copied and pickled: one and the same estimator."""

import copy
import pickle

import numpy as np
import pytest

import hamlearn as hl
from hamlearn.errors import CheckpointError, SampleError

ROWS = 600


def table(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    X = random.normal(size=(ROWS, 3))
    X[random.uniform(size=X.shape) < 0.02] = np.nan
    filled = np.nan_to_num(X)
    return X, (filled[:, 0] * filled[:, 1] > 0).astype(int), 50 + 10 * np.abs(filled[:, 0]) + filled[:, 1]


X, CLASSES, NUMBERS = table()
DICTS = [dict(enumerate(row)) for row in X.tolist()]
KINDS = [(hl.estimators.Classifier, CLASSES), (hl.estimators.Regressor, NUMBERS)]


def tensors(model):
    return {name: tensor.numpy() for name, tensor in model.state_dict()["tensors"].items()}


def assert_same(one, other):
    first, second = tensors(one), tensors(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        np.testing.assert_array_equal(tensor, second[name], err_msg=name)


@pytest.mark.parametrize(("kind", "y"), KINDS)
def test_one_row_at_a_time_leads_where_blocks_lead_bit_for_bit(kind, y):
    blocks, singles = kind(), kind()
    blocks.learn_many(X[:137], y[:137])
    blocks.learn_many(X[137:], y[137:])
    for x, target in zip(DICTS, y.tolist(), strict=True):
        singles.learn_one(x, target)
    assert_same(blocks, singles)
    assert blocks.predict_one(DICTS[0]) == singles.predict_one(DICTS[0])


@pytest.mark.parametrize(("kind", "y"), KINDS)
def test_answers_of_learning_are_those_of_predicting_before_it(kind, y):
    blocks, singles = kind(), kind()
    said = blocks.predict_then_learn(X, y)
    for number, (x, target) in enumerate(zip(DICTS[:300], y.tolist(), strict=False)):
        if said[number] is None:
            assert number == 0
            assert singles.predict_one(x) is None
        else:
            assert singles.predict_one(x) == pytest.approx(said[number], rel=1e-3, abs=1e-3)
        singles.learn_one(x, target)


@pytest.mark.parametrize(("kind", "y"), KINDS)
def test_saved_copied_and_pickled_estimators_go_on_bit_for_bit(kind, y, tmp_path):
    model = kind(seed=3)
    model.learn_many(X[:400], y[:400])
    model.save(tmp_path / "model")
    loaded = kind()
    loaded.load(tmp_path / "model")
    others = [loaded, copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for each in (model, *others):
        each.learn_many(X[400:], y[400:])
    for other in others:
        assert_same(model, other)
        assert other.rows == ROWS


def test_classes_that_come_one_by_one_lead_where_a_block_with_all_of_them_leads():
    labels = np.arange(60) // 6 % 7
    block, singles = hl.estimators.Classifier(), hl.estimators.Classifier()
    block.learn_many(X[:60], labels)
    for x, label in zip(DICTS[:60], labels.tolist(), strict=True):
        singles.learn_one(x, label)
    assert singles.predict_proba_one(DICTS[3]) == pytest.approx(block.predict_proba_one(DICTS[3]), abs=1e-3)


@pytest.mark.parametrize("delay", [0, 5])
def test_before_a_class_is_known_and_where_one_is_new_a_block_answers_as_a_loop(delay):
    labels = [str(number // 6 % 4) for number in range(60)]
    p = hl.estimators.Classifier().predict_proba_then_learn(X[:60], labels, delay=delay)
    said = hl.estimators.Classifier().predict_then_learn(X[:60], labels, delay=delay)
    unknown = max(delay, 1)
    assert said[:unknown].tolist() == [None] * unknown
    assert not p[:unknown].any()
    np.testing.assert_allclose(p[unknown:].sum(1), 1, atol=1e-5)
    if not delay:
        single = hl.estimators.Classifier()
        for number, (x, label) in enumerate(zip(DICTS[:60], labels, strict=True)):
            found = list(single.predict_proba_one(x).values())
            assert found == pytest.approx(p[number, : len(found)].tolist(), abs=1e-3)
            assert not p[number, len(found) :].any()
            assert single.predict_one(x) == said[number]
            single.learn_one(x, label)


def test_before_the_first_row_many_answers_are_as_many_as_rows():
    assert hl.estimators.Classifier().predict_many(X[:3]).tolist() == [None] * 3
    _, low, high = hl.estimators.Regressor().predict_interval_then_learn(X[:3], NUMBERS[:3])
    assert np.isinf([low[0], high[0]]).all()
    assert np.isfinite([low[1:], high[1:]]).all()


def test_predicting_moves_nothing():
    model = hl.estimators.Regressor()
    model.learn_many(X[:100], NUMBERS[:100])
    before = tensors(model)
    model.predict_many(X)
    model.predict_interval_one(DICTS[5])
    for name, tensor in tensors(model).items():
        np.testing.assert_array_equal(tensor, before[name])


def test_state_of_another_kind_is_refused(tmp_path):
    model = hl.estimators.Classifier()
    model.save(tmp_path / "model")
    with pytest.raises(CheckpointError, match="regressor"):
        hl.estimators.Regressor().load(tmp_path / "model")


@pytest.mark.parametrize("y", [float("nan"), None, "12"])
def test_targets_that_are_no_numbers_are_refused(y):
    with pytest.raises(SampleError, match="finite number"):
        hl.estimators.Regressor().learn_one({"a": 1.0}, y)
