"""A running cost R(u, h, dh, y, θ, t) in H: against the plain equations, and against gradients of the sum."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import hamlearn as hl
from hamlearn import reference
from hamlearn.errors import ConfigError, SampleError
from tests.fuzz import laboratory
from tests.fuzz.laboratory import Cost, Timed, problem_of, relative, summed

MSE = nn.functional.mse_loss


def assert_follows(learner: hl.Learner, reports: Any, judge: Any, tolerance: float = 1e-12) -> None:
    for report, (expected, seen) in zip(reports, judge, strict=True):
        pairs = [(report.y, seen.y), (torch.as_tensor(report.hamiltonian), seen.hamiltonian)]
        theta, omega = dict(learner.network.named_parameters()), learner.state.omega
        pairs += [(theta[n].detach(), w) for n, w in expected.theta.items()]
        pairs += [(omega[n], w) for n, w in expected.omega.items()]
        pairs += list(zip(tree_leaves(learner.state.z), tree_leaves(expected.z), strict=False))
        for got, want in pairs:
            assert relative(got, want) < tolerance


@pytest.mark.parametrize("seed", range(200))
def test_random_settings_agree_with_plain_autograd(seed: int) -> None:
    """Running costs, fields of time, credits and orders of one's own; `tests.fuzz` compiles more of them."""
    laboratory.one(seed, "eager")


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 7, 9, 10, 14, 17, 19, 26, 46])
def test_compiled_settings_agree_too(seed: int) -> None:
    laboratory.one(seed, "compiled")


def network_of(kind: str) -> hl.Network:
    torch.manual_seed(3)
    if kind == "timed":
        return hl.Network(Timed(2, 4), Readout(4), h0=torch.zeros(3, 4)).double()
    if kind == "columns":
        return hl.Network.recurrent(hl.cells.ColumnarGRU(2, 4), nn.Linear(4, 1)).double()
    return hl.Network.recurrent({"gru": nn.GRUCell, "lstm": nn.LSTMCell}[kind](2, 4), nn.Linear(4, 1)).double()


class Readout(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, 1)

    def forward(self, u: Any, h: Any) -> Any:
        return self.linear(h) + u.sum(-1, keepdim=True)


CASES = [
    ("gru", hl.Echo()),
    ("lstm", hl.Echo(truncate=50)),
    ("timed", hl.Echo()),
    ("timed", hl.Echo(truncate=50)),
    ("columns", hl.Echo()),
    ("columns", hl.Sensitivity()),
]


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize(("kind", "credit"), CASES, ids=str)
def test_exact_credits_give_the_gradient_of_the_sum(kind: str, credit: hl.Credit, engine: str) -> None:
    network, hyper, cost = network_of(kind), hl.Hyper(tau=0.25, eta=0.0, beta=0.0, phi=0.7), Cost(1)
    samples = [
        hl.Sample(
            torch.randn(3, 2).double(), torch.randn(3, 1).double() if k % 3 else None, 0.1 if k == 2 else None
        )
        for k in range(7)
    ]
    samples[-1].boundary = True
    learner = hl.Learner(network, MSE, hyper, credit=credit, running_cost=cost)
    judge = summed(copy.deepcopy(network), hyper, samples, cost)
    for _ in learner.run(samples, engine=engine):
        pass
    for name, gradient in judge.items():
        assert relative(learner.state.omega[name], gradient) < 1e-12
    if isinstance(credit, hl.Echo):
        given = (network, MSE, hyper, start_of(network, samples[0].u), samples)
        after, _ = reference.echo_sequence(*given, credit.truncate, running_cost=cost)
        for name, gradient in judge.items():
            assert relative(after.omega[name], gradient) < 1e-12


def start_of(network: hl.Network, u: Any) -> Any:
    import dataclasses

    h0 = network.initial_state(u)
    return dataclasses.replace(
        reference.start(network), h=h0, z=torch.utils._pytree.tree_map(torch.zeros_like, h0)
    )


@pytest.mark.parametrize("order", ["sequential", "parallel"])
def test_sensitivities_follow_the_reference(order: str) -> None:
    network = network_of("columns")
    samples = [
        hl.Sample(torch.randn(1, 2).double(), torch.randn(1, 1).double(), boundary=k == 4) for k in range(8)
    ]
    hyper = hl.Hyper(tau=0.5, eta=0.4, beta=0.05)
    setting: dict[str, Any] = {"order": order, "credit": hl.Sensitivity(keep=0.9), "running_cost": Cost(4)}
    learner = hl.Learner(copy.deepcopy(network), MSE, hyper, **setting)
    assert_follows(learner, map(learner.step, samples), reference.run(network, MSE, hyper, samples, **setting))


