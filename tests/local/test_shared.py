"""Modules used at several places and weights that several modules share: as plain autograd has it."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import hamlearn as hl
from hamlearn.local import LocalLearner
from tests.local.cases import layer
from tests.local.plain import Plain
from tests.problems import random_samples

mse = nn.functional.mse_loss


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Twice(nn.Module):
    """The same weights twice in one node."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return torch.tanh(self.linear(torch.tanh(self.linear(x))))


def same_module():
    linear = nn.Linear(3, 3)
    return nn.Sequential(linear, nn.Tanh(), linear, nn.Tanh(), linear)


def same_layer():
    shared = layer(3, 3)
    return nn.Sequential(shared, layer(3, 3), shared, shared)


def same_parameter():
    net = nn.Sequential(*(layer(3, 3) for _ in range(4)))
    net[2][0].weight = net[0][0].weight
    net[3][0].bias = net[0][0].bias
    return net


def inside():
    return nn.Sequential(Twice(), Twice(), nn.Linear(3, 3))


CHAINS = {"module": same_module, "layer": same_layer, "parameter": same_parameter, "inside": inside}


def nodes_of(net):
    names = [str(k) for k in range(len(net))]
    return list(zip(names, net, [(s,) for s in ["u", *names]], strict=False))


def assert_equal(learner, plain):
    for p, q in zip(learner.module.parameters(), plain.theta, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)
    for w, v in zip(learner.state.omega.values(), plain.omega, strict=True):
        torch.testing.assert_close(w, v, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("setting", [{}, {"hold": 3}, {"stacked": False}, {"delay_free": True}])
@pytest.mark.parametrize("case", CHAINS)
def test_shared_weights_follow_plain_autograd(case, setting):
    net = CHAINS[case]()
    twin = copy.deepcopy(net)
    learner = LocalLearner(net, mse, hl.Hyper(eta=0.3, beta=0.05), **setting)
    plain = Plain(nodes_of(twin), mse, eta=0.3, beta=0.05, one=setting.get("delay_free", False))
    plain.start({name: torch.zeros(2, 3) for name, _, _ in plain.nodes})
    for sample in random_samples(20, outputs=3):
        learner.step(sample)
        for _ in range(setting.get("hold", 1)):
            plain.step(sample.u, sample.target)
    assert_equal(learner, plain)
    assert all(w.any() for w in plain.omega)


@pytest.mark.parametrize("groups", [None, 2, 1])
@pytest.mark.parametrize("order", ["parallel", "sequential"])
@pytest.mark.parametrize("case", CHAINS)
def test_aligned_gradients_of_shared_weights_are_exact(case, order, groups):
    net = CHAINS[case]()
    hyper = hl.Hyper(eta=0.0, beta=0.0)
    learner = LocalLearner(net, mse, hyper, align=True, order=order, groups=groups)
    samples = random_samples(9, outputs=3)
    list(learner.run(samples))
    loss = sum(mse(net(s.u), s.target) for s in samples)
    for found, expected in zip(
        learner.state.omega.values(), torch.autograd.grad(loss, list(net.parameters())), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def linear_twice(linear):
    return nn.Sequential(linear, nn.Tanh(), linear)


def tanh_twice(linear):
    tanh = nn.Tanh()
    return nn.Sequential(linear, tanh, tanh)


def weight_hooked(linear):
    linear.weight.register_hook(lambda grad: 2 * grad)
    return nn.Sequential(linear, nn.Tanh())


def hooked(method):
    def make(linear):
        hooks = {
            "register_full_backward_hook": lambda module, grads, out: (2 * grads[0],),
            "register_full_backward_pre_hook": lambda module, out: (2 * out[0],),
            "register_forward_pre_hook": lambda module, x: (2 * x[0],),
        }
        getattr(linear, method)(hooks[method])
        return nn.Sequential(linear, nn.Tanh())

    return make


def own_forward(linear):
    linear.forward = lambda x: 2 * nn.functional.linear(x, linear.weight, linear.bias)
    return nn.Sequential(linear, nn.Tanh())


def spectral(linear):
    class Half(nn.Module):
        def forward(self, weight):
            return weight / 2

    parametrize.register_parametrization(linear, "weight", Half())
    return nn.Sequential(linear, nn.Tanh())


LOOK_ALIKES = {
    "linear twice": linear_twice,
    "tanh twice": tanh_twice,
    "hook on a weight": weight_hooked,
    "backward hook": hooked("register_full_backward_hook"),
    "backward pre-hook": hooked("register_full_backward_pre_hook"),
    "forward pre-hook": hooked("register_forward_pre_hook"),
    "own forward": own_forward,
    "parametrized": spectral,
    "subclass": lambda linear: nn.Sequential(Doubled(3, 3), nn.Tanh()),
    "other slope": lambda linear: nn.Sequential(linear, nn.LeakyReLU(0.3)),
}


@pytest.mark.parametrize("setting", [{}, {"align": True}, {"order": "sequential"}])
@pytest.mark.parametrize("case", LOOK_ALIKES)
def test_layers_that_look_alike_and_differ_are_learned_as_by_themselves(case, setting):
    def make():
        torch.manual_seed(4)
        return nn.Sequential(*(LOOK_ALIKES[case](nn.Linear(3, 3)) if k == 1 else layer(3, 3) for k in range(3)))

    samples, found = random_samples(20, outputs=3), []
    for stacked in (True, False):
        learner = LocalLearner(make(), mse, hl.Hyper(eta=0.3, beta=0.05), stacked=stacked, **setting)
        assert not any("1" in names for names in learner.stacks)
        list(learner.run(samples))
        found.append(list(learner.module.parameters()))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "setting", [{}, {"align": True}, {"delay_free": True}, {"groups": 1, "order": "sequential"}]
)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_sparse_gradients_teach_what_dense_ones_do(momentum, setting):
    found = []
    for sparse in (False, True):
        torch.manual_seed(3)
        net = nn.Sequential(nn.Embedding(5, 3, sparse=sparse), nn.Linear(3, 3))
        learner = LocalLearner(net, mse, hl.Hyper.from_sgd(lr=0.1, momentum=momentum), **setting)
        for k in range(8):
            learner.step(hl.Sample(torch.tensor([k % 5, 2]), torch.randn(2, 3)))
        found.append([*net.parameters(), *learner.state.omega.values()])
    for dense, other in zip(*found, strict=True):
        torch.testing.assert_close(other, dense, rtol=1e-12, atol=1e-12)
