"""Measured order of convergence, and stages that agree with the literal right-hand sides."""

import copy
import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import nn

import hamlearn as hl
from hamlearn import reference
from hamlearn.integrators import Integrator


class Decay(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(-0.5))

    def forward(self, u, h):
        return self.rate * h + u


class Product(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.8))

    def forward(self, u, h):
        return self.gain * h


def phi(t):
    return 1 + 0.5 * math.sin(3 * t)


def eta(t):
    return 0.2 + 0.1 * math.cos(t)


def beta(t):
    return 0.3 / (1 + t)


def learner(integrator):
    network = hl.Network(Decay(), Product(), h0=torch.tensor(1.0)).double()
    hyper = hl.Hyper(eta=eta, beta=beta, phi=phi, clock="continuous")
    setting = {"order": "parallel", "credit": hl.Forward(), "integrator": integrator}
    return hl.Learner(network, lambda y, target: 0.5 * (y - target) ** 2, hyper, **setting)


def exact(end):
    """The same eight numbers by a solver of order 8 at tight tolerance: h, z, (θ, ω) of both weights."""

    def rates(t, x):
        h, z, a, oa, g, og = x
        error = g * h - 0.4
        return [
            a * h + 0.7,
            phi(t) * error * g + z * a - eta(t) * z,
            -beta(t) * oa,
            z * h - eta(t) * oa,
            -beta(t) * og,
            phi(t) * error * h - eta(t) * og,
        ]

    start = [1.0, 0.0, -0.5, 0.0, float(torch.tensor(0.8)), 0.0]
    return solve_ivp(rates, (0, end), start, method="DOP853", rtol=1e-13, atol=1e-14).y[:, -1]


@pytest.mark.parametrize("integrator", [hl.Euler(), hl.Heun(), hl.RK4()], ids=repr)
def test_the_error_falls_with_the_order_of_the_integrator_on_a_time_driven_problem(integrator):
    end, errors = 2.0, []
    steps = {1: [200, 400, 800, 1600], 2: [50, 100, 200, 400], 4: [16, 32, 64, 128]}[integrator.order]
    truth = exact(end)
    for count in steps:
        subject = learner(integrator)
        sample = hl.Sample(
            torch.tensor(0.7, dtype=torch.float64), torch.tensor(0.4, dtype=torch.float64), tau=end / count
        )
        for _ in range(count):
            subject.step(sample)
        state = subject.state
        theta = dict(subject.network.named_parameters())
        got = [state.h, state.z, theta["state.rate"], state.omega["state.rate"]]
        got += [theta["output.gain"], state.omega["output.gain"]]
        errors.append(max(abs(a.item() - b) for a, b in zip(got, truth, strict=True)))
    order = -np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert order == pytest.approx(integrator.order, abs=0.1)


def shifted(state, tau, rates):
    """state + τ·rates, in every part but the count of updates."""

    def add(a, b):
        return {n: a[n] + tau * b[n] for n in a} if isinstance(a, dict) else a + tau * b

    parts = {part: add(getattr(state, part), getattr(rates, part)) for part in ("h", "z", "theta", "omega")}
    return reference.ReferenceState(state.t + tau, **parts, updates=state.updates)


def test_rk4_stages_are_the_literal_right_hand_sides_at_the_stage_times():
    subject = learner(hl.RK4())
    network = copy.deepcopy(subject.network)
    loss = subject._eager.parts.system.loss
    sample = hl.Sample(torch.tensor(0.7, dtype=torch.float64), torch.tensor(0.4, dtype=torch.float64), tau=0.3)
    start = reference.start(network)
    one, zero = torch.tensor(1.0).double(), torch.tensor(0.0).double()
    state = reference.ReferenceState(0.0, one, zero, start.theta, start.omega)
    for _ in range(20):
        subject.step(sample)

        def rates(at):
            return reference.parallel_rates(network, loss, subject.hyper, at, sample, 0.3)[0]

        k1 = rates(state)
        k2 = rates(shifted(state, 0.15, k1))
        k3 = rates(shifted(state, 0.15, k2))
        k4 = rates(shifted(state, 0.3, k3))
        new = state
        for k, weight in ((k1, 1), (k2, 2), (k3, 2), (k4, 1)):
            new = shifted(new, 0.3 * weight / 6, k)
        state = reference.ReferenceState(state.t + 0.3, new.h, new.z, new.theta, new.omega, 1)
        assert (subject.state.h - state.h).abs() < 1e-12
        assert (subject.state.z - state.z).abs() < 1e-12
        for name, weight in subject.network.named_parameters():
            assert (weight - state.theta[name]).abs() < 1e-12
            assert (subject.state.omega[name] - state.omega[name]).abs() < 1e-12


@pytest.mark.parametrize("integrator", [hl.Heun(), hl.RK4()], ids=repr)
def test_within_a_step_dropout_is_one_mask_and_running_statistics_move_once(integrator):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.norm = nn.BatchNorm1d(3)
            self.drop = nn.Dropout(0.5)
            self.masks = []

        def forward(self, u, h):
            ones = self.drop(torch.ones(4, 3, dtype=u.dtype))
            self.masks.append(ones)
            return torch.tanh(self.norm(self.linear(u))) * ones - h

    torch.manual_seed(0)
    net = Noisy()
    network = hl.Network(net, h0=torch.zeros(4, 3)).double()
    hyper = hl.Hyper(tau=0.1, clock="continuous")
    subject = hl.Learner(network, nn.functional.mse_loss, hyper, "parallel", integrator=integrator)
    subject.step(hl.Sample(torch.randn(4, 3).double(), torch.zeros(4, 3).double()))
    assert len(net.masks) == {2: 2, 4: 4}[integrator.order]
    assert all(torch.equal(net.masks[0], mask) for mask in net.masks)
    assert net.norm.num_batches_tracked.item() == 1
    subject.step(hl.Sample(torch.randn(4, 3).double(), torch.zeros(4, 3).double()))
    assert not torch.equal(net.masks[0], net.masks[-1])


class Leapfrog(Integrator):
    """Half a step of the costates, a step of the state, half a step of the costates."""

    order, partitioned = 2, True

    def slope(self, derivative, t, x0, tau):
        n = len(x0) // 2
        q, p = x0[:n], x0[n:]
        kick = derivative(t, x0)[n:]
        p = [a + tau / 2 * b for a, b in zip(p, kick, strict=True)]
        drift = derivative(t + tau / 2, [*q, *p])[:n]
        q = [a + tau * b for a, b in zip(q, drift, strict=True)]
        kick_again = derivative(t + tau, [*q, *p])[n:]
        return [*drift, *((a + b) / 2 for a, b in zip(kick, kick_again, strict=True))]


class Late(Leapfrog):
    """Kicks at the wrong times."""

    def slope(self, derivative, t, x0, tau):
        return super().slope(lambda time, x: derivative(t + tau, x), t, x0, tau)


def test_a_partitioned_integrator_is_measured_on_a_problem_of_its_form():
    assert abs(hl.checks.check_integrator(Leapfrog()) - 2) < 0.05
    with pytest.raises(hl.checks.CheckFailedError, match=r"says order 2 but its error falls with order 0\.9"):
        hl.checks.check_integrator(Late())
