"""What a metric is given is decided by the loss and the target, for both libraries, or refused with a remedy."""

import functools

import pytest
import torch
import torchmetrics
from river import metrics
from torch import nn
from torch.nn import functional

import hamlearn as hl
from hamlearn.errors import ConfigError, SampleError
from hamlearn.evaluate import Scores, evaluate

N = 300


def problem():
    """Inputs, and for each whether it is of class 1."""
    generator = torch.Generator().manual_seed(1)
    u = torch.randn(N, 1, 3, generator=generator)
    noise = 0.3 * torch.randn(N, 1, generator=generator)
    return u, (u.sum(-1) + noise > 0).long()


def own_hinge(y, target):
    return functional.relu(1 - y * target).mean()


def own_nll(y, target):
    return functional.nll_loss(y.log(), target)


def flat(target):
    return target[:, None].float()


def signs(target):
    return 2 * flat(target) - 1


def one_hot(target):
    return functional.one_hot(target, 2).float()


SINGLE = nn.Linear(3, 1)
PAIR = nn.Linear(3, 2)
CASES = {
    "BCELoss": (nn.Sequential(SINGLE, nn.Sigmoid()), nn.BCELoss(), flat, 0.5),
    "binary_cross_entropy": (nn.Sequential(SINGLE, nn.Sigmoid()), functional.binary_cross_entropy, flat, 0.5),
    "BCEWithLogitsLoss": (SINGLE, nn.BCEWithLogitsLoss(), flat, 0.0),
    "soft margin, -1 and 1": (SINGLE, functional.soft_margin_loss, signs, 0.0),
    "one-hot, cross_entropy": (PAIR, functional.cross_entropy, one_hot, None),
    "one-hot, squared error": (PAIR, functional.mse_loss, one_hot, None),
    "one-hot, binary": (PAIR, functional.binary_cross_entropy_with_logits, one_hot, None),
    "partial": (PAIR, functools.partial(functional.cross_entropy, label_smoothing=0.1), lambda t: t, None),
    "softmax, own loss": (nn.Sequential(PAIR, nn.Softmax(-1)), own_nll, lambda t: t, None),
    "log-softmax, nll": (nn.Sequential(PAIR, nn.LogSoftmax(-1)), nn.NLLLoss(), lambda t: t, None),
    "multi margin": (PAIR, functional.multi_margin_loss, lambda t: t, None),
}


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("case", CASES)
def test_the_accuracy_of_both_libraries_is_that_of_a_plain_loop(case, engine):
    module, loss, coded, threshold = CASES[case]
    torch.manual_seed(0)
    if case == "multi margin" and engine == "compiled":
        pytest.skip("its backward pass has no loops")
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    u, truth = problem()
    targets = [coded(one) for one in truth]
    learner = hl.Learner(hl.Network.feedforward(module), loss, hl.Hyper.from_sgd(lr=0.05))
    both = {
        "river": metrics.Accuracy(),
        "binary": torchmetrics.Accuracy(task="binary"),
        "multiclass": torchmetrics.Accuracy(task="multiclass", num_classes=2),
    }
    got = list(evaluate(learner, map(hl.Sample, u, targets), both, window=50, engine=engine))
    right = []
    for e, one in zip(got, truth, strict=True):
        found = e.y.argmax(-1) if threshold is None else (e.y > threshold).long().squeeze(-1)
        right.append(bool(found == one))
    for name in both:
        assert got[-1].scores[name] == pytest.approx(sum(right) / N, abs=1e-6), name
        assert got[-1].window[name] == pytest.approx(sum(right[-50:]) / 50, abs=1e-6), name
    assert sum(right) / N > 0.8


def scored(pairs, *given, loss=None):
    scores = Scores(list(given), loss=loss)
    for y, target in pairs:
        scores.update(y, target)
    return scores.overall.get("", {})


def test_classes_lie_along_axis_1_of_sequences():
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(20, 2, 3, 5, generator=generator)
    target = torch.randint(3, (20, 2, 5), generator=generator)
    accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=3, average="micro")
    for loss in (functional.cross_entropy, lambda y, target: functional.cross_entropy(y, target)):
        found = scored(zip(y, target, strict=True), metrics.Accuracy(), accuracy, loss=loss)
        plain = (y.argmax(2) == target).float().mean().item()
        assert found["Accuracy"] == pytest.approx(plain, abs=1e-6)
        assert found["MulticlassAccuracy"] == pytest.approx(plain, abs=1e-6)
    # Classes last, and shapes that do not tell.
    for pair in (y[0].movedim(1, -1), target[0]), (torch.randn(1, 3, 3), torch.zeros(1, 3).long()):
        with pytest.raises(ConfigError, match=r"do not tell which axis .*prepare="):
            scored([pair], metrics.Accuracy())


