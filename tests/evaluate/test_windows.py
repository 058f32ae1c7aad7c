"""Windows are counted from the last samples and from nothing else; what a sample costs is bounded."""

import json
import math
import sys

import pytest
import torch
import torchmetrics
from river import metrics
from torch.nn import functional

from hamlearn.evaluate import Scores, scored
from hamlearn.sample import Sample, StepReport


def numbers(n, *shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, *shape, generator=generator), torch.randn(n, *shape, generator=generator)


def test_one_spike_in_a_window_leaves_no_trace_once_it_has_left():
    y, target = numbers(300, 1)
    y[50] = 1e7
    scores = Scores([metrics.MSE(), metrics.MAE(), metrics.R2()], 20, loss=functional.mse_loss)
    for k in range(300):
        scores.update(y[k], target[k])
        window = scores.recent[""]
        last = slice(max(0, k - 19), k + 1)
        assert window["MSE"] == pytest.approx((y[last] - target[last]).double().square().mean().item(), rel=1e-6)
        assert window["MSE"] >= 0


@pytest.mark.parametrize("batch", [None, 4])
def test_a_window_is_of_samples_however_many_numbers_each_has(batch):
    y, target = numbers(40, 3)
    given = [metrics.MAE(), torchmetrics.MeanSquaredError()]
    scores = Scores(given, 10, loss=functional.mse_loss)
    if batch is None:
        for pair in zip(y, target, strict=True):
            scores.update(*pair)
    else:
        for pair in zip(y.split(batch), target.split(batch), strict=True):
            scores.update(*pair)
    whole, window = scores.overall[""], scores.recent[""]
    assert whole["MAE"] == pytest.approx((y - target).abs().mean().item(), rel=1e-5)
    assert window["MAE"] == pytest.approx((y - target)[-10:].abs().mean().item(), rel=1e-5)
    assert window["MeanSquaredError"] == pytest.approx((y - target)[-10:].square().mean().item(), rel=1e-5)


@pytest.mark.filterwarnings("ignore:::torchmetrics")
def test_a_metric_that_keeps_every_sample_has_a_window_too():
    y, target = numbers(30, 1)
    scores = Scores([torchmetrics.SpearmanCorrCoef(), torchmetrics.R2Score()], 8, loss=functional.mse_loss)
    for k in range(30):
        scores.update(y[k], target[k])
        window = scores.recent[""]
        assert math.isnan(window["R2Score"]) == (k == 0)
    expected = torchmetrics.SpearmanCorrCoef()(y[-8:, 0], target[-8:, 0]).item()
    assert window["SpearmanCorrCoef"] == pytest.approx(expected, abs=1e-6)


def test_pairs_that_prepare_makes_are_given_to_windows_as_they_are_and_saved_with_them():
    generator = torch.Generator().manual_seed(0)
    y, target = torch.randn(30, 2, 4, generator=generator), torch.randint(2, (30, 2), generator=generator)
    plain = ((y[..., 0] > 0) == target).float()

    def scores():
        return Scores(torchmetrics.Accuracy(task="binary"), 10, lambda y, target: ((y[:, 0] > 0).long(), target))

    now = scores()
    for pair in zip(y, target, strict=True):
        resumed = scores()
        resumed.load_state_dict(json.loads(json.dumps(now.state_dict())))
        now = resumed
        now.update(*pair)
    whole, window = now.overall[""], now.recent[""]
    assert whole["BinaryAccuracy"] == pytest.approx(plain.mean().item())
    assert window["BinaryAccuracy"] == pytest.approx(plain[-10:].mean().item())
    many = Scores(metrics.multioutput.ExactMatch(), 5, lambda y, target: ({"a": 1, "b": 0}, {"a": 1, "b": 0}))
    many.update(y[0], target[0])
    assert many.summary() == {
        "scores": {"ExactMatch": 1.0},
        "window": {"ExactMatch": 1.0},
        "baselines": {},
        "behind": [],
    }


def counted(name):
    kind = getattr(metrics, name, None)
    return isinstance(kind, type) and issubclass(kind, metrics.base.ClassificationMetric)


UNFIT = {
    "ClassificationReport",
    "ConfusionMatrix",
    "MultiFBeta",
    "FBeta",
    "MacroFBeta",
    "MicroFBeta",
    "WeightedFBeta",
}


@pytest.mark.parametrize("name", sorted({name for name in metrics.__all__ if counted(name)} - UNFIT))
def test_pairs_that_are_counted_together_come_to_what_they_come_to_one_by_one(name):
    plain = getattr(metrics, name)()
    generator = torch.Generator().manual_seed(0)
    y, target = torch.randn(80, 2, generator=generator), torch.randint(2, (80,), generator=generator)
    scores = Scores(getattr(metrics, name)(), 30, loss=functional.cross_entropy)
    for pair in zip(y, target, strict=True):
        scores.update(*pair)
    whole, window = scores.overall[""], scores.recent[""]
    for first, found in ((0, whole), (50, window)):
        plain = getattr(metrics, name)()
        for row, truth in zip(y[first:].softmax(1).tolist(), target[first:].tolist(), strict=True):
            plain.update(truth, row.index(max(row)) if plain.requires_labels else dict(enumerate(row)))
        assert found[name] == pytest.approx(plain.get(), abs=1e-6), first


def test_windowed_accuracy_and_kappa_take_few_calls_a_sample():
    generator = torch.Generator().manual_seed(0)
    y, target = torch.randn(2000, 1, 3, generator=generator), torch.randint(3, (2000, 1), generator=generator)
    reports = [StepReport(0.0, *row) for row in zip(y, [None] * 2000, map(Sample, y, target), strict=True)]
    scores = Scores([metrics.Accuracy(), metrics.CohenKappa()], 500, loss=functional.cross_entropy)
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for k, evaluation in enumerate(scored(reports, scores), 1):
            # As a record does with `every = 50`.
            if k % 50 == 0:
                assert set(evaluation.window) == {"Accuracy", "CohenKappa"}
    finally:
        sys.setprofile(before)
    assert calls / 2000 < 60
