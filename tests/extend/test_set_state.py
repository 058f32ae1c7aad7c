"""Costates that start from other values than 0."""

import copy
import dataclasses

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn import reference
from tests.core.test_against_reference import relative

MSE = nn.functional.mse_loss


def network():
    torch.manual_seed(0)
    return hl.Network.recurrent(nn.LSTMCell(2, 3), nn.Linear(3, 1)).double()


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("order", ["sequential", "parallel"])
@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_learner_continues_from_given_costates_as_the_equations_do(order, engine):
    net, hyper = network(), hl.Hyper(tau=0.25, eta=0.3, beta=0.05)
    learner = hl.Learner(copy.deepcopy(net), MSE, hyper, order=order, credit=hl.Forward())
    h, z = (draw(2, 3), draw(2, 3)), (draw(2, 3), draw(2, 3))
    omega = {name: torch.randn_like(weight) for name, weight in net.named_parameters()}
    learner.set_state(h=h, z=z, omega=omega)
    state = dataclasses.replace(reference.start(net), h=h, z=z, omega=omega)
    samples = [hl.Sample(draw(2, 2), draw(2, 1)) for _ in range(5)]
    for _ in learner.run(samples, engine=engine):
        pass
    step = reference.parallel_step if order == "parallel" else reference.sequential_step
    for sample in samples:
        state, _ = step(net, MSE, hyper, state, sample)
    for name, costate in state.omega.items():
        assert relative(learner.state.omega[name], costate) < 1e-12
    for own, costate in zip(learner.state.z, state.z, strict=True):
        assert relative(own, costate) < 1e-12


def test_what_is_not_given_stays_and_what_is_given_is_copied():
    learner = hl.Learner(network(), MSE, credit=hl.Forward())
    learner.step(hl.Sample(draw(1, 2), draw(1, 1)))
    before = copy.deepcopy(learner.state)
    bias = torch.ones(1, dtype=torch.float64)
    learner.set_state(omega={"output.bias": bias})
    bias.zero_()
    assert learner.state.omega["output.bias"].item() == 1
    assert torch.equal(learner.state.h[0], before.h[0])
    assert torch.equal(learner.state.omega["output.weight"], before.omega["output.weight"])
    h = (draw(1, 3), draw(1, 3))
    learner.set_state(h=h)
    assert torch.equal(learner.state.h[1], h[1])
    assert not learner.state.z[0].any()
    sensitive = hl.Learner(
        hl.Network.recurrent(hl.cells.ColumnarGRU(2, 3), nn.Linear(3, 1)), MSE, credit=hl.Sensitivity()
    )
    sensitive.set_state(h=torch.ones(1, 3))
    assert sensitive.step(hl.Sample(torch.ones(1, 2), torch.ones(1, 1))).loss.isfinite()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"z": torch.zeros(1, 3)}, "z was given, and there is no state yet"),
        ({"h": (torch.zeros(1, 3), torch.zeros(1, 3)), "z": torch.zeros(1, 3)}, "does not fit the state of"),
        ({"omega": {"weight": torch.zeros(1)}}, "omega names 'weight', which is not a learnable weight"),
        ({"omega": {"output.bias": torch.zeros(2)}}, "omega of 'output.bias' has shape"),
        ({"h": 3.0}, "is not a state of this network"),
    ],
)
def test_what_does_not_fit_is_named(given, message):
    with pytest.raises(hl.errors.ConfigError, match=message):
        hl.Learner(network(), MSE).set_state(**given)
