"""Test-then-train against plain loops that are obviously right."""

import pytest
import torch
import torchmetrics
from river import metrics
from torch import nn

import hamlearn as hl
from hamlearn import streams
from hamlearn.errors import CheckpointError, ConfigError, SampleError
from hamlearn.evaluate import evaluate


class Line:
    """A linear model learned by plain gradient descent, one sample at a time."""

    def __init__(self):
        self.w = torch.zeros(3, dtype=torch.float64)
        self.seen = []

    def predict(self, u):
        assert not any(u is old for old in self.seen), "predicted after it was learned"
        return (self.w * u).sum(-1, keepdim=True)

    def step(self, sample):
        self.seen.append(sample.u)
        if sample.target is not None:
            self.w = self.w + 0.05 * float(sample.target - (self.w * sample.u).sum()) * sample.u


def problem(n=300):
    generator = torch.Generator().manual_seed(1)
    u = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    y = u @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 0.1 * torch.sin(torch.arange(n) / 20)
    missing = torch.rand(n, generator=generator) < 0.3
    return [hl.Sample(u[k], None if missing[k] else y[k : k + 1]) for k in range(n)]


def learner(**settings):
    torch.manual_seed(0)
    net = hl.Network.recurrent(nn.RNNCell(1, 6), nn.Linear(6, 1))
    settings = {"credit": hl.Forward()} | settings
    return hl.Learner(net, nn.functional.mse_loss, hl.Hyper(tau=0.5, eta=0.5, beta=0.02), **settings)


def signal(n=150):
    return streams.take(streams.signals.mackey_glass(tau=0.5), n)


def bare(n=150):
    """The same as a list, which has no state of its own."""
    return list(signal(n))


def some():
    return {"mae": metrics.MAE(), "r2": metrics.R2(), "torch": torchmetrics.MeanSquaredError()}


def row(e):
    return e.k, e.y.tolist(), e.scores, e.window, e.baselines


def rows(evaluations):
    return list(map(row, evaluations))


def test_the_scores_are_those_of_predict_score_and_learn():
    model, errors, expected = Line(), [], []
    for sample in problem():
        y = model.predict(sample.u)
        if sample.target is not None:
            errors.append(abs(float(y - sample.target)))
        expected.append((sum(errors) / len(errors), sum(errors[-20:]) / len(errors[-20:])) if errors else None)
        model.step(sample)
    for k, (e, scores) in enumerate(
        zip(evaluate(Line(), problem(), metrics.MAE(), window=20), expected, strict=True)
    ):
        found = None if scores is None else pytest.approx(scores, abs=1e-12)
        assert e.k == k
        assert (found is None and e.scores == {}) or (e.scores["MAE"], e.window["MAE"]) == found


def test_a_learner_is_scored_by_its_own_predictions():
    plain, total = learner(), []
    for sample in signal():
        y = plain.predict(sample.u, tau=sample.tau)
        total.append(abs(float(y) - float(sample.target)))
        assert torch.equal(plain.step(sample).y, y)
    *_, last = evaluate(learner(), signal(), metrics.MAE())
    assert last.scores["MAE"] == pytest.approx(sum(total) / len(total), abs=1e-12)
    assert torch.equal(last.report.y, last.y)


