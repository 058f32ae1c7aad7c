"""What a step reaches without its network: the compiled engine sees it as the eager one does, or says so."""

import functools
import logging
import re
import signal
import warnings

import pytest
import torch
from torch import nn

import hamlearn as hl
from tests.problems import random_samples

mse = nn.functional.mse_loss


def samples(count=6):
    return random_samples(count, dtype=torch.float64)


def learned(make, engine, change=None):
    """All weights after two runs, something changed between them, and what was said."""
    torch.manual_seed(0)
    made = make()
    module, loss = made[:2]
    change = made[2] if len(made) > 2 else lambda: None
    learner = hl.Learner(hl.Network.feedforward(module.double()), loss, hl.Hyper.from_sgd(lr=0.05, momentum=0.5))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for number in range(2):
            for _ in learner.run(samples(), engine=engine):
                pass
            if number == 0:
                change()
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


def property_over_a_variable():
    gain = 1.0

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        @property
        def gain(self):
            return gain

        def forward(self, x):
            return self.linear(x) * self.gain

    def change():
        nonlocal gain
        gain = 3.0

    return Net(), mse, change


def recurrent_layer():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = nn.RNN(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.rnn(x[None])[0][-1])

    return Net(), mse


COMPILED = [
    penalty_over_a_list,
    penalty_of_one_weight,
    weight_that_a_lambda_ties,
    property_over_a_variable,
    recurrent_layer,
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


@pytest.fixture
def interrupts():
    """Python's own answer to Ctrl-C, which a shell that starts the tests in the background takes away."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_while_a_step_is_recorded_is_told_at_its_end():
    # What a logger holds is no part of a step, and is not put back.
    log = logging.getLogger("a log of this test")
    log.told = []

    def loss(y, t):
        # While it is recorded, a tensor is none that holds numbers.
        if type(y) is not torch.Tensor and not log.told:
            signal.raise_signal(signal.SIGINT)
            log.told.append("went on")
        return mse(y, t)

    learner = hl.Learner(hl.Network.feedforward(nn.Linear(3, 2).double()), loss, hl.Hyper())
    before = [weight.detach().clone() for weight in learner.network.parameters()]
    with pytest.raises(KeyboardInterrupt):
        list(learner.run(samples(), engine="compiled"))
    assert log.told == ["went on"]
    assert all(map(torch.equal, learner.network.parameters(), before))
    assert len(list(learner.run(samples(), engine="eager"))) == 6
