"""What carries the answer, and the answers as a module of their own."""

import numpy as np
import pytest
import torch

import hamlearn as hl
from hamlearn.errors import ConfigError
from tests.estimators.test_same_results import CLASSES, DICTS, KINDS, X, tensors


@pytest.mark.parametrize("kind", [hl.estimators.Classifier, hl.estimators.Regressor])
def test_columns_that_matter_come_first_and_shares_add_up_to_one(kind):
    random = np.random.default_rng(0)
    rows = [
        {"noise": a, "one": b, "place": p}
        for a, b, p in zip(*random.normal(size=(2, 900)), "ab" * 450, strict=False)
    ]
    y = [row["one"] * 2 + (row["place"] == "a") for row in rows]
    model = kind()
    model.learn_many(rows, [value > 0.5 for value in y] if model.kind == "classifier" else y)
    before = tensors(model)
    found = model.explain()
    assert [name for name, _ in found.columns] == ["one", "place", "noise"]
    assert found.columns[0][1] > 5 * found.columns[2][1]
    assert sum(share for _, share in found.members) == pytest.approx(1, abs=1e-3)
    assert "moves the answer by" in str(found)
    assert [len(axes.patches) for axes in found.plot().axes] == [len(found.members), 3]
    for name, tensor in tensors(model).items():
        np.testing.assert_array_equal(tensor, before[name])


@pytest.mark.parametrize(("kind", "y"), KINDS)
def test_what_is_exported_answers_as_the_estimator_does_and_torch_exports_it(kind, y):
    model = kind()
    model.learn_many(X, y)
    module = model.export()
    rows = module.encode(DICTS[:20])
    program = torch.export.export(module, (rows,)).module()
    model.learn_many(X, y)  # what was exported stays as it is
    other = kind()
    other.learn_many(X, y)
    for answers in (module(rows), program(rows), module(rows[:5])):
        if model.kind == "classifier":
            expected = other.predict_proba_many(X[: len(answers)])
        else:
            expected = other.predict_many(X[: len(answers)])
            answers = answers[:, 0]
        np.testing.assert_allclose(answers.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_what_has_learned_nothing_has_nothing_to_explain_or_to_export():
    for ask in (hl.estimators.Classifier().explain, hl.estimators.Regressor().export):
        with pytest.raises(ConfigError, match="learn a row first"):
            ask()


def test_columns_that_come_later_keep_the_rows_that_explain():
    model = hl.estimators.Classifier()
    model.learn_many(DICTS[:300], CLASSES[:300])
    for row, label in zip(DICTS[300:310], CLASSES[300:310].tolist(), strict=True):
        model.learn_one(row | {"new": 1.0, "place": "here"}, label)
    assert {name for name, _ in model.explain().columns} == {0, 1, 2, "new", "place"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "y"), KINDS)
def test_what_is_exported_answers_the_same_as_an_onnx_model(kind, y):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model = kind()
    model.learn_many(X, y)
    module = model.export()
    rows = module.encode(DICTS[:4])
    program = torch.onnx.export(module, (rows,), dynamo=True)
    session = runtime.InferenceSession(program.model_proto.SerializeToString())
    (answers,) = session.run(None, {session.get_inputs()[0].name: rows.numpy()})
    np.testing.assert_allclose(answers, module(rows).numpy(), rtol=1e-4, atol=1e-4)
