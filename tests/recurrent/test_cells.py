"""Ready-made state nets: stable where they say so, and learnable under every credit and uneven τ."""

import copy

import pytest
import torch
from torch import nn

import hamlearn as hl

MSE = nn.functional.mse_loss


def free_run(cell, tau, steps, scale=1.0):
    torch.manual_seed(0)
    u = torch.zeros(4, 2)
    start = cell.initial_state(u)
    pair = isinstance(start, tuple)
    h = scale * torch.randn(2 if pair else 1, *(start[0] if pair else start).shape)
    norms = [h.norm()]
    with torch.no_grad():
        for _ in range(steps):
            h = h + tau * (torch.stack(cell(u, tuple(h))) if pair else cell(u, h[0]))
            norms.append(h.norm())
    return torch.stack(norms)


def without_bias(cell):
    nn.init.zeros_(cell.inputs.bias)
    return cell


def test_leaky_neurons_stay_within_one():
    torch.manual_seed(1)
    cell = hl.cells.Leaky(2, 16, time_constant=2.0)
    h = cell.initial_state(torch.zeros(3, 2))
    with torch.no_grad():
        for k in range(500):
            h = h + (0.1 + (k % 7) * 0.3) * cell(5 * torch.randn(3, 2), h)
            assert h.abs().max() <= 1.0


def test_the_time_constant_of_a_leaky_neuron_is_what_it_says():
    cell = hl.cells.Leaky(1, 3, time_constant=4.0)
    nn.init.zeros_(cell.recurrent.weight)
    nn.init.zeros_(cell.inputs.weight)
    nn.init.zeros_(cell.inputs.bias)
    h = torch.ones(1, 3)
    assert torch.allclose(cell(torch.zeros(1, 1), h), -h / 4.0)


@pytest.mark.parametrize("rotating", [False, True])
def test_diagonal_neurons_decay_without_input_at_any_stable_step(rotating):
    torch.manual_seed(2)
    norms = free_run(hl.cells.Diagonal(2, 8, rotating, decay=(0.2, 1.0), frequency=0.3), tau=0.5, steps=200)
    assert (norms[1:] < norms[:-1]).all()
    assert norms[-1] < 1e-3 * norms[0]


def test_a_rotating_neuron_turns_and_decays_as_exp_of_lambda_t():
    cell = hl.cells.Diagonal(1, 1, rotating=True).double()
    nn.init.constant_(cell.log_decay, -1.0)
    nn.init.constant_(cell.frequency, 0.8)
    h, steps = torch.tensor([[1.0], [0.0]]).double(), 20_000
    with torch.no_grad():
        for _ in range(steps):
            h = h + (2.0 / steps) * torch.stack(cell(torch.zeros(1).double(), tuple(h)))
    turned = torch.exp(torch.complex(-torch.exp(torch.tensor(-1.0)), torch.tensor(0.8)).to(torch.complex128) * 2.0)
    assert abs(torch.complex(h[0, 0], h[1, 0]) - turned) < 1e-3


def test_antisymmetric_neurons_neither_explode_nor_vanish():
    torch.manual_seed(3)
    norms = free_run(without_bias(hl.cells.Antisymmetric(2, 16, gamma=0.0)), tau=0.01, steps=5_000, scale=0.1)
    assert norms.max() < 1.5 * norms[0]
    assert norms.min() > 0.5 * norms[0]


@pytest.mark.parametrize("credit", [hl.Forward(), hl.Cleared(), hl.Echo(every=5)], ids=repr)
@pytest.mark.parametrize(
    ("make", "beta"),
    [
        (lambda: hl.cells.Leaky(2, 8), 0.1),
        (lambda: hl.cells.Antisymmetric(2, 8), 0.02),
        (lambda: hl.cells.Diagonal(2, 8), 0.3),
        (lambda: hl.cells.Diagonal(2, 8, rotating=True), 0.1),
    ],
    ids=["leaky", "antisymmetric", "diagonal", "rotating"],
)
def test_every_cell_learns_a_wave_from_uneven_samples_with_every_credit(make, beta, credit):
    torch.manual_seed(4)
    cell = make()
    network = hl.Network.recurrent(cell, nn.Linear(cell.size, 1), transition="rate")
    hyper = hl.Hyper(tau=0.1, eta=2.0, eta_z=5.0, beta=beta, clock="continuous")
    learner = hl.Learner(network, MSE, hyper, order="sequential", credit=credit)
    start = {name: weight.detach().clone() for name, weight in network.named_parameters()}
    t, losses = 0.0, []
    for k in range(1500):
        tau = 0.05 + 0.1 * (k % 3 == 0)
        t += tau
        u = torch.tensor([[t, 2 * t]]).sin()
        losses.append(learner.step(hl.Sample(u, torch.tensor([[t - 0.4]]).sin(), tau=tau)).loss)
    assert torch.stack(losses[-300:]).mean() < 0.8 * torch.stack(losses[:300]).mean()
    assert all(not torch.equal(start[name], weight) for name, weight in network.named_parameters())


class Readout(nn.Linear):
    def __init__(self, size):
        super().__init__(size, 1)

    def forward(self, u, h):
        return super().forward(h)


def test_a_recurrent_network_of_rates_is_the_one_put_together_by_hand():
    torch.manual_seed(0)
    cell, head = hl.cells.Leaky(2, 4), nn.Linear(4, 1)
    by_hand = Readout(4)
    by_hand.load_state_dict(head.state_dict())
    one = hl.Network.recurrent(cell, head, transition="rate")
    other = hl.Network(copy.deepcopy(cell), by_hand)
    learners = [hl.Learner(network, MSE) for network in (one, other)]
    for tau in (None, 0.3, 1.7):
        u, target = torch.randn(1, 2), torch.randn(1, 1)
        y = [learner.step(hl.Sample(u, target, tau=tau)).y for learner in learners]
        assert torch.equal(*y)
    assert one.transition == "rate"
    assert torch.equal(learners[0].state.h, learners[1].state.h)
    with pytest.raises(hl.errors.ConfigError, match="transition='jump'"):
        hl.Network.recurrent(cell, head, transition="jump")
