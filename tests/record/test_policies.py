"""What is kept, and that nothing else is measured."""

import pytest
import torch
from river import metrics

import hamlearn as hl
from hamlearn import record
from hamlearn.errors import CheckpointError, ConfigError
from hamlearn.evaluate import Evaluation, Scores
from hamlearn.sample import Sample, StepReport


def report(k, loss=True):
    return StepReport(float(k), torch.zeros(1), torch.tensor(float(k)) if loss else None, Sample(torch.zeros(1)))


def test_every_nth_step_is_kept():
    memory = record.Memory(7, ("step", "loss"))
    recorder = record.Recorder(None, memory)
    for k in range(1, 31):
        recorder.take(report(k, loss=k != 14))
    assert memory.rows == [{"step": k, "loss": None if k == 14 else k} for k in (7, 14, 21, 28)]


def test_memory_keeps_the_last_rows():
    memory = record.Memory(fields=("step",), last=4)
    recorder = record.Recorder(None, memory)
    for k in range(1, 31):
        recorder.take(report(k))
    assert memory.column("step") == [27, 28, 29, 30]


def test_only_what_is_kept_is_measured():
    measured = []
    memory = record.Memory(10, ("step", "mine"))
    recorder = record.Recorder(None, memory, fields={"mine": lambda r, _: measured.append(r.t) or r.t})
    for k in range(1, 31):
        recorder.take(report(k))
    assert measured == [10.0, 20.0, 30.0]
    assert memory.column("mine") == measured


def test_norms_are_those_of_the_learners_state(learner, stream):
    memory = record.Memory()
    with record.Recorder(learner, memory) as recorder:
        for got in recorder(learner.run(stream)):
            row, state = memory.rows[-1], learner.state
            assert row["h"] == pytest.approx(float(state.h.norm()), rel=1e-6)
            assert row["z"] == pytest.approx(float(state.z.norm()), rel=1e-6)
            omega = torch.cat([x.flatten() for x in state.omega.values()])
            theta = torch.cat([x.detach().flatten() for x in learner.network.parameters()])
            assert row["omega"] == pytest.approx(float(omega.norm()), rel=1e-5)
            assert row["theta"] == pytest.approx(float(theta.norm()), rel=1e-5)
            assert row["loss"] == float(got.loss)
            assert row["hamiltonian"] == float(got.hamiltonian)
    assert memory.column("step") == list(range(1, 61))


def test_recording_does_not_change_what_is_learned(learner, stream):
    def weights():
        torch.manual_seed(0)
        return [p.clone() for p in learner.network.parameters()]

    start = weights()
    for _ in learner.run(stream):
        pass
    plain = weights()
    with torch.no_grad():
        for p, s in zip(learner.network.parameters(), start, strict=True):
            p.copy_(s)
    again = hl.Learner(learner.network, torch.nn.functional.mse_loss, learner.hyper, credit=learner.credit)
    recorder = record.Recorder(again, record.Memory(), record.Memory(3))
    for _ in recorder(again.run(stream)):
        pass
    assert all(torch.equal(a, b) for a, b in zip(plain, weights(), strict=True))


def test_evaluations_bring_their_scores_along():
    memory = record.Memory(fields=("step",))
    recorder = record.Recorder(None, memory)
    scores = Scores(metrics.MAE(), 1, loss=torch.nn.functional.mse_loss)
    for y in (0.75, 0.25):
        scores.update(torch.tensor([y]), torch.zeros(1))
    recorder.take(Evaluation(0, Sample(torch.zeros(1)), None, None, report(1), scores))
    own = {"step": 1, "MAE": 0.5, "MAE (window)": 0.25}
    assert memory.rows == [own | {"MAE (last value)": 0.0, "MAE (mean)": 0.0}]


def test_what_cannot_be_recorded_is_refused():
    with pytest.raises(ConfigError, match="every=0 keeps nothing"):
        record.Memory(0)
    with pytest.raises(ConfigError, match=r"field 'speed' is not known. Known are bad, dropped, h"):
        record.Recorder(None, record.Memory(fields=("speed",)))
    with pytest.raises(CheckpointError, match="of 1 sinks, but this recorder has 0"):
        record.Recorder(None).load_state_dict({"step": 0, "sinks": [{}]})


def test_local_learners_are_recorded_like_any_other():
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    learner = hl.local.LocalLearner(net, torch.nn.functional.mse_loss, hl.Hyper(beta=0.01), align=True)
    memory = hl.record.Memory()
    with hl.record.Recorder(learner, memory) as recorder:
        for _ in recorder(learner.run([hl.Sample(torch.ones(1, 2), torch.ones(1, 2))] * 6)):
            pass
    assert len(memory.rows) == 6
    assert all(row["theta"] > 0 for row in memory.rows)
