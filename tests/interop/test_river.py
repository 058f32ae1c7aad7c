"""River's own conformance checks, and what they do not ask."""

import copy
import json
import math
import pickle
from datetime import datetime, timedelta

import numpy as np
import pytest
import torch
from river import checks, datasets

from hamlearn.errors import ConfigError, SampleError
from hamlearn.interop.river import HLClassifier, HLForecaster, HLRegressor, from_river
from hamlearn.interop.river.encoding import Encoder

MODELS = [
    HLClassifier(),
    HLRegressor(),
    HLForecaster(),
    HLClassifier(net="gru", hidden=4),
    HLRegressor(net="linear"),
]


@pytest.mark.parametrize(
    ("model", "check"),
    [
        pytest.param(model, check, id=f"{type(model).__name__}-{model.net}-{check.__name__}-{k}")
        for model in MODELS
        for k, check in enumerate(checks.yield_checks(model))
    ],
)
def test_river_checks_pass(model, check):
    check(copy.deepcopy(model))


def test_a_prediction_moves_nothing():
    model = HLClassifier(net="rnn")
    for x, y in datasets.Phishing().take(20):
        model.learn_one(x, y)
    before = pickle.dumps(model)
    for x, _ in datasets.Phishing().take(40):
        model.predict_one(x)
        model.predict_one({**x, "never seen": 3.0, "text": "new"})
    assert pickle.dumps(model) == before


@pytest.mark.parametrize(
    "make", [lambda: HLClassifier(net="gru", hidden=4), lambda: HLRegressor(net="rnn", hidden=4)]
)
def test_a_pickled_model_goes_on_bit_for_bit(make):
    data = datasets.Phishing() if isinstance(make(), HLClassifier) else datasets.TrumpApproval()
    rows = list(data.take(60))
    model = make()
    for x, y in rows[:30]:
        model.learn_one(x, y)
    twin = pickle.loads(pickle.dumps(model))
    for x, y in rows[30:]:
        guess = "predict_proba_one" if isinstance(model, HLClassifier) else "predict_one"
        assert getattr(model, guess)(x) == getattr(twin, guess)(x)
        model.learn_one(x, y)
        twin.learn_one(x, y)


def test_time_stamps_are_the_time_steps_of_the_learner():
    start = datetime(2024, 1, 1)
    by_date, by_number = HLRegressor(unit=3600.0), HLRegressor()
    for k, hours in enumerate((0, 1, 3, 3.5)):
        by_date.learn_one({"a": float(k)}, float(k), t=start + timedelta(hours=hours))
        by_number.learn_one({"a": float(k)}, float(k), t=hours)
        assert by_date.predict_one({"a": 1.0}, t=start + timedelta(hours=hours + 1)) == by_number.predict_one(
            {"a": 1.0}
        )
    assert by_number._core.learner.state.t == 1.0 + 1.0 + 2.0 + 0.5
    with pytest.raises(SampleError, match="does not come after"):
        by_number.learn_one({"a": 1.0}, 1.0, t=3.5)


def test_classes_appear_as_they_come_up_to_the_limit():
    model = HLClassifier(max_classes=2)
    assert model.predict_proba_one({"a": 1.0}) == {}
    model.learn_one({"a": 1.0}, "red")
    assert model.predict_proba_one({"a": 1.0}) == {"red": 1.0}
    model.learn_one({"a": -1.0}, "blue")
    assert set(model.predict_proba_one({"a": 1.0})) == {"red", "blue"}
    with pytest.raises(ConfigError, match="'green' would be class number 3"):
        model.learn_one({"a": 0.0}, "green")


def test_features_beyond_the_capacity_share_places_in_bounded_memory():
    encoder = Encoder(4)
    for k in range(1000):
        encoder.learn({f"f{k}": 1.0, f"f{k + 1}": "text"})
    assert len(encoder._places) == 4
    assert len(encoder._scales) <= 64
    assert len(encoder.encode({"f0": 2.0, "f999": 3.0, "when": datetime(2024, 1, 1), "bad": math.nan})) == 4


