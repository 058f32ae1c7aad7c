"""Test-then-train against plain loops that are obviously right."""

import functools
import itertools
import json
import math

import pytest
import torch
import torchmetrics
from river import metrics

import hamlearn as hl
from hamlearn import streams
from hamlearn.errors import CheckpointError, ConfigError, SampleError
from hamlearn.evaluate import evaluate, scored
from hamlearn.evaluate.scores import Scores
from tests.problems import random_samples


class Line:
    """A linear model learned by plain gradient descent, one sample at a time."""

    def __init__(self, size=1, rate=0.05):
        self.w = torch.zeros(size, dtype=torch.float64)
        self.rate = rate
        self.steps = []

    def predict(self, u):
        return (self.w * u).sum(-1, keepdim=True)

    def step(self, sample):
        self.steps.append(sample)
        if sample.target is not None:
            self.w = self.w + self.rate * float(sample.target - Line.predict(self, sample.u)) * sample.u


def problem(n=300, gaps=True):
    generator = torch.Generator().manual_seed(1)
    u = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    y = u @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 0.1 * torch.sin(torch.arange(n) / 20)
    missing = torch.rand(n, generator=generator) < 0.3
    taus = (0.1 + torch.rand(n, generator=generator)).tolist()
    return [hl.Sample(u[k], None if gaps and missing[k] else y[k : k + 1], taus[k]) for k in range(n)]


def close(a, b):
    return abs(a - b) < 1e-12


def test_without_delay_the_scores_are_those_of_predict_score_learn():
    model, errors, expected = Line(3), [], []
    for sample in problem():
        y = model.predict(sample.u)
        if sample.target is not None:
            errors.append(abs(float(y - sample.target)))
        expected.append((sum(errors) / len(errors), sum(errors[-20:]) / len(errors[-20:])) if errors else None)
        model.step(sample)
    got = list(evaluate(Line(3), problem(), metrics.MAE(), window=20))
    assert [e.k for e in got] == list(range(300))
    for evaluation, scores in zip(got, expected, strict=True):
        if scores is None:
            assert evaluation.scores == {}
        else:
            assert close(evaluation.scores["MAE"], scores[0])
            assert close(evaluation.window["MAE"], scores[1])


@pytest.mark.parametrize("d", [1, 2, 7, 1000])
def test_targets_that_come_d_steps_late_are_scored_as_in_a_plain_loop(d):
    data = problem()
    model, predictions, errors = Line(3), [], []

    def answer(k):
        if data[k].target is not None:
            errors.append(abs(float(predictions[k] - data[k].target)))
        model.step(data[k])

    for k, sample in enumerate(data):
        if k >= d:
            answer(k - d)
        predictions.append(model.predict(sample.u))
    for k in range(max(len(data) - d, 0), len(data)):
        answer(k)

    learner = Line(3)
    got = list(evaluate(learner, data, metrics.MAE(), delay=d))
    assert close(got[-1].scores["MAE"], sum(errors) / len(errors))
    assert torch.equal(learner.w, model.w)
    assert [e.k for e in got] == list(range(300))
    assert all(torch.equal(e.y, predictions[e.k]) for e in got)


def test_targets_that_come_some_time_late_are_scored_as_in_a_plain_loop():
    data, late = problem(), 2.3
    times = [0.0, *itertools.accumulate(s.tau for s in data[1:])]
    model, predictions, errors, answered = Line(3), [], [], 0
    for k, sample in enumerate(data):
        while answered < k and times[answered] + late <= times[k]:
            if data[answered].target is not None:
                errors.append(abs(float(predictions[answered] - data[answered].target)))
            model.step(data[answered])
            answered += 1
        predictions.append(model.predict(sample.u))
    for k in range(answered, len(data)):
        if data[k].target is not None:
            errors.append(abs(float(predictions[k] - data[k].target)))
        model.step(data[k])

    learner = Line(3)
    got = list(evaluate(learner, data, metrics.MAE(), delay=late, unit="time"))
    assert close(got[-1].scores["MAE"], sum(errors) / len(errors))
    assert torch.equal(learner.w, model.w)


