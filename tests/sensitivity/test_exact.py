"""Sensitivities against gradients that are found by going back, and against the plain equations."""

import copy

import pytest
import torch
from torch import nn

import hamlearn as hl
from tests.core.test_against_reference import compare
from tests.problems import Problem, random_hyper
from tests.sensitivity.problems import CELLS, bptt, network_of, stream

MSE = nn.functional.mse_loss


def at_rest(tau):
    return hl.Hyper(tau=tau, eta=0.0, phi=1 / tau, beta=0.0)


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("lanes", [None, 3])
@pytest.mark.parametrize("kind", CELLS)
def test_with_weights_at_rest_the_sum_of_omega_is_the_gradient_of_the_summed_loss(kind, lanes, engine):
    torch.manual_seed(3)
    network, uneven = network_of(kind), CELLS[kind](2, 5)[1] == "rate"
    samples = stream(40, lanes, uneven=uneven)
    learner = hl.Learner(copy.deepcopy(network), MSE, at_rest(0.5), credit=hl.Sensitivity())
    for _ in learner.run(samples, engine=engine, chunk=7):
        pass
    expected = bptt(network, samples, 0.5)
    for name, omega in learner.state.omega.items():
        close(omega, expected[name])
        assert omega.abs().max() > 1e-6


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("lanes", [None, 3])
@pytest.mark.parametrize("kind", ["gated", "gated rate", "columnar", "diagonal"])
def test_a_learned_first_state_gets_its_gradient_too(kind, lanes, engine):
    torch.manual_seed(4)
    network = network_of(kind, h0="learned")
    samples = stream(30, lanes, seed=1)
    learner = hl.Learner(copy.deepcopy(network), MSE, at_rest(0.5), credit=hl.Sensitivity())
    for _ in learner.run(samples, engine=engine, chunk=11):
        pass
    expected = bptt(network, samples, 0.5)
    for name, omega in learner.state.omega.items():
        close(omega, expected[name])
    assert expected["h0_0"].abs().max() > 1e-3


def problem_of(network, seed, lanes, clock):
    draw = torch.Generator().manual_seed(seed)
    hyper = random_hyper(network, draw, clock=clock)
    hyper = hl.Hyper(**{**vars(hyper), "s": -1})
    samples = stream(40, lanes, seed=seed, uneven=True)
    return Problem(network, MSE, hyper, samples)


@pytest.mark.parametrize("clock", ["events", "continuous"])
@pytest.mark.parametrize("order", ["sequential", "parallel"])
@pytest.mark.parametrize("kind", CELLS)
def test_both_orders_agree_with_the_equations(kind, order, clock):
    torch.manual_seed(5)
    problem = problem_of(network_of(kind), 6, 2, clock)
    compare(problem, 1e-12, order=order, credit=hl.Sensitivity(keep=0.9))


@pytest.mark.parametrize("order", ["sequential", "parallel"])
@pytest.mark.parametrize("kind", ["gated", "diagonal", "columnar"])
def test_a_learned_first_state_moves_as_the_equations_say(kind, order):
    torch.manual_seed(15)
    network = network_of(kind, h0="learned")
    hyper = hl.Hyper(tau=0.5, eta=0.4, beta=0.05, phi=2.0)
    problem = Problem(network, MSE, hyper, stream(40, 2, seed=16))
    compare(problem, 1e-12, order=order, credit=hl.Sensitivity())


@pytest.mark.parametrize("order", ["sequential", "parallel"])
@pytest.mark.parametrize("cell", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_dense_cells_keep_each_units_own_part_where_that_is_asked_for(cell, order):
    torch.manual_seed(6)
    network = hl.Network.recurrent(cell(2, 4), nn.Linear(4, 1)).double()
    compare(problem_of(network, 7, 2, "events"), 1e-12, order=order, credit=hl.Sensitivity(strict=False))


def follow(learner, samples, engine):
    reports = [(r.loss, r.y) for r in learner.run(samples, engine=engine, chunk=13)]
    return reports, learner


@pytest.mark.parametrize("order", ["sequential", "parallel"])
@pytest.mark.parametrize("kind", CELLS)
def test_engines_agree_while_the_weights_move(kind, order):
    torch.manual_seed(7)
    problem = problem_of(network_of(kind), 8, 3, "events")
    setting = {"order": order, "credit": hl.Sensitivity()}
    one, eager = follow(problem.learner(**setting), problem.samples, "eager")
    two, compiled = follow(problem.learner(**setting), problem.samples, "compiled")
    for (loss, y), (other, z) in zip(one, two, strict=True):
        close(y, z)
        assert (loss is None) == (other is None)
    for name, omega in eager.state.omega.items():
        close(omega, compiled.state.omega[name])
    assert eager.state.t == pytest.approx(compiled.state.t)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("kind", ["columnar", "rtu", "gated"])
def test_keeping_nothing_is_cleared_credit_bit_for_bit(kind, engine):
    torch.manual_seed(8)
    problem = problem_of(network_of(kind), 9, 2, "events")
    kept, cleared = (
        follow(problem.learner(order="sequential", credit=credit), problem.samples, engine)[1]
        for credit in (hl.Sensitivity(keep=0.0), hl.Cleared())
    )
    for name, weight in kept.network.named_parameters():
        assert torch.equal(weight, dict(cleared.network.named_parameters())[name])


def test_of_a_stack_the_topmost_layer_is_exact_and_those_below_are_close():
    torch.manual_seed(9)
    stack = hl.cells.Stack(hl.cells.RTU(2, 6), hl.cells.ColumnarGRU(12, 7))
    network = hl.Network.recurrent(stack, nn.Linear(7, 1)).double()
    samples = stream(60, 3, seed=2)
    expected = bptt(network, samples, 1.0)
    for engine in ("eager", "compiled"):
        learner = hl.Learner(copy.deepcopy(network), MSE, at_rest(1.0), credit=hl.Sensitivity())
        for _ in learner.run(samples, engine=engine):
            pass
        omega = learner.state.omega
        for name, gradient in expected.items():
            if name.startswith("state.cells.0"):
                cosine = nn.functional.cosine_similarity(omega[name].flatten(), gradient.flatten(), dim=0)
                assert 0.5 < cosine < 1 - 1e-9
            else:
                close(omega[name], gradient)


def test_members_of_a_population_end_where_they_would_alone():
    def make(hyper):
        network = hl.Network.recurrent(hl.cells.ColumnarGRU(2, 5), nn.Linear(5, 1)).double()
        return hl.Learner(network, MSE, hyper, credit=hl.Sensitivity())

    samples = stream(50, 2, seed=3)
    rates = [hl.Hyper.from_sgd(lr=lr, momentum=0.5) for lr in (0.01, 0.1)]
    population = hl.Population(make, rates, seeds=[0, 1])
    for _ in population.run(samples, chunk=9):
        pass
    for number, member in enumerate(population.members):
        torch.manual_seed(number % 2)
        alone = make(rates[number // 2])
        for _ in alone.run(samples):
            pass
        for name, weight in alone.network.named_parameters():
            close(dict(member.network.named_parameters())[name], weight)
