"""`evaluate` by either engine, and taken up again from a checkpoint: as if it had never been stopped."""

import pytest
import torch
import torchmetrics
from river import metrics
from torch import nn

import hamlearn as hl
from hamlearn import streams
from hamlearn.errors import CheckpointError, ConfigError
from hamlearn.evaluate import evaluate

CELL = {"order": "sequential", "credit": hl.Forward()}


def learner(**settings):
    torch.manual_seed(0)
    net = hl.Network.recurrent(nn.RNNCell(1, 6), nn.Linear(6, 1))
    return hl.Learner(net, nn.functional.mse_loss, hl.Hyper(tau=0.5, eta=0.5, beta=0.02), **(CELL | settings))


def signal(n=150):
    return streams.take(streams.signals.mackey_glass(tau=0.5), n)


def bare(n=150):
    """The same as a list, which has no state of its own."""
    return list(signal(n))


def told(evaluations):
    return [(e.k, e.moment, e.y.tolist(), e.scores, e.window) for e in evaluations]


def some():
    return {"mae": metrics.MAE(), "r2": metrics.R2(), "torch": torchmetrics.MeanSquaredError()}


@pytest.mark.parametrize("order", ["sequential", "parallel"])
def test_both_engines_tell_the_same(order):
    eager = told(evaluate(learner(order=order), signal(), some(), window=20))
    compiled = told(evaluate(learner(order=order), signal(), some(), window=20, engine="compiled", chunk=32))
    assert len(eager) == 150
    assert [row[:2] for row in eager] == [row[:2] for row in compiled]
    for one, other in zip(eager, compiled, strict=True):
        assert one[2] == pytest.approx(other[2], abs=1e-5)
        assert one[3] == pytest.approx(other[3], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("make", [signal, bare], ids=["stream", "list"])
@pytest.mark.parametrize("first", ["eager", "compiled"])
@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_an_evaluation_goes_on_from_a_checkpoint_as_if_it_had_not_been_stopped(tmp_path, make, first, engine):
    def begin(n):
        model, rows = learner(), []
        for e in evaluate(model, make(), some(), window=20, engine=first, chunk=32, resume=True):
            rows.append(e)
            if len(rows) == n:
                model.save(tmp_path / "checkpoint")
        return told(rows)

    whole = begin(70)
    again = learner()
    again.load(tmp_path / "checkpoint")
    rest = told(evaluate(again, make(), some(), window=20, engine=engine, chunk=32, resume=True))
    assert [row[:2] for row in rest] == [row[:2] for row in whole[70:]]
    if first == engine:
        assert rest == whole[70:]
    for one, other in zip(rest, whole[70:], strict=True):
        assert one[3] == pytest.approx(other[3], rel=1e-4, abs=1e-5)
        assert one[4] == pytest.approx(other[4], rel=1e-4, abs=1e-5)


def test_time_goes_on_too(tmp_path):
    data = [hl.Sample(s.u, s.target, 0.25 * (k % 3 + 1)) for k, s in enumerate(signal(60))]
    model, rows = learner(), []
    for e in evaluate(model, data, metrics.MAE(), unit="time"):
        rows.append((e.k, e.moment, e.scores))
        if e.k == 30:
            model.save(tmp_path / "checkpoint")
    again = learner()
    again.load(tmp_path / "checkpoint")
    rest = evaluate(again, data, metrics.MAE(), unit="time", resume=True)
    assert [(e.k, e.moment, e.scores) for e in rest] == rows[31:]


def test_a_metric_that_cannot_be_resumed_is_refused_by_name_before_anything_is_run():
    taken = []

    def source():
        for sample in signal(5):
            taken.append(1)
            yield sample

    with pytest.raises(ConfigError, match=r"'RollingROCAUC' .*cannot be saved and resumed exactly"):
        evaluate(learner(), source(), metrics.RollingROCAUC(), resume=True)
    assert not taken


@pytest.mark.parametrize("make", [signal, bare], ids=["stream", "list"])
@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_checkpoint_without_metrics_does_not_have_them_begin_at_zero_without_a_word(tmp_path, make, engine):
    model = learner()
    for _ in model.run(make(), max_steps=40):
        pass
    model.save(tmp_path / "checkpoint")
    again = learner()
    again.load(tmp_path / "checkpoint")
    with pytest.raises(CheckpointError, match=r"stands at sample 40, but has loaded nothing of scores.* to go on"):
        list(evaluate(again, make(), metrics.MAE(), engine=engine, resume=True))


def test_what_cannot_be_compiled_or_resumed_is_named_with_the_remedy():
    class Own:
        def predict(self, u):
            return u

        def step(self, sample):
            return None

    for model, settings, message in (
        (Own(), {"resume": True}, "resume=True needs an hl.Learner, and this is a Own"),
        (Own(), {"engine": "compiled"}, 'engine="compiled" needs an hl.Learner'),
        (learner(), {"resume": True, "delay": 3}, "but delay=3: .* Leave delay out, or resume"),
        (learner(), {"engine": "compiled", "delay": lambda k, s: 1}, "but delay is a function"),
        (learner(), {"engine": "compiled", "unit": "time"}, "counts moments in steps"),
        (learner(), {"engine": "fast"}, "engine='fast' is not known"),
    ):
        with pytest.raises(ConfigError, match=message):
            evaluate(model, signal(), metrics.MAE(), **settings)


def late():
    return streams.delayed(bare(60), 7)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_labels_that_come_later_are_scored_by_the_answer_of_their_time(engine):
    plain, errors, answers, expected = learner(credit=hl.Cleared()), [], {}, []
    for event in late():
        if isinstance(event, hl.Label):
            errors.append(abs(float(answers[event.id]) - float(event.target)))
            plain.step(event)
        else:
            answers[event.id] = plain.predict(event.u, tau=event.tau)
            plain.step(event)
        expected.append(sum(errors) / len(errors) if errors else None)

    got = [
        e.scores.get("MAE") for e in evaluate(learner(credit=hl.Cleared()), late(), metrics.MAE(), engine=engine)
    ]
    assert got == pytest.approx(expected, abs=1e-6)


def test_labels_are_scored_by_the_prediction_that_was_made_and_not_by_a_step_with_dropout(tmp_path):
    def dropping():
        torch.manual_seed(0)
        net = hl.Network.feedforward(nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 1)))
        return hl.Learner(net, nn.functional.mse_loss)

    model, answers, errors, waiting = dropping(), {}, [], set()
    for number, e in enumerate(evaluate(model, late(), metrics.MAE(), resume=True)):
        if e.sample.target is None:
            answers[e.sample.id] = e.y
        else:
            assert torch.equal(e.y, answers[e.sample.id])
            errors.append(abs(float(e.y) - float(e.sample.target)))
        if number == 30:
            model.save(tmp_path / "checkpoint")
            waiting = set(list(answers)[len(errors) :])
    assert e.scores["MAE"] == pytest.approx(sum(errors) / len(errors))
    again = dropping()
    again.load(tmp_path / "checkpoint")
    rest = list(evaluate(again, late(), metrics.MAE(), resume=True))
    found = {e.sample.id: e.y for e in rest if e.sample.target is not None}
    assert len(waiting) in (7, 8)
    assert all(torch.equal(found[id], answers[id]) for id in waiting)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("what", ["u", "target"])