def test_a_series_with_a_pattern_is_forecast_better_than_by_its_last_value():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2000, generator=generator, dtype=torch.float64).tolist()
    model, mine, last, change, level = HLForecaster(), [], [], 0.0, 50.0
    for k, shock in enumerate(noise):
        # Changes that swing back: half of each is undone by the next.
        change = -0.5 * change + shock
        before, level = level, level + change
        if k > 500:
            mine.append(abs(model.forecast(1)[0] - level))
            last.append(abs(before - level))
        model.learn_one(level)
    # The best possible forecast errs by sqrt(0.75) = 0.866 of the last value's.
    assert 0.85 < sum(mine) / sum(last) < 0.90


def test_a_forecaster_that_cannot_be_is_refused():
    for arguments, message in (({"lags": 0}, "lags=0"), ({"net": "rnn"}, "net='rnn'")):
        with pytest.raises(ConfigError, match=message):
            HLForecaster(**arguments)
    for arguments, message in (
        ({"lags": "x"}, "lags='x'"),
        ({"unit": None}, "unit=None"),
        ({"hidden": 0}, "hidden=0"),
        ({"capacity": -1}, "capacity=-1"),
        ({"seed": "x"}, "seed='x'"),
        ({"module": 3}, "module=3"),
    ):
        with pytest.raises(ConfigError, match=message):
            HLForecaster(**arguments)
    for arguments, message in (({"capacity": 0}, "capacity=0"), ({"max_classes": 0}, "max_classes=0")):
        with pytest.raises(ConfigError, match=message):
            HLClassifier(**arguments)
    with pytest.raises(ConfigError, match="features for 1 steps"):
        HLForecaster().forecast(2, [{}])
    with pytest.raises(ConfigError, match="net='cnn' is not known"):
        HLRegressor(net="cnn").learn_one({}, 1.0)
    assert HLForecaster().forecast(2) == [0.0, 0.0]


# River leaves the file of a data set open that was not read to its end.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("data", [datasets.Phishing(), datasets.ImageSegments(), datasets.WaterFlow()])
def test_rivers_data_sets_are_streams_that_resume(data):
    stream = from_river(data, unit=timedelta(hours=1))
    whole = list(stream)
    assert len(whole) == len(stream) == data.n_samples
    half = iter(stream)
    for _ in range(100):
        next(half)
    later = from_river(data, unit=timedelta(hours=1))
    later.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    rest = list(later)
    assert len(rest) == data.n_samples - 100
    for a, b in zip(rest, whole[100:], strict=True):
        assert torch.equal(a.u, b.u)
        assert torch.equal(a.target, b.target)
        assert a.tau == b.tau


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_targets_are_class_numbers_in_order_and_time_is_uneven():
    segments = from_river(datasets.ImageSegments())
    assert segments.classes == ["brickface", "cement", "foliage", "grass", "path", "sky", "window"]
    assert int(next(iter(segments)).target) == segments.classes.index("path")
    taus = {s.tau for s in from_river(datasets.WaterFlow(), unit=timedelta(hours=1))}
    assert taus >= {None, 1.0}
    assert len(taus) > 2
    with pytest.raises(ConfigError, match="the data set is empty"):
        from_river([])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_iterator_gives_every_sample_in_each_pass_and_resumes():
    stream = from_river(datasets.Phishing().take(40))
    whole = list(stream)
    assert len(whole) == len(stream) == 40
    assert len(list(stream)) == 40
    half = iter(stream)
    for _ in range(15):
        next(half)
    later = from_river(datasets.Phishing().take(40))
    later.load_state_dict(stream.state_dict())
    rest = list(later)
    assert len(rest) == 25
    assert all(torch.equal(a.u, b.u) for a, b in zip(rest, whole[15:], strict=True))


def test_a_label_that_is_missing_is_no_class():
    model = HLClassifier()
    model.learn_one({"a": 1.0}, "red")
    before = pickle.dumps(model)
    for missing in (None, math.nan):
        with pytest.raises(SampleError, match=f"y={missing} is no class"):
            model.learn_one({"a": 1.0}, missing)
    assert pickle.dumps(model) == before


