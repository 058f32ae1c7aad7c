"""Rules by name for dense cells, each against the equation that defines it."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hamlearn as hl
from hamlearn.credit import RFLO, RTRL, UORO, EProp, SnAp
from hamlearn.errors import ConfigError
from hamlearn.rules.dense import RankOne
from hamlearn.state.carry import Carry

MSE = nn.functional.mse_loss
HYPER = hl.Hyper(tau=0.5, eta=0.0, beta=0.0, phi=0.8)
"""ω adds up, and the weights stay."""


def net(kind: Any = nn.RNNCell, size: int = 4) -> hl.Network:
    torch.manual_seed(0)
    return hl.Network.recurrent(kind(2, size), nn.Linear(size, 3)).double()


def draws(steps: int, batch: int = 2) -> list[hl.Sample]:
    torch.manual_seed(1)
    samples = []
    for k in range(steps):
        u, target = torch.randn(batch, 2).double(), torch.randn(batch, 3).double()
        samples.append(hl.Sample(u, target if k % 3 else None, boundary=k == steps - 1))
    return samples


def omega_after(
    network: hl.Network, credit: hl.Credit, samples: list[hl.Sample], engine: Any
) -> dict[str, Tensor]:
    learner = hl.Learner(copy.deepcopy(network), MSE, HYPER, credit=credit)
    for _ in learner.run(samples, engine=engine):
        pass
    return learner.state.omega


def assert_alike(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    for name, costate in other.items():
        torch.testing.assert_close(one[name], costate, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_rtrl_gives_the_gradient_of_backpropagation_through_time(kind: Any, engine: str) -> None:
    network, samples = net(kind), draws(6)
    found = omega_after(network, RTRL(), samples, engine)
    assert_alike(found, omega_after(network, hl.Echo(), samples, "eager"))


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_symmetric_e_prop_is_snap_1(engine: str) -> None:
    network, samples = net(), draws(6)
    judge = omega_after(network, hl.Sensitivity(strict=False), samples, "eager")
    assert_alike(omega_after(network, EProp(), samples, engine), judge)


class Wired(nn.Module):
    """h⁺ = tanh((W ⊙ M) h + U u + b), where M is a ring with one shortcut."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.hidden_size = size
        self.W, self.U = nn.Parameter(torch.randn(size, size)), nn.Parameter(torch.randn(size, 2))
        self.b = nn.Parameter(torch.zeros(size))
        mask = torch.eye(size).roll(1, 0) + torch.eye(size)
        mask[0, 2] = 1.0
        self.register_buffer("mask", mask)

    def forward(self, u: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(h @ (self.W * self.mask).T + u @ self.U.T + self.b)


def sparse_traces(cell: Any, samples: list[hl.Sample], n: int) -> list[tuple[Tensor, Tensor]]:
    """h and ∂h/∂W after each step, of W_kl at units that k reaches in n − 1 steps: entry by entry."""
    W, M, size = cell.W.detach(), cell.mask, cell.hidden_size
    near = torch.matrix_power(M + torch.eye(size).double(), n - 1) > 0
    h, E, found = torch.zeros(2, size).double(), torch.zeros(2, size, size, size).double(), []
    for sample in samples:
        new = cell(sample.u, h).detach()
        E1 = torch.zeros_like(E)
        for b, i, k, l in itertools.product(range(2), *[range(size)] * 3):
            if M[k, l] and near[i, k]:
                through = sum(W[i, j] * M[i, j] * E[b, j, k, l] for j in range(size))
                E1[b, i, k, l] = (1 - new[b, i] ** 2) * (through + (h[b, l] if i == k else 0.0))
        h, E = new, E1
        found.append((h, E))
    return found


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_snap_n_keeps_what_a_weight_reaches_in_n_steps(n: int, engine: str) -> None:
    torch.manual_seed(2)
    network, samples = hl.Network.recurrent(Wired(6), nn.Linear(6, 3)).double(), draws(6)
    wanted = torch.zeros(6, 6).double()
    for sample, (h, E) in zip(samples, sparse_traces(network.state, samples, n), strict=True):
        if sample.target is not None:
            h.requires_grad_()
            (z,) = torch.autograd.grad(MSE(network.output(h), sample.target), h)
            wanted = wanted + 0.5 * 0.8 * torch.einsum("bi,bikl->kl", z, E)
    found = omega_after(network, SnAp(n), samples, engine)
    torch.testing.assert_close(found["state.W"], wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize(
    ("kind", "n", "judge"),
    [
        (nn.RNNCell, 1, hl.Sensitivity(strict=False)),
        (nn.RNNCell, 2, RTRL()),
        (nn.LSTMCell, 2, RTRL()),
        (lambda *sizes: Wired(sizes[1]), 20, hl.Echo()),
    ],
)
def test_snap_leads_from_snap_1_to_exact_credit(kind: Any, n: int, judge: Any, engine: str) -> None:
    network, samples = net(kind), draws(6, 1)
    assert_alike(omega_after(network, SnAp(n), samples, engine), omega_after(network, judge, samples, "eager"))


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("credit", [EProp(feedback=3), RFLO(leak=0.7, feedback=5), RFLO(leak=0.4, feedback=None)])
def test_traces_and_feedback_follow_their_equations(credit: Any, engine: str) -> None:
    """h⁺ = tanh(a), p⁺_ij = leak·p_ij + (1 − h_i²) x_j, Δw_ij = Σ_batch (signal_i) p_ij, written out."""
    network, samples = net(), draws(7)
    cell, readout = network.state, network.output
    B = np.random.default_rng(credit.feedback).standard_normal((3, 4)) / 3**0.5
    h, wanted = torch.zeros(2, 4).double(), torch.zeros(4, 4).double()
    p = torch.zeros(2, 4, 4).double()
    for sample in samples:
        new = cell(sample.u, h).detach()
        slope = 1 - new.square()
        own = slope * cell.weight_hh.detach().diagonal() if credit.leak is None else credit.leak
        p = (own if isinstance(own, float) else own[..., None]) * p + slope[..., None] * h[:, None, :]
        h = new
        if sample.target is not None:
            y = readout(h).detach().requires_grad_()
            (dy,) = torch.autograd.grad(MSE(y, sample.target), y)
            back = torch.from_numpy(B) if credit.feedback is not None else readout.weight.detach()
            wanted = wanted + 0.5 * 0.8 * ((dy @ back)[..., None] * p).sum(0)
    found = omega_after(network, credit, samples, engine)["state.weight_hh"]
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_uoro_is_right_on_average_over_all_signs() -> None:
    network = net(size=3)
    learner = hl.Learner(network, MSE, HYPER, credit=UORO())
    order = learner._eager.parts.order
    assert isinstance(order, RankOne)
    torch.manual_seed(5)
    h, z = [torch.randn(1, 3).double()], [torch.zeros(1, 3).double()]
    E = [torch.randn_like(own) for own in order.first(h, None)]
    sample, omega = draws(1, 1)[0], [torch.zeros_like(w) for w in order.system.theta]
    now = learner._eager._instant(sample)
    total = [torch.zeros(3, *w.shape).double() for w in network.state.parameters()]
    for signs in itertools.product((-1.0, 1.0), repeat=3):
        order.signs = lambda like, nu=signs: torch.tensor(nu).to(like)  # type: ignore[method-assign]
        _, _, (a, *b) = order._forward(Carry(h, z, omega, None, E=E), now)
        total = [one + torch.einsum("n,...->n...", a, own) / 8 for one, own in zip(total, b, strict=True)]
    # One exact step from E = a b.
    exact = hl.Learner(network, MSE, HYPER, credit=RTRL())._eager.parts.order
    whole = [torch.einsum("n,...->n...", E[0], own) for own in E[1:]]
    _, _, wanted = exact._forward(Carry(h, z, omega, None, E=whole), now)
    for one, other in zip(total, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("credit", [UORO(), SnAp(1)], ids=str)
def test_rules_learn_and_resume(credit: hl.Credit) -> None:
    samples = draws(12, 1)

    def make() -> hl.Learner:
        return hl.Learner(net(), MSE, hl.Hyper(beta=0.01), credit=credit)

    hl.checks.check_learner(make, samples)


@pytest.mark.parametrize(
    ("kind", "order"), [(RTRL(), "parallel"), (SnAp(2), "parallel"), (UORO(), "parallel")], ids=str
)
def test_what_a_rule_cannot_do_is_named(kind: Any, order: Any) -> None:
    with pytest.raises(ConfigError, match="is defined for order='sequential' only"):
        hl.Learner(net(), MSE, order=order, credit=kind)
    with pytest.raises(ConfigError, match="leads errors of outputs back"):
        hl.Learner(net(), MSE, credit=RFLO(), running_cost=lambda u, h, dh, y, theta, t: y.sum())
    with pytest.raises(ConfigError, match=r"leak=1\.5 must be"):
        RFLO(leak=1.5)
    with pytest.raises(ConfigError, match="n=0 must be a whole number of steps"):
        SnAp(0)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_feedback_alignment_sends_errors_back_through_fixed_weights(engine: Any) -> None:
    torch.manual_seed(0)
    first, last = nn.Linear(2, 4).double(), hl.cells.FeedbackLinear(4, 3, seed=7).double()
    network = hl.Network.feedforward(nn.Sequential(first, nn.Tanh(), last))
    learner = hl.Learner(network, MSE, HYPER)
    u, target = torch.randn(5, 2).double(), torch.randn(5, 3).double()
    inner = torch.tanh(first(u)).detach()
    y = (inner @ last.weight.T + last.bias).detach()
    dy = 2 * (y - target) / y.numel()
    (report,) = learner.run([hl.Sample(u, target)], engine=engine)
    torch.testing.assert_close(report.y, y, rtol=1e-14, atol=1e-14)
    below = (dy @ last.feedback) * (1 - inner**2)
    wanted = {"output.0.weight": below.T @ u, "output.2.weight": dy.T @ inner, "output.2.bias": dy.sum(0)}
    for name, gradient in wanted.items():
        torch.testing.assert_close(learner.state.omega[name], 0.5 * 0.8 * gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("credit", [RTRL(), SnAp(), UORO()])
def test_a_learned_start_is_named_since_these_rules_do_not_reach_it(credit: Any) -> None:
    start = nn.Parameter(torch.zeros(1, 3))
    network = hl.Network.recurrent(nn.RNNCell(2, 3), nn.Linear(3, 1), h0=start)
    with pytest.raises(ConfigError, match="does not reach back to a learned h0"):
        hl.Learner(network, nn.functional.mse_loss, credit=credit)