def test_a_delay_of_three_steps_of_time_is_three_steps_whatever_rounding_says():
    data = [hl.Sample(s.u, s.target, tau=0.1) for s in problem(200)]
    got = list(evaluate(Line(3), data, metrics.MAE(), delay=0.3, unit="time"))
    assert {round(e.moment / 0.1) - e.k for e in got} == {3}


def test_delays_that_differ_answer_in_order_of_arrival_and_some_never():
    data = problem(6, gaps=False)
    delays = [5, 1, None, 0, 2, 1]
    learner = Line(3)
    got = list(evaluate(learner, data, metrics.MAE(), delay=lambda k, _: delays[k]))
    assert [e.k for e in got] == [2, 1, 3, 0, 4, 5] or [e.k for e in got] == [1, 2, 3, 0, 4, 5]
    assert [e.k for e in got if e.sample.target is None] == [2]


def test_no_prediction_is_made_by_a_learner_that_has_seen_the_target():
    class Spy(Line):
        def predict(self, u):
            assert not any(s.u is u for s in self.steps), "predicted after it was learned"
            return super().predict(u)

    for delay in (0, 1, 5, lambda k, _: (k * 7) % 5):
        spy = Spy(3)
        assert len(list(evaluate(spy, problem(60), metrics.MAE(), delay=delay))) == 60
        assert len(spy.steps) == 60


def test_waiting_samples_are_all_that_is_held():
    held = []

    class Count(Line):
        def step(self, sample):
            held.append(taken[0] - len(self.steps))
            super().step(sample)

    taken = [0]

    def source():
        for sample in problem(100):
            taken[0] += 1
            yield sample

    list(evaluate(Count(3), source(), metrics.MAE(), delay=4))
    assert max(held) == 5


def test_a_learner_is_scored_as_by_its_own_predictions():
    def learner():
        torch.manual_seed(0)
        net = hl.Network.recurrent(torch.nn.RNNCell(1, 8), torch.nn.Linear(8, 1))
        hyper = hl.Hyper(tau=0.5, eta=0.5, beta=0.02)
        return hl.Learner(net, torch.nn.functional.mse_loss, hyper, credit=hl.Forward())

    stream = streams.take(streams.signals.mackey_glass(), 80)
    plain, total = learner(), []
    for sample in stream:
        y = plain.predict(sample.u, tau=sample.tau)
        total.append(abs(float(y) - float(sample.target)))
        report = plain.step(sample)
        assert torch.equal(report.y, y)
    got = list(evaluate(learner(), stream, metrics.MAE()))
    assert close(got[-1].scores["MAE"], sum(total) / len(total))
    assert torch.equal(got[-1].report.y, got[-1].y)


def classes():
    return random_samples(200, 4, 4, (), classes=True)


class Guess:
    def predict(self, u):
        return u

    def step(self, sample):
        return None


def test_both_libraries_give_the_plain_accuracy_whole_and_windowed():
    right = [int(s.u.argmax()) == int(s.target) for s in classes()]
    both = {
        "river": metrics.Accuracy(),
        "torch": torchmetrics.classification.MulticlassAccuracy(4, average="micro"),
    }
    *_, last = evaluate(Guess(), classes(), both, window=30)
    for name in both:
        assert abs(last.scores[name] - sum(right) / 200) < 1e-6
        assert abs(last.window[name] - sum(right[-30:]) / 30) < 1e-6


def test_probabilities_go_to_metrics_that_ask_for_them():
    *_, last = evaluate(Guess(), classes(), metrics.CrossEntropy())
    exact = [float(torch.nn.functional.cross_entropy(s.u, s.target)) for s in classes()]
    assert abs(last.scores["CrossEntropy"] - sum(exact) / 200) < 1e-5


