"""Norms of every step come with the compiled steps, and no step is repeated for them."""

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn import record, streams
from hamlearn.engine.blocks.runner import StepRunner

NAMES = ("h", "z", "omega", "theta")


def feedforward():
    return hl.Learner(hl.Network.feedforward(nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 1))), loss)


def recurrent():
    return hl.Learner(hl.Network.recurrent(nn.RNNCell(1, 5), nn.Linear(5, 1)), loss, credit=hl.Forward())


def frozen():
    learner = hl.Network.recurrent(nn.GRUCell(1, 5), nn.Linear(5, 1))
    learner.output.requires_grad_(False)
    return hl.Learner(learner, loss)


loss = nn.functional.mse_loss


@pytest.fixture
def blocks(monkeypatch):
    """The sizes of the blocks that were taken."""
    taken, take = [], StepRunner.take

    def counted(self, block, plan):
        taken.append(block.count)
        return take(self, block, plan)

    monkeypatch.setattr(StepRunner, "take", counted)
    return taken


@pytest.mark.parametrize(("make", "once"), [(feedforward, True), (recurrent, True), (frozen, False)])
def test_norms_of_every_compiled_step_are_those_of_the_state(make, once, blocks):
    samples = list(streams.take(streams.signals.mackey_glass(), 64))
    torch.manual_seed(0)
    learner, memory = make(), record.Memory()
    with record.Recorder(learner, memory) as recorder:
        for _ in recorder(learner.run(samples, engine="compiled", chunk=32)):
            pass
    # Weights that are not learned are no part of what a step carries: then the state is looked at.
    assert (blocks == [32, 32]) is once
    torch.manual_seed(0)
    learner = make()
    for row, _ in zip(memory.rows, learner.run(samples, engine="compiled", chunk=32), strict=True):
        for name, norm in record.fields.norms(learner, NAMES).items():
            assert row[name] == (norm and pytest.approx(norm, rel=1e-5)), (row["step"], name)


def test_at_the_end_of_a_sequence_the_state_is_that_of_the_next_one(blocks):
    samples = [hl.Sample(torch.ones(1), torch.ones(1), boundary=k % 8 == 7) for k in range(16)]
    torch.manual_seed(0)
    learner, memory = recurrent(), record.Memory(fields=("step", "h", "z"))
    with record.Recorder(learner, memory) as recorder:
        for _ in recorder(learner.run(samples, engine="compiled")):
            pass
    assert [row["step"] for row in memory.rows if row["h"] == row["z"] == 0] == [8, 16]


def test_after_the_recording_steps_give_no_norms():
    learner = recurrent()
    recorder = record.Recorder(learner, record.Memory())
    samples = list(streams.take(streams.signals.mackey_glass(), 8))
    assert all(report.norms for report in learner.run(samples, engine="compiled"))
    recorder.close()
    assert not any(report.norms for report in learner.run(samples, engine="compiled"))
