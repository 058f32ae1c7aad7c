"""River's data sets as streams."""

import json
import math
from datetime import datetime, timedelta

import numpy as np
import pytest
import torch
from river import datasets

from hamlearn.errors import ConfigError, SampleError
from hamlearn.interop.river import from_river


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


def test_times_after_the_first_and_lists_are_named_where_a_data_set_becomes_a_stream(caplog):
    x = {"begin": datetime(2024, 1, 1), "end": datetime(2024, 1, 2), "a": 1.0}
    assert [sample.u.tolist() for sample in from_river([(x, 1.0)])] == [[1.0]]
    assert "the features 'begin', 'end' are times: the first is the time stamp" in caplog.text
    with pytest.raises(SampleError, match=r"sample 0: column 'a' holds \[1\], which is not a finite number"):
        list(from_river([({"a": [1]}, 1.0)]))
