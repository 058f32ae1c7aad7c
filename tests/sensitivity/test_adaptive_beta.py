"""Sensitivities with a β that adapts and weights that decay."""

import copy

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn import reference
from tests.sensitivity.problems import network_of, stream

RULES = {
    "adam": hl.Hyper.from_adam(lr=0.01, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.05, tau=0.5),
    "adamw": hl.Hyper.from_adamw(lr=lambda t: 0.05 / (1 + t), eps=1e-3, weight_decay=0.2, tau=0.5),
    "sgd": hl.Hyper.from_sgd(lr=0.05, momentum=0.5, weight_decay=0.1),
}


@pytest.mark.parametrize("order", ["sequential", "parallel"])
@pytest.mark.parametrize(("rule", "kind"), [("adam", "columnar"), ("adamw", "rtu"), ("sgd", "columnar")])
def test_both_engines_adapt_and_decay_along_sensitivities_as_the_equations_say(rule, kind, order):
    torch.manual_seed(0)
    network, hyper, credit = network_of(kind), RULES[rule], hl.Sensitivity()
    samples = stream(30, 2, uneven=True)
    eager, compiled = (
        hl.Learner(copy.deepcopy(network), nn.functional.mse_loss, hyper, order=order, credit=credit) for _ in "ab"
    )
    judge = reference.run(network, nn.functional.mse_loss, hyper, samples, order=order, credit=credit)
    reports = zip(eager.run(samples), compiled.run(samples, engine="compiled", chunk=8), judge, strict=True)
    for one, other, (after, seen) in reports:
        expected = after
        assert abs(float(one.hamiltonian) - float(seen.hamiltonian)) < 1e-12
        assert abs(float(other.hamiltonian) - float(seen.hamiltonian)) < 1e-12
    for learner in (eager, compiled):
        assert learner.state.updates == expected.updates > 10
        for name, weight in learner.network.named_parameters():
            assert (weight - expected.theta[name]).abs().max() < 1e-12
            assert (learner.state.omega[name] - expected.omega[name]).abs().max() < 1e-12
        assert all((v - expected.v[name]).abs().max() < 1e-12 for name, v in learner.state.v.items())
    assert bool(eager.state.v) == (rule != "sgd")