def test_a_single_output_is_the_logit_of_class_one():
    data = [hl.Sample(torch.tensor([x]), torch.tensor([t])) for x, t in ((2.0, 1), (-1.0, 1), (-3.0, 0))]
    *_, last = evaluate(Guess(), data, [metrics.Accuracy(), metrics.LogLoss()])
    exact = sum(math.log1p(math.exp(-x)) for x in (2.0, -1.0, 3.0)) / 3
    assert close(last.scores["Accuracy"], 2 / 3)
    assert abs(last.scores["LogLoss"] - exact) < 1e-6


def test_batches_and_a_function_of_ones_own_are_scored():
    batch = hl.Sample(torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [4.0]]))
    *_, last = evaluate(Guess(), [batch], metrics.MAE())
    assert last.scores["MAE"] == 1.5
    *_, last = evaluate(Guess(), [batch], metrics.MAE(), prepare=lambda y, t: (float(y.sum()), float(t.sum())))
    assert last.scores["MAE"] == 1.0


def test_what_cannot_be_evaluated_is_refused():
    good = (Guess(), [], metrics.MAE())
    for arguments, message in (
        ((object(), [], metrics.MAE()), "has no method predict"),
        ((Guess(), [], object()), "neither of torchmetrics"),
        ((Guess(), [], [metrics.MAE(), metrics.MAE()]), "two metrics called MAE"),
    ):
        with pytest.raises(ConfigError, match=message):
            evaluate(*arguments)
    for settings, message in (
        ({"unit": "days"}, "unit="),
        ({"delay": -1}, "delay=-1"),
        ({"delay": "soon"}, "delay='soon'"),
        ({"window": 0}, "window=0"),
        ({"window": 2.5}, "window=2.5"),
        ({"prepare": 3}, "prepare=3"),
    ):
        with pytest.raises(ConfigError, match=message):
            evaluate(*good, **settings)
    timeless = [hl.Sample(torch.zeros(1)), hl.Sample(torch.zeros(1))]
    with pytest.raises(SampleError, match="sample 1 does not say how much time"):
        list(evaluate(Guess(), timeless, metrics.MAE(), delay=1.0, unit="time"))
    with pytest.raises(ConfigError, match="delay is -1 for sample 0"):
        list(evaluate(Guess(), timeless, metrics.MAE(), delay=lambda k, sample: -1))
    for delay in (0, 1):
        with pytest.raises(SampleError, match="the stream holds a tuple"):
            list(evaluate(Line(3), [(torch.zeros(1, 3), torch.zeros(1, 1))], metrics.MAE(), delay=delay))
    sample = hl.Sample(torch.zeros(1), torch.zeros(1))
    with pytest.raises(ConfigError, match="'Metrics' does not come to a single number"):
        list(evaluate(Guess(), [sample], metrics.MAE() + metrics.MSE()))


def test_scoring_a_run_by_its_own_outputs_is_test_then_train():
    def learner(order):
        torch.manual_seed(0)
        net = hl.Network.recurrent(torch.nn.RNNCell(1, 8), torch.nn.Linear(8, 1))
        hyper = hl.Hyper(tau=0.5, eta=0.5, beta=0.02)
        return hl.Learner(net, torch.nn.functional.mse_loss, hyper, order=order, credit=hl.Forward())

    stream = streams.take(streams.signals.mackey_glass(), 60)
    for order in ("sequential", "parallel"):
        slow = [e.scores for e in evaluate(learner(order), stream, metrics.MAE())]
        fast = [e.scores for e in scored(learner(order).run(stream), Scores(metrics.MAE(), None, None))]
        assert slow == fast


@pytest.mark.parametrize(
    "make",
    [metrics.MAE, metrics.RMSE, metrics.R2, metrics.Accuracy, metrics.MacroF1, metrics.F1, metrics.CrossEntropy],
)
def test_metrics_go_on_to_the_bit_after_a_resume(make):
    numbers = make in (metrics.MAE, metrics.RMSE, metrics.R2)
    generator = torch.Generator().manual_seed(0)
    shape = (1,) if numbers else (2,)
    y = torch.randn(90, *shape, generator=generator)
    target = torch.randn(90, 1, generator=generator) if numbers else torch.randint(2, (90,), generator=generator)
    whole, first = Scores(make(), 7, None), Scores(make(), 7, None)
    for k in range(40):
        whole.update(y[k], target[k])
        first.update(y[k], target[k])
    second = Scores(make(), 7, None)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.read() == whole.read()
    for k in range(40, 90):
        whole.update(y[k], target[k])
        second.update(y[k], target[k])
        assert second.read() == whole.read()
    with pytest.raises(CheckpointError, match="Resume with the same metrics"):
        Scores({"other": make()}, 7, None).load_state_dict(first.state_dict())