def test_probabilities_go_to_metrics_that_ask_for_them():
    generator = torch.Generator().manual_seed(0)
    logits, target = torch.randn(50, 3, generator=generator), torch.randint(3, (50,), generator=generator)
    exact = functional.cross_entropy(logits, target).item()
    for outputs, loss in (
        (logits, functional.cross_entropy),
        (logits.log_softmax(1), functional.nll_loss),
        (logits.softmax(1), functional.nll_loss),
        (logits.softmax(1), own_nll),
    ):
        found = scored(zip(outputs, target, strict=True), metrics.CrossEntropy(), loss=loss)
        assert found["CrossEntropy"] == pytest.approx(exact, abs=1e-5)
    single, bits = torch.randn(50, 1, generator=generator), torch.randint(2, (50, 1), generator=generator).float()
    exact = functional.binary_cross_entropy_with_logits(single, bits).item()
    for outputs, loss in (
        (single, functional.binary_cross_entropy_with_logits),
        (single.sigmoid(), functional.binary_cross_entropy),
    ):
        found = scored(zip(outputs, bits, strict=True), metrics.LogLoss(), loss=loss)
        assert found["LogLoss"] == pytest.approx(exact, abs=1e-5)


@pytest.mark.filterwarnings("ignore:::torchmetrics")
def test_torchmetrics_score_logits_one_by_one_as_all_at_once():
    generator = torch.Generator().manual_seed(0)
    # Many of the logits look like probabilities by themselves.
    y, target = torch.rand(60, 1, 2, generator=generator), torch.randint(2, (60, 1), generator=generator)
    kinds = (torchmetrics.F1Score, torchmetrics.AUROC, torchmetrics.CalibrationError)
    given = [kind(task="multiclass", num_classes=2) for kind in kinds]
    found = scored(zip(y, target, strict=True), *given, loss=functional.cross_entropy)
    expected = [kind(task="multiclass", num_classes=2)(y[:, 0].softmax(1), target[:, 0]).item() for kind in kinds]
    assert list(found.values()) == pytest.approx(expected, abs=1e-6)


def test_several_labels_go_to_metrics_for_several_labels():
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(40, 1, 3, generator=generator)
    target = torch.randint(2, (40, 1, 3), generator=generator).float()
    metric = torchmetrics.Accuracy(task="multilabel", num_labels=3, average="micro")
    found = scored(zip(y, target, strict=True), metric, loss=functional.binary_cross_entropy_with_logits)
    assert found["MultilabelAccuracy"] == pytest.approx(((y > 0) == target.bool()).float().mean().item(), abs=1e-6)
    with pytest.raises(ConfigError, match=r"several labels, or numbers.*prepare="):
        scored(zip(y, target, strict=True), metrics.Accuracy(), loss=functional.binary_cross_entropy_with_logits)


@pytest.mark.parametrize(
    ("loss", "coded", "threshold"),
    [
        (functional.mse_loss, signs, 0.0),
        (functional.mse_loss, flat, 0.5),
        (own_hinge, signs, 0.0),
        (None, flat, 0.0),
    ],
)
def test_a_threshold_that_the_loss_leaves_open_is_asked_for_and_given_by_prepare(loss, coded, threshold):
    u, truth = problem()
    outputs, targets = u.sum(-1, keepdim=True), [coded(one) for one in truth]
    message = r"prepare=lambda y, target: \(int\(y > 0\), int\(target > 0\)\).* y > 0\.5"
    with pytest.raises(ConfigError, match=message):
        scored(zip(outputs, targets, strict=True), metrics.Accuracy(), loss=loss)
    scores = Scores(metrics.Accuracy(), None, lambda y, target: (int(y > threshold), int(target > 0)), loss)
    for pair in zip(outputs, targets, strict=True):
        scores.update(*pair)
    right = (outputs.flatten() > threshold) == truth.flatten()
    assert scores.overall[""]["Accuracy"] == pytest.approx(right.float().mean().item(), abs=1e-6)


def test_what_the_loss_leaves_open_is_refused_with_a_remedy():
    with pytest.raises(ConfigError, match=r"takes probabilities.*prepare="):
        scored([(torch.randn(1, 3), torch.zeros(1).long())], metrics.CrossEntropy())
    with pytest.raises(SampleError, match=r"targets 0 and 1, but one is 0\.3"):
        scored([(torch.zeros(2, 1), torch.tensor([[0.0], [0.3]]))], metrics.Accuracy(), loss=nn.BCELoss())
    with pytest.raises(SampleError, match="the output has 2 and the target 1"):
        scored([(torch.zeros(1, 2), torch.zeros(1, 1))], metrics.MAE())
    scores = Scores(metrics.MAE(), None, lambda y, target: ("high", 1.0))
    scores.update(torch.zeros(1), torch.zeros(1))
    with pytest.raises(ConfigError, match=r"'MAE' \(river\.MAE\) does not take 'high' as a prediction and 1\.0"):
        scores.summary()


@pytest.mark.parametrize("metric", [metrics.ConfusionMatrix(), metrics.ClassificationReport()])
def test_a_metric_that_is_not_a_number_is_named(metric):
    with pytest.raises(ConfigError, match=r"does not come to a single number"):
        scored([(torch.zeros(1, 2), torch.zeros(1).long())], metric)
