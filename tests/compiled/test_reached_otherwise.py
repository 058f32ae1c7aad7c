"""What a step reaches by a way of its own: the compiled engine sees it as the eager one does, or says so."""

import cProfile
import functools
import logging
import random
import re
import signal
import sys
import threading
import time
import types
import warnings
from collections import deque
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.loops.alone import alone
from tests.problems import random_samples

mse = nn.functional.mse_loss
CONFIG = types.ModuleType("a_config_of_the_users")
CONFIG.GAIN = 1.0


def samples(count=6):
    return random_samples(count, dtype=torch.float64)


def learned(make, engine, change=None):
    """All weights after two runs, something changed between them, and what was said."""
    torch.manual_seed(0)
    CONFIG.GAIN = 1.0
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


def module_as_a_field():
    box = types.SimpleNamespace(config=CONFIG)
    return Scaled(lambda: box.config.GAIN), mse, lambda: setattr(CONFIG, "GAIN", 3.0)


def module_by_name():
    return Scaled(lambda: getattr(CONFIG, "GAIN")), mse, lambda: setattr(CONFIG, "GAIN", 3.0)  # noqa: B009


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


def cached_settings():
    @functools.lru_cache
    def settings():
        return types.SimpleNamespace(gain=1.0)

    return Scaled(lambda: settings().gain), mse, lambda: setattr(settings(), "gain", 3.0)


def loss_that_wraps_one_of_pytorch():
    scale = {"by": 1.0}

    @functools.wraps(mse)
    def loss(y, t):
        return scale["by"] * mse(y, t)

    return nn.Linear(3, 2), loss, lambda: scale.update(by=3.0)


def entries_of_an_array():
    box = np.array([types.SimpleNamespace(gain=1.0)], dtype=object)
    return Scaled(lambda: box[0].gain), mse, lambda: setattr(box[0], "gain", 3.0)


def keys_of_a_dict():
    key = types.SimpleNamespace(gain=1.0)
    holder = {Hashed(key): 1}
    return Scaled(lambda: next(k.held.gain for k in holder)), mse, lambda: setattr(key, "gain", 3.0)


class Hashed:
    def __init__(self, held):
        self.held = held


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


def subclass_of_dict_with_a_get_of_its_own():
    class Paths(dict):
        def get(self, path):
            return self[path]

    paths = Paths(gain=1.0)
    return Scaled(lambda: paths["gain"]), mse, lambda: paths.update(gain=3.0)


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
    module_as_a_field,
    module_by_name,
    property_over_a_variable,
    backward_over_a_variable,
    cached_settings,
    loss_that_wraps_one_of_pytorch,
    entries_of_an_array,
    keys_of_a_dict,
    object_made_within,
    parameters_handed_to_a_function,
    recurrent_layer,
    tensor_that_is_not_a_number,
    answers_none_to_everything,
    subclass_of_dict_with_a_get_of_its_own,
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


def clock_as_a_field():
    net = Scaled(lambda: 1.0)
    net.clock = time.perf_counter

    def loss(y, t):
        return mse(y, t) + 0.0 * net.clock()

    return net, loss


def running_mean_that_is_no_buffer():
    mean = torch.zeros(2, dtype=torch.float64)
    return nn.Linear(3, 2), lambda y, t: mse(y - mean.mul_(0.9).add_(0.1 * y.detach().mean(0)), t)


def view_of_a_weight():
    net = nn.Linear(3, 2).double()
    view = net.weight.detach()
    return net, lambda y, t: mse(y, t) * view.abs().sum()


def array_over_a_weight():
    net = nn.Linear(3, 2).double()
    view = net.weight.detach().numpy()
    return net, lambda y, t: mse(y, t) * float(view[0, 0] ** 2)


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


def weight_where_pytorch_calls_back():
    net = nn.Linear(3, 2)
    weights = list(net.parameters())
    away = functools.partial(
        nn.functional.triplet_margin_with_distance_loss,
        distance_function=lambda a, b: (a - b).pow(2).sum(-1) * weights[0].pow(2).sum(),
    )
    return net, lambda y, t: away(y, t, -t)


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


def sparse_field():
    adjacency = torch.eye(2, dtype=torch.float64).to_sparse()
    return nn.Sequential(nn.Linear(3, 2), Call(lambda y: y @ adjacency.to_dense())), mse