@pytest.mark.parametrize("wrong", ["MAE", metrics.MAE, ["MAE"]])
def test_a_name_or_a_class_in_place_of_a_metric_is_named_with_the_remedy(wrong):
    with pytest.raises(ConfigError, match=r"river\.metrics\.MAE\(\)"):
        next(evaluate(Guess(), [hl.Sample(torch.zeros(1), torch.zeros(1))], wrong))


def two_classes(loss, outputs):
    """A learner that begins with small logits, and samples of which some are hard to tell."""
    generator = torch.Generator().manual_seed(1)
    u = torch.randn(300, 2, generator=generator)
    target = (u[:, 0] - u[:, 1] + 0.3 * torch.randn(300, generator=generator) > 0).long()
    torch.manual_seed(0)
    learner = hl.Learner(hl.Network.feedforward(torch.nn.Linear(2, outputs)), loss, hl.Hyper.from_sgd(lr=0.05))
    if outputs == 1:
        target = target[:, None].float()
    return learner, [hl.Sample(*pair) for pair in zip(u, target, strict=True)]


LOGITS = [
    (torch.nn.functional.binary_cross_entropy_with_logits, 1),
    (torch.nn.BCEWithLogitsLoss(), 1),
    (torch.nn.functional.cross_entropy, 2),
    (functools.partial(torch.nn.functional.cross_entropy, label_smoothing=0.1), 2),
    (torch.nn.CrossEntropyLoss(), 2),
]


@pytest.mark.filterwarnings("ignore:::torchmetrics")
@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize(("loss", "outputs"), LOGITS)
def test_torchmetrics_tell_of_logits_one_by_one_what_they_tell_of_all_at_once(loss, outputs, engine):
    task = {"task": "binary"} if outputs == 1 else {"task": "multiclass", "num_classes": 2}
    kinds = (torchmetrics.Accuracy, torchmetrics.F1Score, torchmetrics.AUROC, torchmetrics.CalibrationError)
    learner, samples = two_classes(loss, outputs)
    got = list(evaluate(learner, samples, [kind(**task) for kind in kinds], engine=engine))
    y = torch.stack([e.y for e in got]).squeeze(-1)
    target = torch.stack([e.sample.target for e in got]).squeeze(-1).long()
    # Many of the logits look like probabilities by themselves.
    assert ((y > 0) & (y < 1)).sum() > 50
    expected = [kind(**task)(y, target).item() for kind in kinds]
    assert list(got[-1].scores.values())[:3] == expected[:3]
    # A mean of probabilities, of which a sigmoid makes other last digits one by one than many at a time.
    assert abs(list(got[-1].scores.values())[3] - expected[3]) < 1e-6


def test_a_window_of_torchmetrics_takes_logits_for_logits_too():
    learner, samples = two_classes(torch.nn.functional.binary_cross_entropy_with_logits, 1)
    both = {"river": metrics.Accuracy(), "torch": torchmetrics.Accuracy(task="binary")}
    for e in itertools.islice(evaluate(learner, samples, both, window=20), 100):
        assert abs(e.window["river"] - e.window["torch"]) < 1e-6


