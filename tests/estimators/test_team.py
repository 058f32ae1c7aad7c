"""Networks of an estimator learn as learners of their own would, and begin again as the best of their shape."""

import numpy as np
import pytest
import torch

import hamlearn as hl
from hamlearn.estimators.team import EPS, KEEP, Member, Team

INPUTS, ROWS = 5, 120
U = torch.from_numpy(np.random.default_rng(0).normal(size=(ROWS, INPUTS))).float()
TARGET = torch.stack([U[:, 0] * U[:, 1], U[:, 2]], 1)


def loss(y, target):
    return ((y - target) ** 2).sum()


def learned(team):
    carry = list(team.carry)
    outputs = []
    for u, target in zip(U, TARGET, strict=True):
        carry, y = team.step(carry, u, target, loss)
        outputs.append(y)
    return carry, torch.stack(outputs)


def hyper(member):
    return hl.Hyper(beta=member.rate if member.rule == "sgd" else hl.Adaptive(member.rate, keep=KEEP, eps=EPS))


@pytest.mark.parametrize(
    "member",
    [Member("z", (), "sgd", 0.02), Member("z", (7,), "sgd", 0.02, "tanh"), Member("z", (7, 3), "rms", 0.001)],
)
def test_each_member_learns_as_a_learner_of_its_own(member):
    team = Team([Member("z", (4,), "rms", 0.01), member], [(0, INPUTS)] * 2, 2, seed=0)
    own = Team([Member("z", (4,), "rms", 0.01), member], [(0, INPUTS)] * 2, 2, seed=0).nets[1].requires_grad_()
    learner = hl.Learner(hl.Network.feedforward(own), loss, hyper(member))
    reports = [learner.step(hl.Sample(u, target)) for u, target in zip(U, TARGET, strict=True)]
    carry, outputs = learned(team)
    torch.testing.assert_close(outputs[:, 1], torch.stack([report.y for report in reports]), rtol=1e-4, atol=1e-5)
    found = dict(zip(team.named, carry, strict=True))
    for name, weight in own.named_parameters():
        torch.testing.assert_close(found[f"nets.1.{name}"], weight.detach(), rtol=1e-4, atol=1e-5)


def test_the_recurrent_layer_has_the_credit_of_sensitivity():
    member = Member("h", (), "rms", 0.002)
    team = Team([member], [(INPUTS, INPUTS + 64)], 2, seed=0, memory=(0, INPUTS))
    own = Team([member], [(INPUTS, INPUTS + 64)], 2, seed=0, memory=(0, INPUTS)).requires_grad_()
    network = hl.Network.recurrent(own.memory.cell, own.nets[0])
    learner = hl.Learner(network, loss, hyper(member), credit=hl.Sensitivity())
    reports = [learner.step(hl.Sample(u[None], target[None])) for u, target in zip(U, TARGET, strict=True)]
    carry, outputs = learned(team)
    torch.testing.assert_close(outputs, torch.stack([report.y for report in reports]), rtol=1e-3, atol=1e-4)
    found = dict(zip(team.named, carry, strict=True))
    for name, weight in own.named_parameters():
        torch.testing.assert_close(found[name], weight.detach(), rtol=1e-3, atol=1e-4)


def test_a_member_begins_again_as_the_best_sound_one_of_its_shape_or_from_first_weights():
    members = [
        Member("z", (3,), "rms", 0.01),
        Member("z", (3,), "rms", 0.001),
        Member("z", (3,), "sgd", 0.01),
        Member("z", (4,), "rms", 0.01),
    ]
    team, first = (Team(members, [(0, INPUTS)] * 4, 2, seed=0) for _ in range(2))
    for tensor, new in zip(team.carry, learned(team)[0], strict=True):
        tensor.copy_(new)
    for index in (0, 3):
        team.named[f"nets.{index}.0.weight"].fill_(float("nan"))
    assert [team.sound(index) for index in range(4)] == [False, True, True, False]
    team.restart(0, [3, 2, 1])  # the best one has another shape
    team.restart(3, [2, 1])
    for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
        assert torch.equal(team.named[f"nets.0.{name}"], team.named[f"nets.2.{name}"])
        assert torch.equal(team.named[f"nets.3.{name}"], first.named[f"nets.3.{name}"])
        assert not team.named[f"nets.0.{name}.v"].any()
    team.restart(2, [1])
    team.restart(0, [1])
    assert torch.equal(team.named["nets.2.0.weight"], team.named["nets.1.0.weight"])
    assert torch.equal(team.named["nets.0.0.weight.v"], team.named["nets.1.0.weight.v"])


def test_a_recurrent_layer_that_diverges_forgets_and_begins_again():
    model = hl.estimators.Classifier()
    X = np.random.default_rng(0).normal(size=(600, 3))
    y = (X[:, 0] > 0).astype(int)
    model.learn_many(X[:300], y[:300])
    named = model._pipeline.team.named
    named["past.h"].fill_(float("nan"))
    named["memory.cell.weight_reset"].fill_(float("nan"))
    assert (model.predict_then_learn(X[300:], y[300:]) == y[300:]).mean() > 0.9
    for name, tensor in named.items():
        assert tensor.isfinite().all(), name
