"""What a step reads through decorators, views and odd references: seen when it changes, or refused by name."""

import functools
import weakref

import pytest
import torch
from torch.utils import _pytree

import hamlearn as hl
from hamlearn.loops import UnsupportedError

G = 1.0
TABLE = {"g": 1.0}
LISTED = [1.0]


class Held:
    def __init__(self):
        self.gain = 1.0


class Private:
    __slots__ = ("__gain",)

    def __init__(self):
        self.__gain = 1.0

    def set(self, gain):
        self.__gain = gain

    def gain(self):
        return self.__gain


HELD, PRIVATE = Held(), Private()
HELD_REF, TABLE_GET, LISTED_GET = weakref.ref(HELD), TABLE.get, LISTED.__getitem__
MARKED = torch.ones(2)
MARKED.gain = 1.0
WRITTEN = {}
exec("H = [1.0]\ndef made():\n    return H[0]", WRITTEN)
del WRITTEN["__builtins__"]
MADE = WRITTEN["made"]


@torch.no_grad()
def without_gradients():
    return G


@torch.enable_grad()
def with_gradients():
    return G


@torch.compiler.disable
def not_compiled(x):
    return x * G


def scaled(x):
    return x * G


class Own(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x):
        return x * G

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        return grad * G


def set_all(value):
    global G
    G = TABLE["g"] = HELD.gain = LISTED[0] = MARKED.gain = WRITTEN["H"][0] = value
    PRIVATE.set(value)


READS = {
    "torch.no_grad": lambda x: x * without_gradients(),
    "torch.enable_grad": lambda x: x * with_gradients(),
    "torch.compiler.disable": not_compiled,
    "tree_map": lambda x: _pytree.tree_map(scaled, x),
    "custom_fwd": lambda x: Own.apply(x),
    "partial": functools.partial(scaled),
    "weakref": lambda x: x * HELD_REF().gain,
    "private slot": lambda x: x * PRIVATE.gain(),
    "method of a dict": lambda x: x * TABLE_GET("g"),
    "method of a list": lambda x: x * LISTED_GET(0),
    "attribute of a tensor": lambda x: x * MARKED.gain,
    "made by exec": lambda x: x * MADE(),
}


@pytest.mark.parametrize("way", READS)
def test_a_value_that_is_read_in_a_roundabout_way_is_read_anew_when_it_changes(way):
    def step(carry, x):
        return carry * 0.5 + READS[way](x), carry

    carry, xs = torch.ones(2), torch.ones(3, 2)
    try:
        for value in (1.0, 10.0):
            set_all(value)
            found, expected = hl.loops.scan(step, carry, xs)[0], carry
            for x in xs:
                expected = step(expected, x)[0]
            assert torch.equal(found, expected)
    finally:
        set_all(1.0)


def test_a_decorated_step_is_read_like_any_other():
    @torch.no_grad()
    def step(carry, x):
        return carry * 0.5 + x * G, carry

    carry, xs = torch.ones(2), torch.ones(3, 2)
    try:
        first = hl.loops.scan(step, carry, xs)[0]
        set_all(10.0)
        assert not torch.equal(hl.loops.scan(step, carry, xs)[0], first)
    finally:
        set_all(1.0)


class Tracker:
    n = 0


@torch.no_grad()
def counted():
    Tracker.n += 1
    return 1.0 / Tracker.n


def transposed_in_place(x):
    y = x * 1
    w = y.detach()
    y.t_()
    return y @ w


def unsqueezed_in_place(x):
    y = x * 1
    w = y.detach()
    w.unsqueeze_(0)
    return w.sum(0) + y


def each_by_the_other(x):
    a, b = x * 1, x * 2
    torch._foreach_add_([a, b], [b, a])
    return a + b


def part_of_what_is_read(x):
    y = x * 1
    torch.unsafe_chunk(y, 2)[0].mul_(5)
    return y


def given_other_data(x):
    y, z = x * 1, x * 2
    y.data = z
    z.add_(1)
    return y + z


def resized(x):
    y = x * 1
    y.resize_(4)
    return x + y.sum()


def bits(x):
    return x + (x.detach().view(torch.int32) & 1).float()


@pytest.mark.parametrize("odd", [transposed_in_place, unsqueezed_in_place])
def test_a_view_that_is_changed_in_place_is_no_other_name_of_it(odd):
    step = lambda carry, x: (carry * 0.5 + odd(carry + x), carry)  # noqa: E731
    carry, xs = torch.arange(4.0).view(2, 2) / 7, torch.arange(12.0).view(3, 2, 2) / 9
    found, expected = hl.loops.scan(step, carry, xs)[0], carry
    for x in xs:
        expected = step(expected, x)[0]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (each_by_the_other, "another place of its lists"),
        (part_of_what_is_read, "while the whole is used"),
        (given_other_data, "sets the data of a tensor"),
        (resized, "other memory"),
        (bits, "as bits of another type"),
        (lambda x: x * counted(), "Tracker.n"),
        (lambda x: x * globals()["G"], "globals"),
    ],
)
def test_what_no_recording_can_follow_is_refused_by_name(odd, reason):
    with pytest.raises(UnsupportedError, match=reason):
        hl.loops.scan(lambda carry, x: (carry * 0.5 + odd(x), carry), torch.ones(2, 2), torch.ones(3, 2, 2))
    assert Tracker.n == 0
