"""What a recorded step may read: each change is noticed and named, and what a step itself changes is put back."""

import functools
import types

import pytest
import torch
from torch import nn

from hamlearn.loops import UnsupportedError
from hamlearn.loops.guards import Guards

GAIN = 1.0
TABLE = []


class Layer(nn.Module):
    scale = 1.0

    def __init__(self):
        super().__init__()
        self.linear, self.bound, self.limits = nn.Linear(2, 1), 1.0, (0.0, 1.0)
        self.log = []
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x):
        return self.helper(x) * self.scale

    def helper(self, x):
        return self.linear(x) * GAIN


class Weighted:
    weight = 1.0

    def __call__(self, y, target):
        return self.weight * y


def keyword(y, target, *, gain=1.0):
    return gain * y


def closed_over():
    gain = 1.0

    def loss(y, target):
        return gain * y

    def change():
        nonlocal gain
        gain = 2.0

    return loss, change


def reversed_gradient():
    strength = 1.0

    class Reversed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return -strength * grad

    def change():
        nonlocal strength
        strength = 2.0

    return lambda y, target: Reversed.apply(y), change


def set_global():
    globals()["GAIN"] = 2.0


@pytest.fixture(autouse=True)
def as_before():
    yield
    globals()["GAIN"] = 1.0
    Layer.scale = 1.0
    keyword.__kwdefaults__["gain"] = 1.0
    TABLE.clear()


def of_module(label, change):
    layer = Layer()
    return Guards({}, {"net": layer}), lambda: change(layer), label


def of_loss(label, loss, change):
    return Guards({"loss": loss}, {}), change, label


def partial():
    loss = functools.partial(keyword, gain=1.0)
    return of_loss("gain=... of loss", loss, lambda: loss.keywords.update(gain=2.0))


def weighted():
    loss = Weighted()
    return of_loss("loss.weight", loss, lambda: setattr(loss, "weight", 2.0))


CHANGES = {
    "a number of a module": lambda: of_module("net.bound", lambda net: setattr(net, "bound", 2.0)),
    "a number of another type": lambda: of_module("net.bound", lambda net: setattr(net, "bound", 1)),
    "a tuple of numbers": lambda: of_module("net.limits", lambda net: setattr(net, "limits", (0.0, 2.0))),
    "a number that becomes a tensor": lambda: of_module(
        "net.bound", lambda net: setattr(net, "bound", torch.ones(2))
    ),
    "a mode": lambda: of_module("net.training", lambda net: net.eval()),
    "an attribute of the class": lambda: of_module("Layer.scale", lambda net: setattr(Layer, "scale", 2.0)),
    "an attribute that hides that of the class": lambda: of_module(
        "net.scale", lambda net: setattr(net, "scale", 2.0)
    ),
    "a global that a method of the module names": lambda: of_module("the global 'GAIN'", lambda net: set_global()),
    "a parameter": lambda: of_module(
        "submodule", lambda net: setattr(net.linear, "weight", nn.Parameter(torch.ones(1, 2)))
    ),
    "a buffer": lambda: of_module("buffer", lambda net: setattr(net, "mean", torch.ones(1))),
    "one buffer more": lambda: of_module("buffer", lambda net: net.register_buffer("more", torch.ones(1))),
    "a submodule": lambda: of_module("submodule", lambda net: setattr(net, "linear", nn.Linear(2, 1))),
    "requires_grad": lambda: of_module(
        "requires_grad", lambda net: net.linear.weight.requires_grad_(requires_grad=False)
    ),
    "a hook of a module": lambda: of_module("hooks", lambda net: net.linear.register_forward_hook(print)),
    "a hook of a weight": lambda: of_module("hooks", lambda net: net.linear.weight.register_hook(print)),
    "a closure": lambda: of_loss("'gain' in loss", *closed_over()),
    "a closure of a backward": lambda: of_loss("'strength' in", *reversed_gradient()),
    "a default": lambda: of_loss("gain=...", keyword, lambda: keyword.__kwdefaults__.update(gain=2.0)),
    "an argument of a partial": partial,
    "a number of a callable object": weighted,
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_what_a_step_may_read_is_named(what):
    guards, change, label = CHANGES[what]()
    assert guards.changed() is None
    change()
    assert label in guards.changed()


@pytest.mark.parametrize(
    "mode",
    [
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: _default(torch.float64),
    ],
    ids=["autocast", "default dtype"],
)
def test_a_mode_of_pytorch_is_compared(mode):
    guards = Guards({}, {})
    with mode():
        assert "autocast" in guards.changed()
    assert guards.changed() is None


class _default:
    def __init__(self, dtype):
        self.dtype = dtype

    def __enter__(self):
        self.before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)

    def __exit__(self, *error):
        torch.set_default_dtype(self.before)


def test_equal_values_that_are_other_objects_are_no_change():
    layer = Layer()
    guards = Guards({}, {"net": layer})
    layer.bound, layer.limits = float("1.0"), tuple(map(float, ("0", "1")))
    assert guards.changed() is None


def test_what_is_not_listed_is_not_compared():
    layer = Layer()
    layer.config, layer.last = types.SimpleNamespace(gain=1.0), None
    guards = Guards({"loss": lambda y, target: y}, {"net": layer})
    layer.config.gain = 2.0
    layer.log.append(1.0)
    layer.mean.fill_(2.0)
    assert guards.changed() is None


def count(layer):
    layer.bound += 1


def grow(layer):
    layer.log.append(1.0)


@pytest.mark.parametrize(("step", "name"), [(count, "net.bound"), (grow, "the length of net.log")])
def test_a_value_that_the_step_itself_changes_is_named_and_put_back(step, name):
    layer = Layer()
    guards = Guards({}, {"net": layer})
    step(layer)
    with pytest.raises(UnsupportedError, match=f"a step changes {name}"):
        guards.require_unchanged_by_step()
    assert (layer.bound, layer.log) == (1.0, [])


def test_a_decorator_may_keep_a_list_of_timings():
    times = []

    def timed(function):
        @functools.wraps(function)
        def wrapper(*args):
            times.append(1.0)
            return function(*args)

        return wrapper

    loss = timed(lambda y, target: y)
    guards = Guards({"loss": loss}, {})
    loss(1.0, 1.0)
    guards.require_unchanged_by_step()
    assert times == [1.0]
