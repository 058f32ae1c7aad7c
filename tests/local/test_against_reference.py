"""Unaligned and delay-free learning against the plain equations on the whole graph, tick by tick."""

import copy

import pytest
import torch

import hamlearn as hl
from hamlearn import reference
from hamlearn.local import LocalLearner
from tests.local.cases import KINDS, hyper, make, mse, samples, skips, whole_network


def close(got: torch.Tensor, want: torch.Tensor) -> bool:
    return bool(((got - want).abs() <= 1e-12 * (1 + want.abs().max())).all())


def assert_same(learner: LocalLearner, expected: reference.ReferenceState, *, ended: bool) -> None:
    theta = dict(learner.module.named_parameters())
    for name, weight in theta.items():
        assert close(weight.detach(), expected.theta[f"state.module.{name}"])
        assert close(learner.state.omega[name], expected.omega[f"state.module.{name}"])
    assert learner.state.t == pytest.approx(expected.t)
    if not ended:
        for name, h in expected.h.items():
            assert close(learner.state.h[name], h)
            assert close(learner.state.z[name], expected.z[name])


@pytest.mark.parametrize("clock", ["events", "continuous"])
@pytest.mark.parametrize("order", ["parallel", "sequential"])
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_unaligned_agrees_with_the_equations_of_the_whole_graph_tick_by_tick(kind, stacked, order, clock):
    module = make(kind)
    judge_module = copy.deepcopy(module)
    names = [name for name, _ in module.named_parameters()]
    given = hyper(names, clock=clock)
    learner = LocalLearner(module, torch.nn.functional.mse_loss, given, stacked=stacked, order=order)
    assert bool(learner.stacks) == (stacked and kind in ("skips", "long chain"))
    stream = samples(kind, 50 if order == "parallel" else 25)
    judged = hl.Hyper(**{**vars(given), "beta": {f"state.module.{names[0]}": 0.02, "*": given.beta["*"]}})
    start = copy.deepcopy(dict(module.named_parameters()))
    for sample, (state, seen) in zip(
        stream, reference.run(whole_network(judge_module), mse, judged, stream, order, hl.Forward()), strict=True
    ):
        report = learner.step(sample)
        assert_same(learner, state, ended=sample.boundary)
        assert close(torch.as_tensor(report.hamiltonian), seen.hamiltonian)
        assert (report.loss is None) == (seen.loss is None)
        assert report.sample is sample
    assert all(bool((start[n] != w).any()) for n, w in module.named_parameters())


def test_holding_a_sample_is_showing_it_again():
    module = make("cyclic")
    twin = copy.deepcopy(module)
    held = LocalLearner(module, torch.nn.functional.mse_loss, hl.Hyper(eta=0.1), hold=5)
    single = LocalLearner(twin, torch.nn.functional.mse_loss, hl.Hyper(eta=0.1))
    for sample in samples("cyclic", 10):
        report = held.step(sample)
        for shown in range(5):
            again = single.step(hl.Sample(sample.u, sample.target, sample.tau, sample.boundary and shown == 4))
        assert torch.equal(report.y, again.y)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), twin.parameters(), strict=True))


def test_delay_free_output_is_that_of_a_feed_forward_pass():
    module = skips()
    learner = LocalLearner(module, torch.nn.functional.mse_loss, hl.Hyper(eta=0.0, beta=0.0), delay_free=True)
    for sample in samples("skips", 5):
        assert close(learner.step(sample).y, learner.predict(sample.u))
