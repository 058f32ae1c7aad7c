"""The benchmark of loss of plasticity: its problem and its steps are those of a literal loop."""

import copy

import pytest
import torch
from torch import nn

from benchmarks import plasticity
from benchmarks.plasticity import Learners, Problem, Setting


def test_targets_are_outputs_of_the_threshold_units():
    problem = Problem(runs=2, seed=3)
    slow, bits, targets = problem.hold()
    for step in (0, 17, 9_999):
        for run in range(2):
            x = torch.cat([slow[:, run], bits[step, :, run]])
            drive = torch.tensor(problem.signs[run], dtype=torch.float32) @ x
            fires = drive > torch.tensor(problem.threshold[run], dtype=torch.float32)
            assert targets[step, run] == (fires * torch.tensor(problem.outward[run])).sum()
    again, _, _ = problem.hold()
    assert (again != slow).sum(0).tolist() == [1, 1]


def network(learners, rate, run):
    inner, outer = nn.Linear(20, 5), nn.Linear(5, 1)
    with torch.no_grad():
        inner.weight.copy_(learners.state["inward"][:, :, rate, run].T)
        inner.bias.copy_(learners.state["bias"][:, rate, run])
        outer.weight.copy_(learners.state["outward"][None, :, rate, run])
        outer.bias.copy_(learners.state["shift"][rate, run])
    return nn.Sequential(inner, nn.ReLU(), outer)


@pytest.mark.parametrize("setting", [Setting("plain"), Setting("l2", 0.01), Setting("l2 start", 0.1)])
def test_a_learner_of_the_block_is_that_of_torch(setting):
    rates, runs = torch.tensor([0.01, 0.003]), 2
    learners = Learners(setting, "relu", rates, runs, torch.Generator().manual_seed(0))
    slow, bits, targets = Problem(runs, seed=1).hold()
    learners.state["slow"] = slow
    module = network(learners, 1, 0)
    first = copy.deepcopy(module)
    errors = learners.learn(bits[:50], targets[:50])
    decay = setting.strength if setting.method == "l2" else 0.0
    optimizer = torch.optim.SGD(module.parameters(), lr=0.003, weight_decay=decay)
    for step in range(50):
        x = torch.cat([slow[:, 0], bits[step, :, 0]])
        loss = (module(x)[0] - targets[step, 0]) ** 2
        torch.testing.assert_close(errors[step, 1, 0], loss.detach(), rtol=1e-3, atol=1e-5)
        optimizer.zero_grad()
        loss.backward()
        if setting.method == "l2 start":
            for own, start in zip(module.parameters(), first.parameters(), strict=True):
                own.grad.add_(own.detach() - start.detach(), alpha=setting.strength)
        optimizer.step()
    torch.testing.assert_close(network(learners, 1, 0)[0].weight, module[0].weight, rtol=1e-3, atol=1e-5)


def test_only_old_units_are_replaced_and_their_output_weight_is_zero():
    learners = Learners(
        Setting("replace", 1e-3), "relu", torch.tensor([0.01]), 3, torch.Generator().manual_seed(0)
    )
    slow, bits, targets = Problem(3, seed=1).hold()
    learners.state["slow"] = slow
    learners.learn(bits[:100], targets[:100])
    assert (learners.state["age"] == 100).all()
    learners.learn(bits[100:200], targets[100:200])
    assert learners.due == pytest.approx(0.0)
    replaced = learners.state["age"] == 0
    assert (replaced.sum(0) == 1).all()
    assert (learners.state["outward"][replaced] == 0).all()


def test_a_hidden_layer_has_the_rank_of_its_matrix():
    hidden = torch.zeros(32, 5, 1, 1)
    hidden[:, 0], hidden[:, 1] = torch.rand(32, 1, 1), torch.rand(32, 1, 1)
    assert plasticity.effective_rank(hidden).item() == 2
