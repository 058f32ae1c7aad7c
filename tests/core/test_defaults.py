"""What a learner is where nothing is said, in Python and in TOML, and that it learns."""

import inspect
import itertools
import math

import torch
from torch import nn

import hamlearn as hl
from hamlearn import reference
from hamlearn.experiments.run.build import build_hyper, build_learner
from hamlearn.experiments.run.config import check

MSE = nn.functional.mse_loss


def defaults(function):
    return {name: p.default for name, p in inspect.signature(function).parameters.items()}


def test_the_defaults_of_python_are_the_contract():
    said = {"tau": 1.0, "eta": 1.0, "beta": 0.01, "phi": 1.0, "s": -1, "eta_z": None, "phi_first": None}
    assert said.items() <= vars(hl.Hyper()).items()
    found = defaults(hl.Learner)
    assert found["hyper"] == hl.Hyper()
    assert (found["order"], found["credit"]) == ("sequential", hl.Cleared())
    assert (defaults(reference.run)["order"], defaults(reference.run)["credit"]) == ("sequential", hl.Cleared())


def test_the_defaults_of_toml_are_those_of_python():
    config = check({"stream": {"kind": "signals.henon"}})
    assert build_hyper(config) == hl.Hyper()
    network = hl.Network.recurrent(nn.GRUCell(1, 2), nn.Linear(2, 1))
    one, other = build_learner(config, network), hl.Learner(network, MSE)
    for name in ("hyper", "order", "credit", "reset_h", "on_nonfinite"):
        assert getattr(one, name) == getattr(other, name)


def test_the_default_learner_is_plain_gradient_descent_to_the_bit():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    network = hl.Network.feedforward(module)
    twin = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    twin.load_state_dict(module.state_dict())
    learner, optimizer = hl.Learner(network, MSE), torch.optim.SGD(twin.parameters(), lr=0.01)
    for _ in range(200):
        u, target = torch.randn(1, 3), torch.randn(1, 1)
        learner.step(hl.Sample(u, target))
        optimizer.zero_grad()
        MSE(twin(u), target).backward()
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), twin.parameters(), strict=True))


def test_a_line_is_learned_by_the_defaults_alone():
    torch.manual_seed(0)
    network = hl.Network.feedforward(nn.Linear(1, 1))
    learner = hl.Learner(network, MSE)
    for _ in range(5000):
        u = torch.rand(1, 1)
        learner.step(hl.Sample(u, target=2 * u + 1))
    assert abs(network.output.weight.item() - 2) < 0.01
    assert abs(network.output.bias.item() - 1) < 0.01


def test_a_wave_is_learned_by_the_defaults_alone():
    def wave():
        for k in itertools.count():
            now, later = math.sin(0.2 * k), math.sin(0.2 * (k + 5))
            yield hl.Sample(torch.tensor([[now]]), torch.tensor([[later]]))

    torch.manual_seed(0)
    network = hl.Network.recurrent(nn.GRUCell(1, 16), readout=nn.Linear(16, 1))
    learner = hl.Learner(network, MSE)
    losses = [report.loss.item() for report in learner.run(wave(), max_steps=3000)]
    assert sum(losses[:200]) / 200 > 0.3
    assert sum(losses[-200:]) / 200 < 0.03
