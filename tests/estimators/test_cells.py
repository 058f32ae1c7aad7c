"""Cells of a row: what is missing, what is a number, and what is neither a number nor a text."""

import datetime
import decimal

import numpy as np
import pytest
import torch

import hamlearn as hl
from hamlearn.errors import SampleError
from hamlearn.estimators.encoder import is_missing
from tests.estimators.test_same_results import assert_same

MISSING = [None, float("nan"), np.float32("nan"), decimal.Decimal("nan"), np.datetime64("NaT")]
TIMES = [datetime.datetime(2024, 1, 1), datetime.date(2024, 1, 1), np.datetime64("2024")]
NO_CELLS = [*TIMES, b"1", 1j, [1], torch.ones(3)]
SITES = [None, "a", "b", None, "a", "b"] * 20
TARGETS = [{None: 0.0, "a": 10.0, "b": 20.0}[site] for site in SITES]


def learned(missing):
    model = hl.estimators.Regressor()
    model.learn_many([{"site": missing if site is None else site} for site in SITES], TARGETS)
    return model


@pytest.mark.parametrize("missing", MISSING)
def test_a_text_that_is_missing_is_missing_in_any_spelling_and_leaves_its_column_open(missing):
    model, plain = learned(missing), learned(None)
    assert_same(model, plain)
    assert model.state_dict()["about"]["categories"] == [["site", ["a", "b"]]]
    for other in MISSING:
        assert model.predict_one({"site": other}) == plain.predict_one({})


def test_missing_texts_of_a_frame_are_missing():
    pandas = pytest.importorskip("pandas")
    assert is_missing(pandas.NA)
    assert is_missing(pandas.NaT)
    plain = learned(None)
    for kind in (object, "string"):
        frame = pandas.DataFrame({"site": pandas.Series(SITES, dtype=kind)})
        model = hl.estimators.Regressor()
        model.learn_many(frame, TARGETS)
        assert_same(model, plain)


@pytest.mark.parametrize("number", [decimal.Decimal, torch.tensor, np.array, np.float16])
def test_numbers_of_other_types_are_numbers(number):
    model, plain = hl.estimators.Regressor(), hl.estimators.Regressor()
    for count in range(20):
        model.learn_one({"a": number(count % 5)}, count % 5)
        plain.learn_one({"a": count % 5}, count % 5)
    assert_same(model, plain)


@pytest.mark.parametrize("cell", NO_CELLS)
@pytest.mark.parametrize("usual", [1.0, "text"])
def test_other_cells_are_named_and_change_nothing(cell, usual):
    model, row = hl.estimators.Classifier(), {"when": cell}
    model.learn_many([{"when": usual}] * 4, [0, 1, 2, 3])
    before = model.state_dict()
    calls = [
        lambda: model.learn_one(row, 4),
        lambda: model.learn_many([{"new": 1.0}, row], [4, 5]),
        lambda: model.predict_one(row),
        lambda: model.predict_many([row]),
        lambda: model.wait_one({"another": cell}, "id"),
    ]
    for call in calls:
        with pytest.raises(SampleError, match=rf"(?s)column .* holds .*{type(cell).__name__}: give a number"):
            call()
    assert model.state_dict()["about"] == before["about"]
    assert sum(model.predict_proba_one({"when": usual}).values()) == pytest.approx(1)


def test_a_table_of_times_is_not_one_of_numbers():
    with pytest.raises(SampleError, match="datetime64"):
        hl.estimators.Classifier().learn_many(np.array([["2024-01-01"]], dtype="datetime64[ns]"), [0])