@pytest.mark.filterwarnings("ignore:::torchmetrics")
def test_outputs_that_may_be_logits_or_not_are_refused_with_a_remedy_that_works():
    def own(y, target):
        return torch.nn.functional.cross_entropy(y, target)

    (learner, samples), auroc = two_classes(own, 2), torchmetrics.AUROC(task="multiclass", num_classes=2)
    with pytest.raises(
        ConfigError, match=r"'MulticlassAUROC'.*does not tell.*y\.softmax\(-1\)\[None\], target\[None\]"
    ):
        list(evaluate(learner, samples, auroc))
    (learner, _), auroc = two_classes(own, 2), torchmetrics.AUROC(task="multiclass", num_classes=2)
    got = list(evaluate(learner, samples, auroc, prepare=lambda y, target: (y.softmax(-1)[None], target[None])))
    y, target = torch.stack([e.y for e in got]), torch.stack([e.sample.target for e in got])
    assert got[-1].scores["MulticlassAUROC"] == torchmetrics.AUROC(task="multiclass", num_classes=2)(y, target)
    with pytest.raises(ConfigError, match=r"the output is \[-0\.5\].*y\.sigmoid\(\), target"):
        list(
            evaluate(
                Guess(), [hl.Sample(torch.tensor([-0.5]), torch.ones(1))], torchmetrics.Accuracy(task="binary")
            )
        )


def test_probabilities_are_left_to_torchmetrics_as_they_are():
    data = [hl.Sample(torch.tensor([p]), torch.tensor([t])) for p, t in ((0.4, 0), (0.9, 1), (0.2, 1), (0.3, 0))]
    *_, last = evaluate(Guess(), data, torchmetrics.Accuracy(task="binary"))
    assert last.scores["BinaryAccuracy"] == 0.75


def test_a_metric_that_needs_two_samples_is_not_a_number_before():
    generator = torch.Generator().manual_seed(0)
    data = [hl.Sample(*torch.randn(2, 1, generator=generator)) for _ in range(9)]
    got = list(evaluate(Guess(), data, torchmetrics.R2Score(), window=4))
    assert math.isnan(got[0].scores["R2Score"])
    assert math.isnan(got[0].window["R2Score"])
    for k, e in enumerate(got[1:], 1):
        for scores, first in ((e.scores, 0), (e.window, max(0, k - 3))):
            y, target = (torch.cat([getattr(s, name) for s in data[first : k + 1]]) for name in ("u", "target"))
            assert abs(scores["R2Score"] - torchmetrics.R2Score()(y, target).item()) < 1e-5


@pytest.mark.filterwarnings("ignore:::torchmetrics")
def test_a_window_over_a_metric_that_keeps_every_sample_is_refused():
    for metric in (torchmetrics.AUROC(task="binary"), torchmetrics.SpearmanCorrCoef()):
        with pytest.raises(ConfigError, match="cannot forget, as a window needs: it keeps every sample"):
            evaluate(Guess(), [], metric, window=5)
    evaluate(Guess(), [], torchmetrics.AUROC(task="binary", thresholds=10), window=5)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (metrics.ConfusionMatrix(), r"'ConfusionMatrix' does not come to a single number \(NotImplementedError\)"),
        (metrics.ClassificationReport(), "'ClassificationReport' does not come to a single number"),
        (
            torchmetrics.ConfusionMatrix(task="multiclass", num_classes=2),
            "'MulticlassConfusionMatrix' does not come to a single number",
        ),
        (
            torchmetrics.Accuracy(task="binary"),
            r"'BinaryAccuracy' \(torchmetrics\.BinaryAccuracy\) does not take a tensor of shape \(1, 2\)",
        ),
    ],
)
def test_a_metric_that_does_not_fit_is_named_with_the_remedy_at_the_first_sample(metric, message):
    learner, samples = two_classes(torch.nn.functional.cross_entropy, 2)
    with pytest.raises(ConfigError, match=message):
        next(evaluate(learner, samples, metric))


def test_what_prepare_makes_is_named_where_a_metric_does_not_take_it():
    sample = hl.Sample(torch.zeros(1), torch.zeros(1))
    with pytest.raises(ConfigError, match=r"'MAE' \(river\.MAE\) does not take 'high' as a prediction and 1\.0"):
        next(evaluate(Guess(), [sample], metrics.MAE(), prepare=lambda y, target: ("high", 1.0)))
