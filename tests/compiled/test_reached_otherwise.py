"""What a step reaches without its network: the compiled engine sees it as the eager one does, or says so."""

import functools
import re
import warnings

import pytest
import torch
from torch import nn

import hamlearn as hl
from tests.problems import random_samples

mse = nn.functional.mse_loss


def samples(count=6):
    return random_samples(count, dtype=torch.float64)


def learned(make, engine):
    """All weights after two runs, and what was said."""
    torch.manual_seed(0)
    module, loss = make()
    learner = hl.Learner(hl.Network.feedforward(module.double()), loss, hl.Hyper.from_sgd(lr=0.05, momentum=0.5))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            list(learner.run(samples(), engine=engine))
    told = " ".join(str(each.message) for each in said if "compiled" in str(each.message))
    return torch.cat([weight.detach().flatten() for weight in module.parameters()]), told


def penalty_over_a_list():
    net = nn.Linear(3, 2)
    weights = list(net.parameters())
    return net, lambda y, t: mse(y, t) + 0.1 * sum(weight.pow(2).sum() for weight in weights)


def penalty_of_one_weight():
    net = nn.Linear(3, 2)
    return net, functools.partial(lambda w, y, t: mse(y, t) + 0.1 * w.pow(2).sum(), net.weight)


def weight_that_a_lambda_ties():
    net = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    tied = net[0].weight
    net.add_module("last", Call(lambda x: x @ tied @ tied.t()))
    return net, mse


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


COMPILED = [
    penalty_over_a_list,
    penalty_of_one_weight,
    weight_that_a_lambda_ties,
]


@pytest.mark.parametrize("make", COMPILED, ids=lambda make: make.__name__)
def test_it_is_compiled_and_learns_as_the_eager_engine_does(make):
    eager, _ = learned(make, "eager")
    compiled, told = learned(make, "compiled")
    assert told == ""
    torch.testing.assert_close(compiled, eager, rtol=1e-12, atol=1e-13)


def running_mean_that_is_no_buffer():
    mean = torch.zeros(2, dtype=torch.float64)
    return nn.Linear(3, 2), lambda y, t: mse(y - mean.mul_(0.9).add_(0.1 * y.detach().mean(0)), t)


def view_of_a_weight():
    net = nn.Linear(3, 2).double()
    view = net.weight.detach()
    return net, lambda y, t: mse(y, t) * view.abs().sum()


def buffer_of_a_closure():
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double()
    mean = net[1].running_mean
    return net, lambda y, t: mse(y - mean, t)


def writes_to_its_sample():
    return nn.Sequential(Call(lambda x: x.div_(2.0)), nn.Linear(3, 2)), mse


REFUSED = {
    "a running mean": (running_mean_that_is_no_buffer, "register that as a buffer"),
    "a view of a weight": (view_of_a_weight, "shares the memory of a weight"),
    "a buffer of a closure": (buffer_of_a_closure, "reads a buffer of the network that it holds"),
    "its own sample": (writes_to_its_sample, "it writes to its sample"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_leaves_no_trace(name):
    make, said = REFUSED[name]
    eager, _ = learned(make, "eager")
    fallen, told = learned(make, "compiled")
    assert "falls back to the eager engine" in told
    assert re.search(said, told), told
    if name != "a running mean":  # what a step writes to beside the network is written once more by the trial
        assert torch.equal(fallen, eager)


def test_members_with_penalties_of_their_own_learn_as_each_does_alone():
    def make(hyper):
        net, loss = penalty_over_a_list()
        return hl.Learner(hl.Network.feedforward(net.double()), loss, hyper)

    hyper = hl.Hyper.from_sgd(lr=0.05)
    population = hl.Population(make, hyper=[hyper], seeds=[0, 1, 2])
    for _ in population.run(samples()):
        pass
    for seed, member in enumerate(population.members):
        torch.manual_seed(seed)
        single = make(hyper)
        for _ in single.run(samples()):
            pass
        for own, other in zip(member.network.parameters(), single.network.parameters(), strict=True):
            torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-13)