def test_cleared_follows_the_gradient_of_the_present_cost_as_an_optimizer_does() -> None:
    def decay(u: Any, h: Any, dh: Any, y: Any, theta: Any, t: Any) -> torch.Tensor:
        return 0.05 * sum(weight.square().sum() for weight in theta.values())

    torch.manual_seed(0)
    network = hl.Network.feedforward(nn.Linear(3, 1)).double()
    twin = copy.deepcopy(network.output)
    learner = hl.Learner(network, MSE, hl.Hyper.from_sgd(lr=0.1, momentum=0.9), running_cost=decay)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(30):
        u, target = torch.randn(5, 3).double(), torch.randn(5, 1).double()
        learner.step(hl.Sample(u, target))
        optimizer.zero_grad()
        MSE(twin(u), target).backward()
        optimizer.step()
        assert relative(network.output.weight.detach(), twin.weight.detach()) < 1e-12


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_adam_takes_the_cost_into_both_moments(engine: str) -> None:
    problem, setting = problem_of(3)
    hyper = hl.Hyper.from_adam(lr=0.01, tau=0.5)
    setting["credit"], setting["order"] = hl.Cleared(), "sequential"
    learner = hl.Learner(copy.deepcopy(problem.network), MSE, hyper, **setting)
    judge = list(reference.run(copy.deepcopy(problem.network), MSE, hyper, problem.samples, **setting))
    for _ in learner.run(problem.samples, engine=engine):
        pass
    theta = dict(learner.network.named_parameters())
    for name, weight in judge[-1][0].theta.items():
        assert relative(theta[name], weight) < 1e-11
        assert relative(learner.state.v[name], judge[-1][0].v[name]) < 1e-11


def test_populations_and_copies_have_the_running_cost() -> None:
    cost, u, target = Cost(2), torch.randn(20, 1, 2).double(), torch.randn(20, 1, 1).double()

    def make(hyper: hl.Hyper) -> hl.Learner:
        network = hl.Network.recurrent(nn.RNNCell(2, 3), nn.Linear(3, 1)).double()
        return hl.Learner(network, MSE, hyper, running_cost=cost)

    samples = [hl.Sample(a, b) for a, b in zip(u, target, strict=True)]
    samples[-1].boundary = True
    hyper = hl.Hyper(tau=0.5, beta=0.02)
    singles = []
    for seed in range(3):
        torch.manual_seed(seed)
        singles.append(make(hyper))
    population = hl.Population.of(copy.deepcopy(singles))
    for _ in population.run(samples, engine="compiled"):
        pass
    for alone, member in zip(singles, population.members, strict=True):
        assert alone.running_cost is not None
        for sample in samples:
            alone.step(sample)
        for a, b in zip(alone.network.parameters(), member.network.parameters(), strict=True):
            assert relative(b.detach(), a.detach()) < 1e-12


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_net_is_given_the_time_as_it_goes_on_and_after_a_checkpoint(engine: str) -> None:
    class Clock(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unit = nn.Parameter(torch.ones(1, dtype=torch.float64))

        def forward(self, u: Any, h: Any, t: Any, tau: Any) -> Any:
            return self.unit * torch.cat([t.reshape(1), tau.reshape(1)]) + 0 * u

    network = hl.Network(Clock(), h0=torch.zeros(2).double(), transition="next")
    learner = hl.Learner(network, MSE, hl.Hyper(tau=0.5, beta=0.0))
    u = torch.zeros(2, dtype=torch.float64)
    samples = [hl.Sample(u, u, tau) for tau in (None, 2.0, None, 0.25)]
    seen = [report.y.tolist() for report in learner.run(samples, engine=engine)]
    assert seen == [[0.0, 0.5], [0.5, 2.0], [2.5, 0.5], [3.0, 0.25]]
    other = hl.Learner(copy.deepcopy(network), MSE, hl.Hyper(tau=0.5, beta=0.0))
    other.load_state_dict(learner.state_dict())
    assert other.predict(u).tolist() == [3.25, 0.5]
    assert other.step(hl.Sample(u, u)).y.tolist() == [3.25, 0.5]


def test_what_does_not_fit_is_named() -> None:
    network = hl.Network.feedforward(nn.Linear(2, 1))
    with pytest.raises(ConfigError, match=r"running_cost=1\.0 must be a function"):
        hl.Learner(network, MSE, running_cost=1.0)  # type: ignore[arg-type]
    learner = hl.Learner(network, MSE, running_cost=lambda u, h, dh, y, theta, t: y)
    with pytest.raises(ConfigError, match="running_cost returned float32"):
        learner.step(hl.Sample(torch.ones(1, 2)))
    learner = hl.Learner(network, MSE, running_cost=lambda u, h, dh, y, theta, t: y.sum())
    with pytest.raises(SampleError, match="with running_cost= a label that comes later"):
        learner.step(hl.Sample(torch.ones(1, 2), id=1))
    timed = hl.Network(Timed(2, 3), h0=torch.zeros(3))
    with pytest.raises(ConfigError, match="takes t or tau"):
        hl.Learner(timed, MSE, credit=hl.Sensitivity())


def test_a_cost_that_changes_is_recorded_again() -> None:
    cost, u = Cost(1), torch.ones(4, 1, 2)
    learner = hl.Learner(hl.Network.feedforward(nn.Linear(2, 1)), MSE, hl.Hyper(beta=0.0), running_cost=cost)
    learner.scan(u)
    cost.a += 1.0
    twin = copy.deepcopy(learner)
    after = learner.scan(u).hamiltonian
    for H, row in zip(after, u, strict=True):
        assert relative(H, torch.as_tensor(twin.step(hl.Sample(row)).hamiltonian)) < 1e-6
