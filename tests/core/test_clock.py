"""Samples at uneven times: the clock of events, the continuous clock, and where they are the same."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.engine.rates_table import RateSettings, Steps, time_steps
from hamlearn.rules.velocity import Velocity
from hamlearn.streams.blocks import stacked
from tests.problems import Problem, make_network, random_problem

MSE = nn.functional.mse_loss
SETTINGS = [
    {"order": "parallel", "credit": hl.Forward()},
    {"order": "sequential", "credit": hl.Forward()},
    {"order": "sequential", "credit": hl.Cleared()},
    {"order": "sequential", "credit": hl.Echo()},
    {"order": "sequential", "credit": hl.Echo(truncate=3, every=2, dissipate="token")},
]


def equal(one, other):
    pairs = zip(one.network.parameters(), other.network.parameters(), strict=True)
    omegas = zip(one.state.omega.values(), other.state.omega.values(), strict=True)
    return all(torch.equal(a, b) for a, b in (*pairs, *omegas))


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", ["rate", "lstm"])
def test_at_the_nominal_step_both_clocks_take_the_literal_step_to_the_bit(kind, setting, engine):
    problem = random_problem(kind, 4, 20)
    steady = replace(problem.hyper, s=-1, tau=0.3, eta=0.7, eta_z=0.9, phi=1.1)
    told = [replace(sample, tau=0.3 if k % 2 else None) for k, sample in enumerate(problem.samples)]
    learners = []
    for clock in ("events", "continuous"):
        learner = Problem(problem.network, problem.loss, replace(steady, clock=clock), told).learner(**setting)
        told[-1].boundary = True
        list(learner.run(told, engine=engine, chunk=8))
        learners.append(learner)
    assert equal(*learners)
    assert any(bool(omega.any()) for omega in learners[0].state.omega.values())


def line(count, tau):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        u = torch.randn(1, 3, generator=generator)
        yield hl.Sample(u, u @ torch.tensor([[1.0], [-2.0], [0.5]]), tau=tau)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("kind", ["output", "next"])
def test_learning_does_not_depend_on_the_unit_of_time_to_the_bit(kind, engine):
    # No stamps; a sensor of 500 Hz with stamps in seconds; one sample every three minutes.
    torch.manual_seed(0)
    network = hl.Network.feedforward(nn.Linear(3, 1)) if kind == "output" else make_network("next", 3, 4, 1, (1,))
    found = []
    for tau in (None, 0.002, 180.0):
        problem = Problem(network, MSE, hl.Hyper.from_sgd(lr=0.02), list(line(800, tau)))
        learner = problem.learner(order="sequential", credit=hl.Cleared())
        losses = torch.stack([report.loss for report in learner.run(problem.samples, engine=engine)])
        found.append((learner, losses))
    for learner, losses in found[1:]:
        assert torch.equal(losses, found[0][1])
        assert equal(learner, found[0][0])
    if kind == "output":
        assert found[0][1][-1] < 1e-8


def test_a_gap_dissipates_as_its_parts_do():
    def left(gaps, eta=0.6):
        learner = hl.Learner(hl.Network.feedforward(nn.Linear(1, 1).double()), MSE, hl.Hyper(eta=eta, beta=0.0))
        nn.init.zeros_(learner.network.output.weight)
        nn.init.zeros_(learner.network.output.bias)
        learner.step(hl.Sample(torch.ones(1, 1).double(), torch.ones(1, 1).double()))
        for tau in gaps:
            learner.step(hl.Sample(torch.ones(1, 1).double(), tau=tau))
        return learner.state.omega["output.bias"].item() / -2.0

    assert left([3.5]) == pytest.approx(0.4**3.5, rel=1e-14)
    assert left([0.25, 1.75, None, 0.5]) == pytest.approx(left([3.5]), rel=1e-14)
    assert left([1e6]) == 0.0
    assert left([1e-6], eta=1.0) == 0.0  # nothing is kept over any gap
    assert left([1e-6], eta=1e-9) == pytest.approx(1 - 1e-15, rel=1e-16)


def test_without_momentum_nothing_is_kept_over_short_gaps_whatever_the_rounding_of_tau_times_eta():
    hyper = hl.Hyper.from_sgd(lr=0.1, tau=49.0)
    assert 1 - 49.0 * hyper.eta > 0  # by rounding
    rates = hyper.at(0.0, 0.001)
    assert 1 - rates.stride * rates.eta == 1 - 49.0 * hyper.eta


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hl.Hyper(eta=3.0), r"eta=3 times tau=1 is 3: .*at most 1/tau = 1, or use clock='continuous'"),
        (lambda: hl.Hyper(tau=0.5, eta=1.0, eta_z=2.5), r"eta_z=2.5 times tau=0.5 is 1.25"),
        (lambda: hl.Hyper(tau=lambda t: 2.0).at(3.0), r"eta=1 times tau=2 at t=3 is 2"),
        (lambda: hl.Hyper(eta=lambda t: 1 + t).at(0.5), r"eta=1.5 times tau=1 at t=0.5"),
        (lambda: hl.Hyper(clock="sun"), "clock='sun' must be 'events' or 'continuous'"),
        (lambda: hl.optim.HL([nn.Parameter(torch.zeros(1))], clock="sun"), "clock='sun' must be"),
        (
            lambda: hl.Learner(make_network("rate", 1, 2, 1, (1,)), MSE, order="parallel", integrator=hl.Heun()),
            r"Heun\(\) follows the equations within a step.*clock='continuous'",
        ),
    ],
)
def test_what_the_clock_of_events_cannot_do_is_named_with_a_remedy(make, message):
    with pytest.raises(hl.errors.ConfigError, match=message):
        make()


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("credit", [hl.Cleared(), hl.Echo(every=2)], ids=repr)
def test_a_gap_too_long_for_the_continuous_clock_is_told_once(credit, engine):
    torch.manual_seed(0)
    network = make_network("next", 1, 2, 1, (1,))
    learner = hl.Learner(network, MSE, hl.Hyper(eta=0.1, beta=0.0, clock="continuous"), credit=credit)
    samples = [hl.Sample(torch.ones(1, 1), torch.ones(1, 1), tau=tau) for tau in (1.0, 10.0, 30.0, 40.0, 1.0)]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        list(learner.run(samples, engine=engine, chunk=2))
        list(learner.run(samples, engine=engine, chunk=2))
    told = [str(warning.message) for warning in seen]
    assert len(told) == 1
    assert "eta=0.1 times tau=30 is 3" in told[0]
    assert "changes its sign" in told[0]
    assert "clock='events'" in told[0]


def test_a_local_learner_tells_it_too():
    module = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1))
    learner = hl.local.LocalLearner(module, MSE, hl.Hyper(eta=0.1, beta=0.0, clock="continuous"))
    with pytest.warns(RuntimeWarning, match="eta=0.1 times tau=30 is 3"):
        learner.step(hl.Sample(torch.ones(1, 1), torch.ones(1, 1), tau=30.0))


def test_the_optimizer_tells_once_that_a_step_of_the_continuous_clock_is_too_long():
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    optimizer = hl.optim.HL([weight], lr=0.1, momentum=0.9, clock="continuous")
    with pytest.warns(RuntimeWarning, match=r"30 times tau with momentum=0.9 leaves -2 of the costate"):
        optimizer.step(tau=30.0)
    optimizer.step(tau=30.0)


def _length(generator):
    """A time step as a stream may carry it: none, the nominal one, a whole number, short, long."""
    kind = int(torch.randint(6, (), generator=generator))
    drawn = float(torch.rand((), generator=generator, dtype=torch.float64))
    return [None, 0.5, drawn, 100 * drawn, 1e-9 + 1e-6 * drawn, float.fromhex("0x1p-1074")][kind]


@pytest.mark.parametrize("clock", ["events", "continuous"])
@pytest.mark.parametrize(
    "rates", [{"eta": 0.3}, {"eta": 2.0}, {"eta": 0.0}, {"eta": 0.7, "eta_z": 1.9}, {"eta": 2.0, "eta_z": 0.1}]
)
def test_rates_of_many_steps_are_those_of_each_to_the_bit(clock, rates):
    generator = torch.Generator().manual_seed(0)
    hyper = hl.Hyper(tau=0.5, phi=0.3, clock=clock, **rates)
    taus = [_length(generator) for _ in range(500)]
    settings, yes = RateSettings([hyper], [Velocity(1.0, [], [])], "sequential"), np.ones((500, 1), dtype=bool)
    steps = Steps(len(taus), time_steps(taus)[:, None], None, yes, yes[0])
    table = settings.table(np.zeros(1), np.zeros(1, dtype=int), steps)
    assert table.rates[:, 0].tolist() == [list(hyper.at(0.0, tau)[:5]) for tau in taus]


@pytest.mark.parametrize("odd", [0.0, -1.0, math.nan, math.inf, "1", True, torch.tensor(1.0)])
def test_a_block_ends_before_what_is_no_time_step(odd):
    settings = RateSettings([hl.Hyper()], [Velocity(1.0, [], [])], "sequential")
    block = stacked([hl.Sample(torch.ones(1), tau=2.0)] * 4)[0]
    block.tau = [None, 2, 1.0, odd]
    table = settings.table(np.zeros(1), np.zeros(1, dtype=int), Steps.of(block))
    assert table.rates[:, 0, 0].tolist() == [1.0, 2.0, 1.0]