def counts(make, count):
    def made():
        held = make()
        return Scaled(lambda: 1.0 + 0.01 * count(held)), mse

    return made


def count_deque(held):
    held.append(held[-1] + 1 if held else 0)
    return held[-1]


def count_set(held):
    held.add(len(held))
    return len(held)


def count_array(held):
    held += 1
    return float(held[0])


class Slotted:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0


def count_slot(held):
    held.n += 1
    return held.n


def writes_to_its_sample():
    return nn.Sequential(Call(lambda x: x.div_(2.0)), nn.Linear(3, 2)), mse


REFUSED = {
    "a dict by weights": (mask_by_weight, "is a dict by tensors"),
    "the clock as a field": (clock_as_a_field, r"calls time.perf_counter\(\)"),
    "a running mean": (running_mean_that_is_no_buffer, "calling it changes 'mean'"),
    "a view of a weight": (view_of_a_weight, "shares the memory of a weight"),
    "an array over a weight": (array_over_a_weight, "shares the memory of a weight"),
    "a function of autograd": (weight_for_a_function_of_autograd, "a weight that it holds by itself"),
    "a transform": (weight_for_a_transform, "a weight that it holds by itself"),
    "a call from PyTorch": (weight_where_pytorch_calls_back, "by a way of its own"),
    "a buffer of a closure": (buffer_of_a_closure, "reads a buffer of the network that it holds"),
    "a buffer in a list": (buffer_in_a_list, "in a list or a dict too"),
    "a buffer that is written to": (buffer_that_is_written_to, "writes to a buffer"),
    "a frozen weight that follows": (frozen_weight_that_follows, "falls back"),
    "a sparse field": (sparse_field, "of the layout torch.sparse_coo"),
    "a deque": (counts(lambda: deque(maxlen=3), count_deque), "calling it changes"),
    "a set": (counts(set, count_set), "calling it changes"),
    "an array": (counts(lambda: np.zeros(1), count_array), "calling it changes"),
    "a slot": (counts(Slotted, count_slot), "calling it changes"),
    "random numbers of its own": (counts(lambda: random.Random(3), lambda held: held.random()), "changes"),
    "a generator of its own": (
        counts(lambda: torch.Generator().manual_seed(3), lambda held: torch.rand((), generator=held).item()),
        "changes",
    ),
    "its own sample": (writes_to_its_sample, "falls back"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_leaves_no_trace(name):
    make, said = REFUSED[name]
    eager, _ = learned(make, "eager")
    fallen, told = learned(make, "compiled")
    assert "falls back to the eager engine" in told
    assert re.search(said, told), told
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


def test_a_package_that_is_called_as_one_of_pythons_is_the_users(monkeypatch):
    module = types.ModuleType("code")
    module.__file__ = "/somewhere/code/__init__.py"
    monkeypatch.setitem(sys.modules, "code", module)
    exec(compile("GAIN = 1.0\ndef gain():\n    return GAIN\n", "code", "exec"), vars(module))

    def make():
        module.GAIN = 1.0
        return Scaled(lambda: module.gain()), mse, lambda: setattr(module, "GAIN", 3.0)

    eager, _ = learned(make, "eager")
    compiled, told = learned(make, "compiled")
    assert told == ""
    torch.testing.assert_close(compiled, eager, rtol=1e-12, atol=1e-13)


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
    assert "forward_hooks" in told
    assert torch.equal(fallen, eager) or torch.allclose(fallen, eager, rtol=1e-12)


def test_a_large_set_is_looked_at_once_for_each_block():
    words = {str(k) for k in range(8_000)}
    net = Scaled(lambda: float(len(words) > 0))
    learner = hl.Learner(hl.Network.feedforward(net.double()), mse, hl.Hyper())
    list(learner.run(samples(), engine="compiled"))
    looked = 0

    class Counting(set):
        def __iter__(self):
            nonlocal looked
            looked += 1
            return super().__iter__()

    words = Counting(words)
    list(learner.run(samples(40), engine="compiled", chunk=4))
    assert looked < 100


def test_recordings_in_two_threads_take_turns():
    order = []

    def second():
        with alone():
            order.append("second")

    with alone():
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
