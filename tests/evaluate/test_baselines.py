"""What would have been scored without learning is scored on the same samples, and a learner behind it is told."""

import statistics
from itertools import pairwise

import pytest
import torch
import torchmetrics
from river import metrics
from torch.nn import functional

import hamlearn as hl
from hamlearn import streams
from hamlearn.evaluate import Scores, evaluate


def test_the_last_value_and_the_mean_are_scored_beside_a_learner_of_numbers():
    target = [3.0, 5.0, 4.0, 8.0, 1.0]
    for window, first in ((None, 1), (2, 3)):
        scores = Scores([metrics.MAE(), torchmetrics.MeanAbsoluteError()], window, loss=functional.mse_loss)
        for x in target:
            scores.update(torch.tensor([x + 2]), torch.tensor([x]))
        errors = {
            "last value": [abs(target[k] - target[k - 1]) for k in range(first, 5)],
            "mean": [abs(target[k] - statistics.fmean(target[:k])) for k in range(first, 5)],
        }
        found = scores.summary()["baselines"]
        for name, values in errors.items():
            assert found[name]["MAE"] == pytest.approx(statistics.fmean(values))
            assert found[name]["MeanAbsoluteError"] == pytest.approx(statistics.fmean(values))


def test_the_last_class_and_the_majority_are_scored_beside_a_classifier():
    target = [0, 0, 1, 1, 1, 0, 2, 1]
    scores = Scores(metrics.Accuracy(), loss=functional.cross_entropy)
    both = torchmetrics.Accuracy(task="multiclass", num_classes=3, average="micro")
    other = Scores([both], loss=functional.cross_entropy)
    for k in target:
        for one in (scores, other):
            one.update(torch.zeros(1, 3), torch.tensor([k]))
    last = sum(a == b for a, b in pairwise(target)) / 7
    # A class is the majority until another one has come more often.
    majority = sum(a == b for a, b in zip((0, 0, 0, 0, 1, 1, 1), target[1:], strict=True)) / 7
    found = scores.summary()["baselines"]
    assert found["last class"]["Accuracy"] == pytest.approx(last)
    assert found["majority"]["Accuracy"] == pytest.approx(majority)
    found = other.summary()["baselines"]
    assert found["last class"]["MulticlassAccuracy"] == pytest.approx(last)
    assert found["majority"]["MulticlassAccuracy"] == pytest.approx(majority)


def summary(error, metric):
    scores = Scores(metric, 10, loss=functional.mse_loss)
    for k in range(30):
        scores.update(torch.tensor([k % 5 + error]), torch.tensor([float(k % 5)]))
    return scores.summary()


@pytest.mark.parametrize("metric", [metrics.MAE, metrics.R2, torchmetrics.R2Score])
def test_a_learner_that_is_behind_a_baseline_is_told_in_words_and_one_that_is_ahead_is_not(metric):
    behind = summary(3.0, metric())["behind"]
    assert len(behind) == 2
    assert "behind the baseline 'mean'" in behind[1]
    assert "over the last 10 samples" in behind[1]
    assert summary(0.1, metric())["behind"] == []


def test_without_metrics_the_usual_one_of_the_loss_is_scored():
    assert set(summary(1.0, None)["scores"]) == {"MAE"}
    scores = Scores(loss=torch.nn.BCELoss())
    scores.update(torch.tensor([[0.7]]), torch.tensor([[1.0]]))
    assert scores.summary()["scores"] == {"Accuracy": 1.0}
    assert Scores(loss=lambda y, target: y.sum()).summary()["scores"] == {}


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("by", [0, 3, 90])
def test_of_late_labels_the_baselines_know_what_had_come_when_the_sample_was_predicted(by, engine):
    values = torch.randn(300, generator=torch.Generator().manual_seed(0)).cumsum(0)
    data = [hl.Sample(torch.zeros(1), value[None]) for value in values]
    learner = hl.Learner(hl.Network.feedforward(torch.nn.Linear(1, 1)), functional.mse_loss)
    *_, last = evaluate(learner, streams.delayed(data, by), metrics.MAE(), engine=engine)
    found, late = last.baselines, by + 1
    # The label of sample k has come when sample k + by + 1 is predicted.
    assert found["last value"]["MAE"] == pytest.approx(
        (values[late:] - values[:-late]).abs().mean().item(), rel=1e-4
    )
    means = values.cumsum(0)[:-late] / torch.arange(1, 301 - late)
    assert found["mean"]["MAE"] == pytest.approx((values[late:] - means).abs().mean().item(), rel=1e-4)


def test_classes_and_targets_that_come_at_once_count_among_late_labels_and_a_checkpoint_keeps_what_was_known():
    def scored(cut):
        scores = Scores(metrics.Accuracy(), loss=functional.cross_entropy)
        y = torch.zeros(1, 2)
        events = [
            (y, 0, None),
            "a",
            (y, 1, None),
            "b",
            (y, 1, None),
            (y, 0, "a"),
            (y, 1, "b"),
            (y, 0, "never seen"),
        ]
        for k, event in enumerate(events):
            if k == cut:
                state = scores.state_dict()
                scores = Scores(metrics.Accuracy(), loss=functional.cross_entropy)
                scores.load_state_dict(state)
            if isinstance(event, str):
                scores.predicted(event)
            else:
                scores.update(event[0], torch.tensor([event[1]]), event[2])
        return scores.summary()["baselines"]

    # Pairs of the last class and the target: (0, 1), (1, 1), (0, 0) of "a" and (1, 1) of "b".
    for cut in range(9):
        assert scored(cut)["last class"] == {"Accuracy": 0.75}