def test_samples_that_are_skipped_are_not_scored(engine, what):
    samples = bare(40)
    setattr(samples[20], what, torch.full_like(getattr(samples[20], what), float("nan")))
    model = learner(on_nonfinite="skip")
    rows = list(evaluate(model, samples, metrics.MAE(), window=5, engine=engine))
    assert [row.report.skipped for row in rows] == [k == 20 for k in range(40)]
    assert rows[20].scores == rows[19].scores
    good = [abs(float(row.y) - float(row.sample.target)) for k, row in enumerate(rows) if k != 20]
    assert rows[-1].scores["MAE"] == pytest.approx(sum(good) / len(good), abs=1e-5)


def test_samples_that_are_skipped_are_not_scored_with_a_delay_either():
    samples = bare(40)
    samples[20].target = torch.full_like(samples[20].target, float("nan"))
    *_, last = evaluate(learner(on_nonfinite="skip"), samples, metrics.MAE(), delay=3)
    assert last.scores["MAE"] < 10


def test_labels_that_come_after_a_resume_find_the_samples_of_before(tmp_path):
    model, got = learner(credit=hl.Cleared()), []
    for e in evaluate(model, late(), metrics.MAE(), resume=True):
        got.append(e.scores.get("MAE"))
        if len(got) == 50:
            model.save(tmp_path / "checkpoint")
    again = learner(credit=hl.Cleared())
    again.load(tmp_path / "checkpoint")
    rest = evaluate(again, late(), metrics.MAE(), resume=True)
    assert [e.scores.get("MAE") for e in rest] == got[50:]


def test_labels_of_their_own_are_not_delayed_further():
    with pytest.raises(hl.errors.SampleError, match="is a label of its own"):
        list(evaluate(learner(credit=hl.Cleared()), streams.delayed(bare(5), 1), metrics.MAE(), delay=2))