@pytest.mark.parametrize(
    ("good", "wrong", "message"),
    [
        (1.0, math.inf, "sample 1: column 'target' holds inf, which is not a finite number"),
        (1.0, -math.inf, "holds -inf"),
        (1.0, 1e39, "holds 1e[+]39, which is larger than 3.4"),
        (1.0, None, "sample 1 has no target"),
        (1.0, math.nan, "sample 1 has no target"),
        ("x", None, "sample 1 has no target"),
        ("x", math.nan, "sample 1 has no target"),
        ("x", 3, r"sample 1 has the target 3, which is neither.*\['x'\]"),
        (True, 1, "sample 1 has the target 1, which is neither"),
    ],
)
def test_a_target_that_cannot_be_is_named_or_skipped(good, wrong, message):
    data = [({"a": float(k)}, y) for k, y in enumerate((good, wrong, good))]
    with pytest.raises(SampleError, match=message):
        list(from_river(data))
    stream = from_river(data, bad="skip")
    assert [float(s.u) for s in stream] == [0.0, 2.0]
    assert stream.skipped == 1


def test_a_feature_that_is_infinite_in_its_type_is_refused():
    data = [({"a": 1e39}, 1.0)]
    with pytest.raises(SampleError, match=r"column 'a' holds 1e[+]39"):
        list(from_river(data))
    assert float(next(iter(from_river(data, dtype=torch.float64))).u) == 1e39


def test_truth_values_of_numpy_are_classes_and_do_not_mix_with_texts():
    stream = from_river([({"a": 1.0}, np.True_), ({"a": 2.0}, np.False_), ({"a": 3.0}, True)])
    assert stream.classes == [False, True]
    assert [s.target.tolist() for s in stream] == [1, 0, 1]
    with pytest.raises(ConfigError, match="texts, such as 'x', and some are truth values, such as True"):
        from_river([({"a": 1.0}, True), ({"a": 2.0}, "x")])


class OfSize(torch.nn.Linear):
    def __init__(self, inputs):
        super().__init__(inputs, 2)


@pytest.mark.parametrize("module", [torch.nn.Linear(3, 2), torch.nn.Linear, lambda: torch.nn.Linear(3, 2)])
@pytest.mark.parametrize("kind", [HLClassifier, HLRegressor, HLForecaster])
def test_a_module_that_is_no_function_of_the_number_of_features_is_refused(kind, module):
    with pytest.raises(ConfigError, match=r"module=.* is no function of the number of features.*lambda n"):
        kind(module=module)


@pytest.mark.parametrize("module", [OfSize, lambda n, bias=True: torch.nn.Linear(n, 2, bias)])
def test_a_class_or_a_function_with_defaults_is_a_function_of_the_number_of_features(module):
    model = HLClassifier(module=module)
    model.learn_one({"a": 1.0, "b": 2.0}, "red")
    assert model.predict_one({"a": 1.0, "b": 2.0}) == "red"


def test_dates_and_lists_among_the_features_are_left_out_with_a_warning_each(caplog):
    model = HLRegressor(hidden=4)
    for k in range(3):
        model.learn_one({"size": 1.0, "sent at": datetime(2024, 1, 1 + k), "tags of it": [1, 2]}, 1.0)
    said = [message for message in caplog.messages if "is left out" in message]
    assert len(said) == 2
    assert "'sent at' is a datetime" in said[0]
    assert "'tags of it' is a list" in said[1]


def test_times_after_the_first_and_lists_are_named_where_a_data_set_becomes_a_stream(caplog):
    x = {"begin": datetime(2024, 1, 1), "end": datetime(2024, 1, 2), "a": 1.0}
    assert [sample.u.tolist() for sample in from_river([(x, 1.0)])] == [[1.0]]
    assert "the features 'begin', 'end' are times: the first is the time stamp" in caplog.text
    with pytest.raises(SampleError, match=r"sample 0: column 'a' holds \[1\], which is not a finite number"):
        list(from_river([({"a": [1]}, 1.0)]))
