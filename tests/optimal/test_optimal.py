"""`hl.optimal`: judged by a Riccati recursion, by the costate equations run backward, and by learners."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn import reference
from hamlearn.errors import ConfigError, SampleError
from tests.problems import RateNet

pytestmark = pytest.mark.contract


def half_square(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return 0.5 * (y - target).square().sum()


def recording(steps: int, inputs: int, seed: int, outputs: int = 1, gaps: bool = False) -> list[hl.Sample]:
    rng = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    return [
        hl.Sample(
            draw(1, inputs), None if gaps and k % 4 == 2 else draw(1, outputs), boundary=gaps and k == steps // 2
        )
        for k in range(steps)
    ]


def riccati(samples: list[hl.Sample], theta: np.ndarray, hyper: hl.Hyper) -> tuple[float, np.ndarray]:
    """Minimal cost and weights of y = θ·u with L = ½(y − a)², by dynamic programming: V_k(θ) = ½θPθ + qθ + r."""
    n, N = len(theta), len(samples)
    P, q, r, gains = np.zeros((n, n)), np.zeros(n), 0.0, []
    for k in reversed(range(N)):
        e = math.exp(hyper.eta * hyper.tau * (k - N + 1)) * hyper.tau
        # min over v of ½(e/β)v² + V(θ + τv):  v = −K θ − g
        A = e / hyper.beta * np.eye(n) + hyper.tau**2 * P
        K, g = np.linalg.solve(A, hyper.tau * P), np.linalg.solve(A, hyper.tau * q)
        moved = np.eye(n) - hyper.tau * K
        r = r + e / hyper.beta * 0.5 * g @ g + 0.5 * hyper.tau**2 * g @ P @ g - hyper.tau * q @ g
        q = e / hyper.beta * K.T @ g + moved.T @ (q - hyper.tau * P @ g)
        P = e / hyper.beta * K.T @ K + moved.T @ P @ moved
        u, a = samples[k].u.numpy()[0], float(samples[k].target)
        P, q, r = P + e * hyper.phi * np.outer(u, u), q - e * hyper.phi * a * u, r + e * hyper.phi * 0.5 * a * a
        gains.append((K, g))
    cost = float(0.5 * theta @ P @ theta + q @ theta + r)
    path = [theta]
    for K, g in reversed(gains):
        path.append(path[-1] + hyper.tau * (-K @ path[-1] - g))
    return cost, np.array(path)


@pytest.mark.parametrize("seed", range(6))
def test_linear_quadratic_optimum_is_that_of_riccati(seed: int) -> None:
    rng = np.random.default_rng(seed)
    hyper = hl.Hyper(
        tau=rng.uniform(0.05, 1.0), eta=rng.uniform(0, 0.3), beta=10 ** rng.uniform(-2, 1), phi=rng.uniform(0.3, 3)
    )
    torch.manual_seed(seed)
    network = hl.Network.feedforward(nn.Linear(3, 1, bias=False, dtype=torch.float64))
    samples = recording(int(rng.integers(5, 60)), 3, seed)
    cost, path = riccati(samples, network.output.weight.detach().numpy()[0], hyper)
    best = hl.optimal.solve(network, half_square, samples, hyper)
    assert best.converged
    assert best.cost == pytest.approx(cost, rel=1e-9)
    np.testing.assert_allclose(
        best.theta["output.weight"][:, 0].numpy(), path, rtol=0, atol=1e-6 * np.abs(path).max()
    )


@pytest.mark.parametrize("order", ["sequential", "parallel"])
def test_optimum_satisfies_the_costate_equations_run_backward(order: str) -> None:
    """ż = −∂H/∂h − ηz, ω̇ = −∂H/∂θ − ηω from z = ω = 0 at the end, and θ̇ = −βω, step by step."""
    torch.manual_seed(1)
    network = hl.Network.recurrent(
        RateNet(2, 3).double(), nn.Linear(3, 1).double(), h0=torch.zeros(3, dtype=torch.float64), transition="rate"
    )
    samples = recording(12, 2, 2)
    hyper = hl.Hyper(tau=0.3, eta=0.2, beta={"state.*": 0.4, "*": 0.9}, phi=1.5)
    best = hl.optimal.solve(network, half_square, samples, hyper, order=order, tolerance=1e-10)
    assert best.converged
    state = reference.start(network)
    names = list(best.theta)
    h = [torch.zeros(3, dtype=torch.float64)]
    for k, sample in enumerate(samples):
        theta = state.theta | {n: best.theta[n][k] for n in names}
        h.append((h[-1] + hyper.tau * reference.f_h(network, theta, sample.u, h[-1], hyper.tau)).detach())
    z, omega = torch.zeros(1, 3, dtype=torch.float64), {n: torch.zeros_like(best.theta[n][0]) for n in names}
    grow = math.exp(hyper.eta * hyper.tau)
    for k in reversed(range(len(samples))):
        for n in names:
            torch.testing.assert_close(best.omega[n][k], omega[n], rtol=0, atol=1e-12)
            beta = 0.4 if n.startswith("state") else 0.9
            torch.testing.assert_close(best.velocity[n][k], -beta * omega[n], rtol=0, atol=1e-7)
        theta = {n: best.theta[n][k].clone().requires_grad_() for n in names}
        now = h[k].clone().requires_grad_()
        after = now + hyper.tau * reference.f_h(network, theta, samples[k].u, now, hyper.tau)
        y = reference.f_y(network, theta, samples[k].u, after if order == "sequential" else now)
        local = (
            hyper.tau * hyper.phi * half_square(y, samples[k].target) + (z.reshape(-1) * after.reshape(-1)).sum()
        )
        found = torch.autograd.grad(local, [now, *theta.values()], allow_unused=True, materialize_grads=True)
        z = grow * found[0].reshape(1, 3)
        omega = {n: grow * (omega[n] + g) for n, g in zip(names, found[1:], strict=True)}


@pytest.mark.parametrize("seed", range(2))
def test_no_learner_pays_less_than_the_optimum(seed: int) -> None:
    torch.manual_seed(seed)

    def make() -> hl.Network:
        return hl.Network.recurrent(nn.GRUCell(2, 2).double(), nn.Linear(2, 1).double())

    network, samples = make(), recording(12, 2, seed, gaps=True)
    price = hl.Hyper(tau=0.5, eta=0.1, beta=0.3, weight_decay=0.01)
    best = hl.optimal.solve(network, half_square, samples, price, tolerance=1e-6)
    at_rest = hl.Hyper(tau=0.5, eta=0.1, beta=1e-12)
    paid = {}
    for credit in (hl.Cleared(), hl.Forward(), hl.Sensitivity(strict=False), hl.Echo(every=5)):
        for hyper in (price, at_rest):
            twin = make()
            twin.load_state_dict(network.state_dict())
            learner = hl.Learner(twin, half_square, hyper, credit=credit)
            paid[type(credit).__name__, hyper.beta] = hl.optimal.follow(learner, samples, price=price).cost
    assert best.converged
    assert best.cost < min(paid.values())


def test_follow_reports_the_losses_of_the_learner_and_its_cost() -> None:
    torch.manual_seed(0)
    network = hl.Network.recurrent(nn.RNNCell(2, 3).double(), nn.Linear(3, 1).double())
    samples = recording(15, 2, 5, gaps=True)
    hyper = hl.Hyper(tau=0.5, eta=0.4, beta={"output.*": 0.1, "*": lambda t: 0.05 / (1 + t)}, phi=0.8)
    seen, paths = [], []
    twin = hl.Network.recurrent(nn.RNNCell(2, 3).double(), nn.Linear(3, 1).double())
    twin.load_state_dict(network.state_dict())
    learner = hl.Learner(twin, half_square, hyper, credit=hl.Forward())
    for sample in samples:
        before = {n: p.detach().clone() for n, p in twin.named_parameters()}
        seen.append(learner.step(sample))
        paths.append({n: (p.detach() - before[n]) / 0.5 for n, p in twin.named_parameters()})
    found = hl.optimal.follow(hl.Learner(network, half_square, hyper, credit=hl.Forward()), samples)
    cost = 0.0
    for k, (report, velocity) in enumerate(zip(seen, paths, strict=True)):
        factor = math.exp(0.4 * 0.5 * (k - 14)) * 0.5
        torch.testing.assert_close(found.y[k], report.y, rtol=0, atol=1e-12)
        if report.loss is None:
            assert torch.isnan(found.losses[k])
        else:
            assert found.losses[k].item() == pytest.approx(float(report.loss), abs=1e-12)
            cost += factor * 0.8 * float(report.loss)
        for name, v in velocity.items():
            beta = 0.1 if name.startswith("output") else 0.05 / (1 + 0.5 * k)
            cost += factor * 0.5 * float(v.square().sum()) / beta
    assert found.cost == pytest.approx(cost, rel=1e-10)
    assert found.cost == found.loss_cost + found.motion_cost


def test_weights_with_beta_zero_rest_and_frozen_weights_are_left_out() -> None:
    torch.manual_seed(0)
    network = hl.Network.feedforward(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)).double())
    network.output[2].bias.requires_grad_(False)
    samples = recording(10, 2, 0)
    best = hl.optimal.solve(network, half_square, samples, hl.Hyper(beta={"*0.weight": 0.0, "*": 0.5}))
    assert "output.2.bias" not in best.theta
    assert not best.velocity["output.0.weight"].any()
    assert best.velocity["output.2.weight"].any()


def test_the_network_is_left_as_it_was() -> None:
    network = hl.Network.feedforward(nn.Linear(2, 1).double())
    before = {n: p.detach().clone() for n, p in network.named_parameters()}
    hl.optimal.solve(network, half_square, recording(5, 2, 0), hl.Hyper())
    assert all(torch.equal(p, before[n]) and p.grad is None for n, p in network.named_parameters())


def test_errors_say_what_to_give() -> None:
    network = hl.Network.feedforward(nn.Linear(2, 1).double())
    with pytest.raises(SampleError, match="at least one"):
        hl.optimal.solve(network, half_square, [], hl.Hyper())
    with pytest.raises(ConfigError, match="Adaptive"):
        hl.optimal.solve(network, half_square, recording(2, 2, 0), hl.Hyper.from_adam())
    network.requires_grad_(False)
    with pytest.raises(ConfigError, match="requires_grad"):
        hl.optimal.solve(network, half_square, recording(2, 2, 0), hl.Hyper())


def test_energy_is_conserved_with_the_original_sign_and_counts_every_term():
    torch.manual_seed(1)
    network = hl.Network.recurrent(nn.GRUCell(2, 3), nn.Linear(3, 1), transition="rate").double()
    hyper = hl.Hyper(tau=0.01, eta=0.0, beta={"state.*": 0.1, "output.*": 0.2}, phi=0.8, s=1, clock="continuous")

    def cost(u, h, dh, y, theta, t):
        return 0.1 * (h * dh).sum() + 0.05 * y.square().sum() + 0.01 * theta["output.weight"].square().sum()

    setting = {"order": "parallel", "credit": hl.Forward(), "integrator": hl.RK4(), "running_cost": cost}
    learner = hl.Learner(network, nn.functional.mse_loss, hyper, **setting)
    sample = hl.Sample(torch.randn(1, 2).double(), torch.randn(1, 1).double())
    first = hl.optimal.energy(learner, sample)
    assert first.hamiltonian == first.cost
    for _ in range(100):
        learner.step(sample)
    H, C = hl.optimal.energy(learner, sample)
    assert abs(H - first.hamiltonian) < 1e-10
    state, (before, report) = learner.state, (hl.optimal.energy(learner, sample), learner.step(sample))
    motion = sum(hyper.beta[f"{n.partition('.')[0]}.*"] * w.square().sum() for n, w in state.omega.items()) / 2
    assert abs(before.hamiltonian - (report.hamiltonian - motion)) < 1e-12
    assert C > H


def test_an_optimum_is_that_of_the_loss_alone():
    network = hl.Network.feedforward(nn.Linear(1, 1))
    learner = hl.Learner(network, nn.functional.mse_loss, running_cost=lambda u, h, dh, y, theta, t: y.sum())
    with pytest.raises(hl.errors.ConfigError, match="without running_cost"):
        hl.optimal.follow(learner, [hl.Sample(torch.ones(1, 1), torch.ones(1, 1))])
