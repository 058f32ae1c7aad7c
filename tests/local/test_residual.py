"""Residual layers: stacked, exact, and small at the start."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.errors import SampleError
from hamlearn.local import LocalLearner, Residual
from tests.local.cases import hyper, layer
from tests.problems import random_samples

mse = nn.functional.mse_loss
STILL = hl.Hyper(tau=1.0, eta=0.0, beta=0.0, phi=1.0)
FUNCTIONS = {"tanh": nn.Tanh, "relu in place": lambda: nn.ReLU(inplace=True), "gelu": nn.GELU, "linear": None}


def residuals(depth, function="tanh", bias=True, scale=0.5):
    def block():
        linear = nn.Linear(4, 4, bias=bias)
        return Residual(nn.Sequential(linear, FUNCTIONS[function]()) if FUNCTIONS[function] else linear, scale)

    return nn.Sequential(layer(3, 4), *(block() for _ in range(depth)), nn.Linear(4, 2))


@pytest.mark.parametrize("setting", [{}, {"align": True}, {"align": True, "hold": 3}, {"order": "sequential"}])
@pytest.mark.parametrize("batch", [(), (1,), (2, 3)])
@pytest.mark.parametrize(("function", "bias"), [("tanh", True), ("gelu", False)])
def test_a_stack_of_residual_layers_equals_its_layers_one_by_one(function, bias, batch, setting):
    module = residuals(4, function, bias)
    names = [name for name, _ in module.named_parameters()]
    given = replace(hyper(names), beta={names[0]: 0.002, "*": 0.005})
    stacked = LocalLearner(copy.deepcopy(module), mse, given, **setting)
    plain = LocalLearner(module, mse, given, stacked=False, **setting)
    assert stacked.stacks == [("1", "2", "3", "4")]
    stream = random_samples(25, batch=batch)
    stream[7].target = None
    for a, b in zip(stacked.run(stream), plain.run(stream), strict=True):
        assert (a.y - b.y).abs().max() < 1e-12
    for (name, a), b in zip(stacked.module.named_parameters(), plain.module.parameters(), strict=True):
        assert (a - b).abs().max() < 1e-12
        assert (stacked.state.omega[name] - plain.state.omega[name]).abs().max() < 1e-12


def test_residual_and_plain_layers_are_not_stacked_with_each_other():
    pair = [nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(4)]
    module = nn.Sequential(pair[0], pair[1], Residual(pair[2]), Residual(pair[3]))
    assert LocalLearner(module, mse, hl.Hyper()).stacks == [("0", "1"), ("2", "3")]


def test_a_branch_begins_small_and_a_copy_of_its_layer_is_not_made_smaller_again():
    branch = nn.Linear(3, 3)
    before = branch.weight.detach().clone()
    residual = Residual(branch, scale=0.25)
    assert torch.equal(branch.weight, 0.25 * before)
    assert torch.equal(copy.deepcopy(residual).branch.weight, branch.weight)


def test_a_branch_that_changes_the_shape_is_named_with_its_node():
    learner = LocalLearner(nn.Sequential(Residual(nn.Linear(3, 1))), mse, hl.Hyper())
    with pytest.raises(SampleError, match=r"node '0' \(Residual\).*gave \[1, 1\] for \[1, 3\]"):
        learner.step(hl.Sample(torch.ones(1, 3), torch.ones(1, 3)))