@pytest.mark.parametrize("order", ["sequential", "parallel"])
def test_both_engines_score_the_same(order):
    eager = rows(evaluate(learner(order=order), signal(), some(), window=20))
    compiled = rows(evaluate(learner(order=order), signal(), some(), window=20, engine="compiled", chunk=32))
    assert len(eager) == len(compiled) == 150
    for one, other in zip(eager, compiled, strict=True):
        assert one[0] == other[0]
        assert one[1] == pytest.approx(other[1], abs=1e-5)
        assert one[2] == pytest.approx(other[2], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("make", [signal, bare], ids=["stream", "list"])
@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_an_evaluation_goes_on_from_a_checkpoint_as_if_it_had_not_been_stopped(tmp_path, make, engine):
    model, whole = learner(), []
    for e in evaluate(model, make(), some(), window=20, engine=engine, chunk=32, resume=True):
        whole.append(row(e))
        if len(whole) == 70:
            model.save(tmp_path / "checkpoint")
    again = learner()
    again.load(tmp_path / "checkpoint")
    rest = evaluate(again, make(), some(), window=20, engine=engine, chunk=32, resume=True)
    assert rows(rest) == whole[70:]


@pytest.mark.parametrize("make", [signal, bare], ids=["stream", "list"])
def test_a_checkpoint_without_metrics_does_not_have_them_begin_at_zero_silently(tmp_path, make):
    model = learner()
    for _ in model.run(make(), max_steps=40):
        pass
    model.save(tmp_path / "checkpoint")
    again = learner()
    again.load(tmp_path / "checkpoint")
    with pytest.raises(CheckpointError, match="stands at sample 40, but has loaded nothing of scores"):
        list(evaluate(again, make(), metrics.MAE(), resume=True))


def late():
    return streams.delayed(bare(60), 7)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_labels_that_come_later_are_scored_by_the_answer_of_their_time(engine):
    plain, errors, answers, expected = learner(credit=hl.Cleared()), [], {}, []
    for event in late():
        if isinstance(event, hl.Label):
            errors.append(abs(float(answers[event.id]) - float(event.target)))
        else:
            answers[event.id] = plain.predict(event.u, tau=event.tau)
        plain.step(event)
        expected.append(sum(errors) / len(errors) if errors else None)
    got = evaluate(learner(credit=hl.Cleared()), late(), metrics.MAE(), engine=engine)
    assert [e.scores.get("MAE") for e in got] == pytest.approx(expected, abs=1e-6)


def test_labels_after_a_resume_are_scored_by_the_predictions_of_before(tmp_path):
    def dropping():
        torch.manual_seed(0)
        net = hl.Network.feedforward(nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 1)))
        return hl.Learner(net, nn.functional.mse_loss)

    model, answers, errors, scores = dropping(), {}, [], []
    for number, e in enumerate(evaluate(model, late(), metrics.MAE(), resume=True)):
        if e.sample.target is None:
            answers[e.sample.id] = e.y
        else:
            assert torch.equal(e.y, answers[e.sample.id])
            errors.append(abs(float(e.y) - float(e.sample.target)))
        scores.append(e.scores.get("MAE"))
        if number == 30:
            model.save(tmp_path / "checkpoint")
    assert scores[-1] == pytest.approx(sum(errors) / len(errors))
    again = dropping()
    again.load(tmp_path / "checkpoint")
    rest = evaluate(again, late(), metrics.MAE(), resume=True)
    assert [e.scores.get("MAE") for e in rest] == scores[31:]


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("what", ["u", "target"])
def test_samples_that_are_skipped_are_not_scored(engine, what):
    samples = bare(40)
    setattr(samples[20], what, torch.full_like(getattr(samples[20], what), float("nan")))
    model = learner(on_nonfinite="skip")
    got = list(evaluate(model, samples, metrics.MAE(), window=5, engine=engine))
    assert [e.report.skipped for e in got] == [k == 20 for k in range(40)]
    good = [abs(float(e.y) - float(e.sample.target)) for k, e in enumerate(got) if k != 20]
    assert got[-1].scores["MAE"] == pytest.approx(sum(good) / len(good), abs=1e-5)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_scores_and_baselines_are_in_the_unit_of_the_data_if_a_stream_scales_the_target(engine):
    u = torch.randn(200, 1, 3, generator=torch.Generator().manual_seed(0))
    data = [hl.Sample(row, 500 + 20 * row.sum(-1, keepdim=True)) for row in u]
    torch.manual_seed(0)
    model = hl.Learner(hl.Network.feedforward(nn.Linear(3, 1)), nn.functional.mse_loss, hl.Hyper.from_sgd(lr=0.05))
    scaled = streams.standardize(data, scale_target=True)
    got = list(evaluate(model, scaled, metrics.MAE(), window=50, engine=engine))
    assert [e.target.item() for e in got] == [sample.target.item() for sample in data]
    errors = [abs(e.y.item() - e.target.item()) for e in got]
    assert got[-1].scores["MAE"] == pytest.approx(sum(errors) / 200, rel=1e-6)
    assert got[-1].window["MAE"] < 5
    assert 20 < got[-1].baselines["mean"]["MAE"] < 40


def test_several_metrics_are_given_one_by_one_as_a_sum_or_as_a_collection():
    expected = {"MAE", "MSE"}
    collection = torchmetrics.MetricCollection([torchmetrics.MeanSquaredError(), torchmetrics.MeanAbsoluteError()])
    for given in (
        (metrics.MAE(), metrics.MSE()),
        (metrics.MAE() + metrics.MSE(),),
        ([metrics.MAE(), metrics.MSE()],),
    ):
        *_, last = evaluate(Line(), problem(30), *given, window=10)
        assert set(last.scores) == set(last.window) == expected
    *_, last = evaluate(Line(), problem(30), collection, metrics.MAE())
    assert set(last.scores) == {"MeanSquaredError", "MeanAbsoluteError", "MAE"}


class Own:
    def predict(self, u):
        return u

    def step(self, sample):
        return None


@pytest.mark.parametrize(
    ("model", "given", "settings", "message"),
    [
        (object(), [metrics.MAE()], {}, "has no method predict"),
        (Own(), [object()], {}, "neither of torchmetrics"),
        (Own(), [metrics.MAE(), metrics.MAE()], {}, "two metrics called MAE"),
        (Own(), ["MAE"], {}, r"river\.metrics\.MAE\(\)"),
        (Own(), [metrics.MAE], {}, r"river\.metrics\.MAE\(\)"),
        (Own(), [metrics.MAE()], {"window": 0}, "window=0"),
        (Own(), [metrics.MAE()], {"window": 2.5}, "window=2.5"),
        (Own(), [metrics.MAE()], {"prepare": 3}, "prepare=3"),
        (Own(), [metrics.MAE()], {"resume": True}, "resume=True needs an hl.Learner, got Own"),
        (Own(), [metrics.MAE()], {"engine": "compiled"}, 'engine="compiled" needs an hl.Learner'),
        (learner(), [metrics.MAE()], {"engine": "fast"}, "engine='fast' is not known"),
        (learner(), [metrics.RollingROCAUC()], {"resume": True}, "'RollingROCAUC' .*cannot be saved and resumed"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_anything_runs(model, given, settings, message):
    with pytest.raises(ConfigError, match=message):
        evaluate(model, [], *given, **settings)


def test_a_stream_of_other_things_is_named():
    with pytest.raises(SampleError, match=r"must yield hl\.Sample, but yields tuple"):
        list(evaluate(Own(), [(torch.zeros(1, 3), torch.zeros(1, 1))], metrics.MAE()))
    with pytest.raises(SampleError, match="does not take labels that come later"):
        list(evaluate(Own(), [hl.Label(1, torch.zeros(1))], metrics.MAE()))
