"""Weights so large that they move in place: the same numbers, and nothing to be seen of it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import hamlearn as hl
from hamlearn.rules.system import LARGE
from tests.comparing import same
from tests.problems import random_samples

SIZE = 400
assert LARGE <= SIZE * SIZE


def learner(role: str = "output", dtype: torch.dtype = torch.float64, **more) -> hl.Learner:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, 3)).to(dtype)
    hyper = more.pop("hyper", hl.Hyper.from_sgd(lr=0.1, momentum=0.9, dampening=0.3))
    choices = {"reset_h": "sample"} if role == "state" else {}
    return hl.Learner(hl.Network.feedforward(module, role=role), mse_loss, hyper, **{**choices, **more})


def samples(count: int, dtype: torch.dtype = torch.float64) -> list[hl.Sample]:
    return random_samples(count, SIZE, 3, dtype=dtype, missing=3)


def everything(learner: hl.Learner) -> list[torch.Tensor]:
    state = learner.state
    return [x.detach().clone() for x in (*learner.network.parameters(), *state.omega.values())]


def step_with_sgd(subject: hl.Learner, module: nn.Module, sgd: torch.optim.SGD, sample: hl.Sample) -> None:
    subject.step(sample)
    sgd.zero_grad()
    mse_loss(module(sample.u), sample.target).backward()
    sgd.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_large_weights_follow_sgd_bit_for_bit(dtype, momentum):
    subject = learner(dtype=dtype, hyper=hl.Hyper.from_sgd(lr=0.1, momentum=momentum, dampening=0.3 * momentum))
    module = copy.deepcopy(subject.network.output)
    sgd = torch.optim.SGD(module.parameters(), lr=0.1, momentum=momentum, dampening=0.3 * momentum)
    for sample in samples(9, dtype):
        if sample.target is not None:
            step_with_sgd(subject, module, sgd, sample)
        assert same(list(subject.network.output.parameters()), list(module.parameters()))


@pytest.mark.parametrize("on_nonfinite", ["raise", "skip"])
def test_a_target_that_is_not_finite_leaves_large_weights_as_they_were(on_nonfinite):
    subject = learner(dtype=torch.float32, on_nonfinite=on_nonfinite)
    for sample in samples(3, torch.float32):
        subject.step(sample)
    before = everything(subject)
    bad = hl.Sample(torch.ones(2, SIZE), torch.full((2, 3), float("inf")))
    if on_nonfinite == "raise":
        with pytest.raises(hl.errors.NonFiniteError):
            subject.step(bad)
    else:
        assert subject.step(bad).skipped
    assert same(everything(subject), before)


def test_a_large_weight_that_overflows_is_named_at_the_next_step():
    subject = learner(dtype=torch.float32, hyper=hl.Hyper(eta=0.1, beta=3e38))
    good = hl.Sample(torch.ones(2, SIZE), torch.full((2, 3), 1e6))
    subject.step(good)
    with pytest.raises(hl.errors.NonFiniteError, match=r"weights are not finite .*since the step before"):
        subject.step(good)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_network_of_nothing_but_large_weights_follows_sgd(momentum):
    torch.manual_seed(1)
    module = nn.Linear(SIZE, SIZE, bias=False)
    twin = copy.deepcopy(module)
    hyper = hl.Hyper.from_sgd(lr=0.1, momentum=momentum)
    subject = hl.Learner(hl.Network.feedforward(module), mse_loss, hyper)
    sgd = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=momentum)
    for sample in random_samples(3, SIZE, SIZE):
        before = module.weight.detach().clone()
        with pytest.raises(hl.errors.NonFiniteError):
            subject.step(hl.Sample(sample.u, sample.target / 0))
        assert torch.equal(module.weight, before)
        step_with_sgd(subject, twin, sgd, sample)
        assert torch.equal(module.weight, twin.weight)
