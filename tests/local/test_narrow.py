"""Weights in fewer bits than everything is computed in: they are rounded when they move, and nothing else is."""

import copy

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.errors import ConfigError, SampleError
from hamlearn.local import Graph, LocalLearner, Residual
from tests.local.cases import layer
from tests.problems import random_samples

mse = nn.functional.mse_loss
WIDE = torch.float32
NETS = {
    "stack": lambda: nn.Sequential(*(layer(4, 4) for _ in range(4))),
    "gelu": lambda: nn.Sequential(*(Residual(nn.Sequential(nn.Linear(4, 4), nn.GELU())) for _ in range(3))),
    "cells": lambda: nn.Sequential(
        layer(4, 6), nn.LayerNorm(6), nn.ReLU(inplace=True), nn.Linear(6, 4, bias=False)
    ),
    "tied": lambda: (lambda one: nn.Sequential(one, nn.Tanh(), one))(nn.Linear(4, 4)),
    "graph": lambda: Graph(
        {"a": layer(4, 4), "b": layer(4, 4), "c": nn.Bilinear(4, 4, 4)},
        [("u", "a"), ("a", "b"), ("a", "c"), ("b", "c")],
    ),
}
SETTINGS = [
    {},
    {"align": True},
    {"hold": 3},
    {"order": "sequential"},
    {"groups": [1]},
    {"delay_free": True},
    {"stacked": False},
]


def narrow(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module).to(torch.bfloat16)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("setting", [s for s in SETTINGS if "hold" not in s and "delay_free" not in s], ids=str)
@pytest.mark.parametrize("net", NETS)
def test_a_narrow_learner_is_one_of_float32_whose_weights_are_rounded_after_each_step(net, setting, momentum):
    module = narrow(NETS[net]())
    hyper = hl.Hyper.from_sgd(lr=0.2, momentum=momentum)
    one = LocalLearner(module, mse, hyper, compute_dtype=WIDE, **setting)
    other = LocalLearner(copy.deepcopy(module).to(WIDE), mse, hyper, **setting)
    samples = random_samples(40, 4, 4, (3,), dtype=WIDE, missing=4)
    for sample in samples:
        a = one.step(sample)
        b = other.step(sample)
        with torch.no_grad():
            for weight in other.module.parameters():
                weight.copy_(weight.to(torch.bfloat16))
        assert (a.y is None) == (b.y is None)
        assert a.y is None or torch.equal(a.y, b.y)
    for a, b in zip(one.module.parameters(), other.module.parameters(), strict=True):
        assert a.dtype is torch.bfloat16
        assert torch.equal(a.to(WIDE), b)
    for name, omega in one.state.omega.items():
        assert omega.dtype is WIDE
        assert torch.equal(omega, other.state.omega[name])


def test_a_prediction_is_that_of_the_widened_module():
    module = narrow(NETS["cells"]())
    u = torch.randn(3, 4, dtype=WIDE)
    learner = LocalLearner(module, mse, hl.Hyper(), compute_dtype=WIDE)
    assert torch.equal(learner.predict(u), copy.deepcopy(module).to(WIDE).eval()(u))


@pytest.mark.parametrize("setting", [{}, {"align": True}], ids=str)
def test_a_checkpoint_of_narrow_weights_goes_on_to_the_bit(setting, tmp_path):
    module = narrow(NETS["stack"]())
    learners = [
        LocalLearner(copy.deepcopy(module), mse, hl.Hyper(eta=0.1), compute_dtype=WIDE, **setting) for _ in "ab"
    ]
    samples = random_samples(30, 4, 4, (3,), dtype=WIDE, missing=4)
    for sample in samples[:17]:
        learners[0].step(sample)
    learners[0].save(tmp_path / "a.hl")
    learners[1].load(tmp_path / "a.hl")
    for sample in samples[17:]:
        for learner in learners:
            learner.step(sample)
    one, other = (learner.state.omega for learner in learners)
    assert all(torch.equal(one[name], other[name]) for name in one)
    wide = LocalLearner(copy.deepcopy(module), mse, hl.Hyper(eta=0.1), **setting)
    with pytest.raises(hl.errors.CheckpointError, match="omega"):
        wide.load(tmp_path / "a.hl")


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, u):
        return self.scale * self.linear(u)


def test_what_cannot_be_computed_in_the_given_type_is_named():
    net = NETS["stack"]()
    with pytest.raises(ConfigError, match=r"compute_dtype=torch.bfloat16 must be torch.float32"):
        LocalLearner(net, mse, hl.Hyper(), compute_dtype=torch.bfloat16)
    with pytest.raises(ConfigError, match=r"0.0.weight is torch.float64, which torch.float32 cannot hold"):
        LocalLearner(net.double(), mse, hl.Hyper(), compute_dtype=WIDE)
    with pytest.raises(ConfigError, match=r"buffer 0.scale is torch.bfloat16"):
        LocalLearner(nn.Sequential(narrow(Scaled())), mse, hl.Hyper(), compute_dtype=WIDE)
    learner = LocalLearner(narrow(net), mse, hl.Hyper(), compute_dtype=WIDE)
    with pytest.raises(SampleError, match="could not take"):
        learner.step(hl.Sample(torch.ones(1, 4, dtype=torch.float64), torch.ones(1, 4)))


def test_a_move_of_less_than_half_a_unit_in_the_last_place_is_lost():
    """Between 1 and 2, numbers of bfloat16 are 1/128 apart."""
    module = nn.Sequential(nn.Linear(1, 1, bias=False)).to(torch.bfloat16)
    for gain, moves in ((0.9 / 256, False), (1.1 / 256, True)):
        with torch.no_grad():
            module[0].weight.fill_(1.0)
        learner = LocalLearner(
            module, lambda y, t: (y * t).sum(), hl.Hyper(beta=gain), compute_dtype=WIDE, order="sequential"
        )
        for _ in range(50):
            learner.step(hl.Sample(torch.ones(1, 1, dtype=WIDE), -torch.ones(1, 1, dtype=WIDE), boundary=True))
        assert bool(module[0].weight > 1) is moves
