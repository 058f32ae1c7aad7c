"""What a step reaches without its network: the compiled engine sees it as the eager one does, or says so."""

import cProfile
import functools
import logging
import re
import signal
import threading
import time
import warnings
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.loops.tracing_lock import tracing_lock
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


class Scaled(nn.Module):
    """A linear layer times whatever a function says."""

    def __init__(self, gain):
        super().__init__()
        self.linear, self.gain = nn.Linear(3, 2), gain

    def forward(self, x):
        return self.linear(x) * self.gain()


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


def asks_whether_it_is_a_parameter():
    net = nn.Linear(3, 2)
    return nn.Sequential(net, Call(lambda y: 2 * y if isinstance(net.weight, nn.Parameter) else y)), mse


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


def backward_over_a_variable():
    strength = 1.0

    class Reversed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.kind = "reversed"
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return -strength * grad

    def change():
        nonlocal strength
        strength = 3.0

    return nn.Sequential(nn.Linear(3, 2), Call(Reversed.apply)), mse, change


@dataclass
class Settings:
    data: float = 2.0


def object_made_within():
    return Scaled(lambda: Settings().data), mse


def parameters_handed_to_a_function():
    net = nn.Linear(3, 2)

    def squares(weights):
        return sum(weight.pow(2).sum() for weight in weights)

    return net, lambda y, t: mse(y, t) + 0.1 * squares(net.parameters())


def recurrent_layer():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = nn.RNN(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.rnn(x[None])[0][-1])

    return Net(), mse


def tensor_that_is_not_a_number():
    missing = torch.full((2,), torch.nan, dtype=torch.float64)
    return nn.Sequential(nn.Linear(3, 2), Call(lambda y: torch.where(missing.isnan(), y, missing))), mse


def answers_none_to_everything():
    class Lenient:
        gain = 2.0

        def __getattr__(self, name):
            return None

    config = Lenient()
    return Scaled(lambda: config.gain), mse


class Decaying(nn.Module):
    """A layer whose weight decays at every call."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        with torch.no_grad():
            self.linear.weight.mul_(0.9)
        return self.linear(x)


def weight_that_decays_in_the_step():
    return Decaying(), mse


COMPILED = [
    weight_that_decays_in_the_step,
    penalty_over_a_list,
    penalty_of_one_weight,
    weight_that_a_lambda_ties,
    asks_whether_it_is_a_parameter,
    property_over_a_variable,
    backward_over_a_variable,
    object_made_within,
    parameters_handed_to_a_function,
    recurrent_layer,
    tensor_that_is_not_a_number,
    answers_none_to_everything,
]


@pytest.mark.parametrize("make", COMPILED, ids=lambda make: make.__name__)
def test_it_is_compiled_and_learns_as_the_eager_engine_does(make):
    eager, _ = learned(make, "eager")
    compiled, told = learned(make, "compiled")
    assert told == ""
    torch.testing.assert_close(compiled, eager, rtol=1e-12, atol=1e-13)


def mask_by_weight():
    net = nn.Linear(3, 2)
    masks = {net.weight: 2.0}
    return nn.Sequential(net, Call(lambda y: y * masks.get(net.weight, 1.0))), mse


def running_mean_that_is_no_buffer():
    mean = torch.zeros(2, dtype=torch.float64)
    return nn.Linear(3, 2), lambda y, t: mse(y - mean.mul_(0.9).add_(0.1 * y.detach().mean(0)), t)


def view_of_a_weight():
    net = nn.Linear(3, 2).double()
    view = net.weight.detach()
    return net, lambda y, t: mse(y, t) * view.abs().sum()


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, weight):
        return y + weight.sum()

    @staticmethod
    def backward(ctx, grad):
        return grad, grad.sum() * torch.ones(2, 3, dtype=grad.dtype)


def weight_for_a_function_of_autograd():
    net = nn.Linear(3, 2)
    weights = list(net.parameters())
    return net, lambda y, t: mse(Twice.apply(y, weights[0]), t)


def weight_for_a_transform():
    net = nn.Linear(3, 2)
    weights = list(net.parameters())
    return net, lambda y, t: mse(y, t) + torch.func.vmap(lambda row: row.pow(2).sum())(weights[0]).sum()


def buffer_of_a_closure():
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double()
    mean = net[1].running_mean
    return net, lambda y, t: mse(y - mean, t)


def buffer_in_a_list():
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double()
    net.held = [net[1].running_mean]
    return net, lambda y, t: mse(y - net.held[0], t)


def buffer_that_is_written_to():
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double()
    mean = net[1].running_mean
    return net, lambda y, t: mse(y, t) + 0.0 * mean.add_(0.5).sum()


class Teacher(nn.Module):
    """A layer beside a frozen one that follows it."""

    def __init__(self):
        super().__init__()
        self.own, self.follows = nn.Linear(3, 2), nn.Linear(3, 2).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            self.follows.weight.mul_(0.9).add_(self.own.weight, alpha=0.1)
        return self.own(x) - self.follows(x)


def frozen_weight_that_follows():
    return Teacher(), mse


def writes_to_its_sample():
    return nn.Sequential(Call(lambda x: x.div_(2.0)), nn.Linear(3, 2)), mse


REFUSED = {
    "a dict by weights": (mask_by_weight, "another"),
    "a running mean": (running_mean_that_is_no_buffer, "register that as a buffer"),
    "a view of a weight": (view_of_a_weight, "shares the memory of a weight"),
    "a function of autograd": (weight_for_a_function_of_autograd, "gives another omega"),
    "a transform": (weight_for_a_transform, "shares the memory of a weight"),
    "a buffer of a closure": (buffer_of_a_closure, "reads a buffer of the network that it holds"),
    "a buffer in a list": (buffer_in_a_list, "in a list or a dict too"),
    "a frozen weight that follows": (frozen_weight_that_follows, "a weight that is not learned"),
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


def test_a_hook_for_all_modules_that_comes_later_is_seen():
    handles = []

    def make():
        def change():
            handles.append(nn.modules.module.register_module_forward_hook(lambda module, args, y: 2 * y))

        return nn.Linear(3, 2), mse, change

    try:
        eager, _ = learned(make, "eager")
        handles.pop().remove()
        fallen, told = learned(make, "compiled")
    finally:
        for handle in handles:
            handle.remove()
    assert "has hooks" in told
    assert torch.equal(fallen, eager) or torch.allclose(fallen, eager, rtol=1e-12)


def test_recordings_in_two_threads_take_turns():
    order = []

    def second():
        with tracing_lock:
            order.append("second")

    with tracing_lock:
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


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


def test_a_step_is_recorded_under_a_profiler():
    learner = hl.Learner(hl.Network.feedforward(nn.Linear(3, 2).double()), mse, hl.Hyper())
    with cProfile.Profile() as profile:
        told = len(list(learner.run(samples(), engine="compiled")))
    assert told == 6
    assert any("record" in str(entry.code) for entry in profile.getstats())
