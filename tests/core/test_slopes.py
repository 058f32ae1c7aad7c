"""Bounds on the gradients of wide layers, told by their factors: never too small, and given up wherever unsure."""

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.errors import NonFiniteError
from hamlearn.theory.slopes import MOST, WIDE, Slopes

SIZE = 400
assert SIZE * SIZE >= WIDE


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


class Penalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return self.layer(x) + self.layer.weight.square().sum()


class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return x @ self.layer.weight


def bounded(module, x, loss=lambda y: y.square().sum()):
    """By name, the bound and the norm of each gradient that a bound is known of."""
    names, theta = zip(*module.named_parameters(), strict=True)
    L = loss(module(x))
    slopes = Slopes(L, theta, range(len(theta)))
    grads = torch.autograd.grad(L, theta, allow_unused=True)
    return {names[k]: (bound, grads[k].norm().item()) for k, bound in slopes.bounds().items()}


@pytest.mark.parametrize("shape", [(6,), (1, 6), (5, 6), (2, 3, 6)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_bound_is_never_less_than_the_norm_and_for_one_sample_equal_to_it(shape, bias):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 4, bias=bias), nn.Tanh(), nn.Linear(4, 6, bias=bias)).double()
    found = bounded(module, torch.randn(shape, dtype=torch.float64))
    assert sorted(found) == ["0.weight", "2.weight"]
    for bound, norm in found.values():
        assert bound >= norm * (1 - 1e-12)
        if shape in ((6,), (1, 6)):
            assert bound == pytest.approx(norm, rel=1e-12)


@pytest.mark.parametrize("module", [Twice(), Penalised(), Turned(), nn.Conv1d(6, 6, 1), nn.RNNCell(6, 6)])
def test_weights_that_are_used_in_another_way_have_none(module):
    x = torch.randn(2, 6, 1) if isinstance(module, nn.Conv1d) else torch.randn(2, 6)
    found = bounded(module, x)
    assert not [name for name in found if "weight" in name and not isinstance(module, nn.RNNCell)]
    assert all(bound >= norm * (1 - 1e-6) for bound, norm in found.values())


def test_what_others_may_change_or_pack_has_none():
    module, x = nn.Linear(6, 6), torch.randn(1, 6)
    with torch.autograd.graph.saved_tensors_hooks(lambda kept: (kept,), lambda kept: kept[0]):
        assert not bounded(module, x)
    assert bounded(module, x)
    module.weight.register_hook(lambda grad: 1e30 * grad)
    assert not bounded(module, x)


def test_a_hook_on_the_output_is_seen():
    module, x = nn.Linear(6, 6), torch.randn(1, 6)

    def scaled(y):
        y.register_hook(lambda grad: 1e10 * grad)
        return y.square().sum()

    (bound, norm) = bounded(module, x, scaled)["weight"]
    assert bound == pytest.approx(norm, rel=1e-5)


def test_of_long_graphs_nothing_is_known():
    module, x = nn.Linear(6, 6), torch.randn(1, 6)

    def long(y):
        for _ in range(MOST):
            y = y + 1
        return y.sum()

    assert not bounded(module, x, long)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("what", ["input", "target", "hook", "overflow"])
def test_a_wide_layer_refuses_what_is_not_finite_and_stays_as_it_was(what, momentum):
    torch.manual_seed(0)
    layer = nn.Linear(SIZE, SIZE)
    learner = hl.Learner(hl.Network.feedforward(layer), nn.functional.mse_loss, hl.Hyper.from_sgd(1e-3, momentum))
    u, target = torch.randn(2, SIZE), torch.randn(2, SIZE)
    for _ in range(3):
        learner.step(hl.Sample(u, target))
    before = [w.detach().clone() for w in (*layer.parameters(), *learner.state.omega.values())]
    if what == "input":
        u = u.clone()
        u[1, 7] = torch.nan
    elif what == "target":
        target = target.clone()
        target[0, 3] = torch.inf
    elif what == "hook":
        layer.weight.register_hook(lambda grad: grad.index_fill(0, torch.tensor([3]), torch.nan))
    else:
        u = 1e30 * u
    with pytest.raises(NonFiniteError):
        learner.step(hl.Sample(u, target))
    after = [*layer.parameters(), *learner.state.omega.values()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
