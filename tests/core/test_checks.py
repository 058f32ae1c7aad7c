"""The conformance kit passes what keeps its promises and finds what does not."""

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn import checks
from tests.problems import NETWORKS, make_network, random_samples

SETTINGS = [
    {"order": "parallel", "credit": hl.Forward()},
    {"order": "parallel", "credit": hl.Forward(), "integrator": hl.RK4()},
    {"order": "sequential", "credit": hl.Forward()},
    {},
    {"order": "sequential", "credit": hl.Cleared(), "reset_h": "sample"},
    {"order": "sequential", "credit": hl.Echo()},
    {"order": "sequential", "credit": hl.Echo(truncate=2, every=3)},
]


def samples(count=9):
    """The first target is not known either: nothing is learned yet when the kit saves for the first time."""
    given = random_samples(count, 2, batch=(3,), missing=3, length=6)
    given[0].target = None
    return given


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", ["rate", "tree", "lstm", "next"])
def test_our_learners_pass(kind, setting):
    def make():
        torch.manual_seed(1)
        network = make_network(kind, 2, 4, 2, (3,))
        clock = "continuous" if "integrator" in setting else "events"
        hyper = hl.Hyper(tau=0.2, beta=0.05, eta=0.1, clock=clock)
        return hl.Learner(network, nn.functional.mse_loss, hyper, **setting)

    checks.check_learner(make, samples())


@pytest.mark.parametrize("kind", NETWORKS)
def test_our_networks_pass(kind):
    torch.manual_seed(0)
    outputs = 4 if kind == "tied" else 2
    checks.check_network(make_network(kind, 2, 4, outputs, (3,)), torch.randn(3, 2), torch.randn(3, outputs))


@pytest.mark.parametrize(
    "cell", [hl.cells.Leaky(2, 5), hl.cells.Antisymmetric(2, 5), hl.cells.Diagonal(2, 5, True)]
)
def test_our_cells_pass(cell):
    network = hl.Network.recurrent(cell, transition="rate").double()
    size = network.output_net(None, network.initial_state(torch.zeros(3, 2))).shape[-1]
    checks.check_network(network, torch.randn(3, 2).double(), torch.randn(3, size).double())


@pytest.mark.parametrize("integrator", [hl.Euler(), hl.Heun(), hl.RK4()], ids=repr)
def test_our_integrators_pass(integrator):
    assert checks.check_integrator(integrator) == pytest.approx(integrator.order, abs=0.1)


def plain():
    torch.manual_seed(1)
    network = make_network("next", 2, 4, 2, (3,))
    return network, nn.functional.mse_loss, hl.Hyper(tau=0.2, eta=0.0, beta=0.05)


class MovesOnPredict(hl.Learner):
    def predict(self, u, tau=None):
        self.step(hl.Sample(u))
        return super().predict(u)


class ForgetsOmega(hl.Learner):
    def load_state_dict(self, state, *, new_hyper=False):
        super().load_state_dict(state, new_hyper=new_hyper)
        carry = self._eager.state.carry
        carry.omega = [torch.zeros_like(o) for o in carry.omega]


class TakesAnything(hl.Learner):
    def step(self, sample):
        if sample.tau is not None:
            sample = hl.Sample(sample.u, sample.target)
        return super().step(sample)


class KeepsGraphs(hl.Learner):
    def step(self, sample):
        report = super().step(sample)
        report.y = report.y.requires_grad_()
        return report


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (MovesOnPredict, "predict"),
        (ForgetsOmega, "saved and loaded after 4 samples differ in"),
        (TakesAnything, "tau=0.0 was accepted"),
        (KeepsGraphs, "holds a graph"),
    ],
)
def test_learners_that_break_a_promise_are_found_out(broken, message):
    with pytest.raises(checks.CheckFailedError, match=message):
        checks.check_learner(lambda: broken(*plain()), samples())


def test_a_learner_that_is_not_reproducible_is_found_out():
    seeds = iter(range(100))

    def unseeded():
        torch.manual_seed(next(seeds))
        return hl.Learner(make_network("next", 2, 4, 2, (3,)), nn.functional.mse_loss, hl.Hyper())

    with pytest.raises(checks.CheckFailedError, match="two runs from the same start differ"):
        checks.check_learner(unseeded, samples())


def test_an_integrator_that_claims_too_much_is_found_out():
    class Boastful(hl.Euler):
        order = 2

    with pytest.raises(checks.CheckFailedError, match=r"order 2 but its error falls with order 1\.0"):
        checks.check_integrator(Boastful())


def test_too_few_samples_are_refused():
    with pytest.raises(checks.CheckFailedError, match="at least 4 samples, got 2"):
        checks.check_learner(lambda: hl.Learner(*plain()), samples(2))
