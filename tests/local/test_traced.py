"""Plain modules as graphs: nodes from the calls, edges from the flow of data, exact gradients along them."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn.functional import avg_pool2d, dropout, mse_loss, relu

import hamlearn as hl
from hamlearn.errors import ConfigError
from hamlearn.local import LocalLearner

STILL = hl.Hyper(tau=1.0, eta=0.0, beta=0.0, phi=1.0)


class Residual(nn.Module):
    """Skips past one layer and past two, a weight of its own, and a skip from the input."""

    def __init__(self):
        super().__init__()
        self.enter, self.a, self.b = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 5)
        self.leave = nn.Linear(8, 2)
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, u):
        h = torch.tanh(self.enter(u))
        k = h + self.scale * torch.tanh(self.a(h))
        k = k + relu(self.b(k)) + h
        return self.leave(torch.cat([k, u], -1))


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.act = nn.Tanh()

    def forward(self, x):
        x = x + self.two(self.act(self.one(x)))
        return self.act(x)


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Conv2d(1, 3, 3, padding=1)
        self.blocks = nn.Sequential(Block(3), Block(3))
        self.leave = nn.Linear(3, 2)

    def forward(self, u):
        x = self.blocks(self.enter(u))
        x = avg_pool2d(x, 4)
        return self.leave(x.view(x.size(0), -1))


NETS = {
    "a residual MLP": (Residual, (2, 3)),
    "a convolutional net with skips": (Convolutional, (2, 1, 4, 4)),
}


@pytest.mark.parametrize("net", NETS)
def test_aligned_omega_of_a_traced_net_is_the_sum_of_exact_gradients(net):
    make, shape = NETS[net]
    torch.manual_seed(0)
    module = make().double()
    stream = [hl.Sample(torch.randn(shape).double(), torch.randn(2, 2).double()) for _ in range(7)]
    learner = LocalLearner(module, mse_loss, STILL, align=True)
    reports = list(learner.run(stream))
    loss = sum(mse_loss(module(sample.u), sample.target) for sample in stream)
    names, weights = zip(*module.named_parameters(), strict=True)
    assert set(learner.state.omega) == set(names)
    for name, want in zip(names, torch.autograd.grad(loss, weights), strict=True):
        assert (want != 0).any()
        assert (learner.state.omega[name] - want).abs().max() <= 1e-12 * (1 + want.abs().max())
    for report, sample in zip(reports, stream, strict=True):
        torch.testing.assert_close(report.y, module(sample.u).detach(), rtol=1e-12, atol=1e-14)


def test_functions_belong_to_the_layer_that_they_follow_and_skips_are_edges():
    learner = LocalLearner(Residual(), mse_loss, STILL, align=True)
    edges = {node.name: node.sources for node in learner._system.wiring.nodes}
    assert edges == {
        "enter": ("u",),
        "a": ("enter",),
        "b": ("a", "enter", "u"),
        "leave": ("b",),
    }
    assert learner.delays == {"enter": 8, "a": 6, "b": 4, "leave": 2}


class Doubled(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


def test_a_sequential_with_a_forward_of_its_own_and_a_single_layer_are_traced_too():
    for module in (Doubled(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), nn.Linear(3, 2).double()):
        u, target = torch.randn(2, 3).double(), torch.randn(2, 2).double()
        learner = LocalLearner(module, mse_loss, STILL, align=True)
        (report,) = learner.run([hl.Sample(u, target)])
        assert torch.equal(report.y, module(u).detach())
        names, weights = zip(*module.named_parameters(), strict=True)
        for name, want in zip(names, torch.autograd.grad(mse_loss(module(u), target), weights), strict=True):
            assert (learner.state.omega[name] - want).abs().max() <= 1e-12


def of(forward):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3)
            self.gain, self.names, self.plain = 2.0, ["x"], [torch.ones(3)]
            self.register_buffer("count", torch.zeros(3))

    Net.forward = forward
    return Net()


def without_gradients(self, u):
    with torch.no_grad():
        h = self.a(u)
    return self.a(h)


def half_precision(self, u):
    with torch.autocast("cpu", torch.bfloat16):
        h = self.a(u)
    return self.a(h.double())


def counting(self, u):
    self.count.add_(1)
    return self.a(u) * self.count


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda self, u: self.a(u) * (2 if self.training else 1), "other things in evaluation mode"),
        (lambda self, u: torch.dropout(self.a(u), 0.5, self.training), "evaluation mode.*use modules"),
        (without_gradients, "without gradients"),
        (half_precision, "under autocast"),
        (lambda self, u: self.a(u) if u.sum() > 0 else u, "cannot be traced .*must not depend on values"),
        (lambda self, u, v: self.a(u) + v, r"takes \['u', 'v'\], and a traced module has one input"),
        (lambda self, u: (self.a(u), u), "returns tuple of several values"),
        (lambda self, u: u, "returns its input"),
        (lambda self, u: dropout(self.a(u), 0.5, training=self.training), "evaluation mode.*use modules"),
    ],
)
def test_what_is_no_graph_of_one_input_and_one_output_is_refused_with_a_remedy(forward, message):
    with pytest.raises(ConfigError, match=message):
        LocalLearner(of(forward), mse_loss, STILL)


def test_nothing_is_left_in_a_module_that_was_traced_or_refused():
    drawn = torch.get_rng_state()
    for forward in (
        counting,
        lambda self, u: self.a(u) + torch.randn(3),
        lambda self, u: self.a(u) + torch.ones(3),
    ):
        net = of(forward)
        torch.set_rng_state(drawn)
        before = dict(vars(net))
        with contextlib.suppress(ConfigError):
            LocalLearner(net, mse_loss, STILL)
        assert vars(net).keys() == before.keys()
        assert torch.equal(net.count, torch.zeros(3))
        assert torch.equal(torch.get_rng_state(), drawn)
        assert net.training


def test_hooks_that_would_not_be_called_are_refused():
    net = of(lambda self, u: self.a(u).relu())
    net.register_forward_hook(lambda *_: None)
    with pytest.raises(ConfigError, match="Net has hooks"):
        LocalLearner(net, mse_loss, STILL)


def test_what_is_written_in_place_is_computed_beside_the_state_of_the_other_node():
    def in_place(self, u):
        h = self.a(u)
        k = h * 2
        k += h
        return relu(k, inplace=True)

    net = of(in_place).double()
    learner = LocalLearner(net, mse_loss, STILL, align=True)
    u = torch.randn(2, 3).double()
    (report,) = learner.run([hl.Sample(u, torch.zeros(2, 3).double())])
    assert torch.equal(report.y, net(u).detach())
    expected = torch.autograd.grad(mse_loss(net(u), torch.zeros(2, 3).double()), net.a.weight)[0]
    assert (learner.state.omega["a.weight"] - expected).abs().max() <= 1e-12
