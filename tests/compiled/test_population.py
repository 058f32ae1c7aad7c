"""Each member of a population ends where it would have ended alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hamlearn as hl
from tests.agents.feeds import assert_reports
from tests.problems import random_samples


def maker(kind: str, dtype: torch.dtype = torch.float64, **setting: Any) -> Callable[[hl.Hyper], hl.Learner]:
    def make(hyper: hl.Hyper) -> hl.Learner:
        if kind == "mlp":
            network = hl.Network.feedforward(nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 3)))
            return hl.Learner(network.to(dtype), nn.functional.cross_entropy, hyper, "sequential", hl.Cleared())
        if kind == "frozen":
            cell = nn.RNNCell(4, 5)
            cell.weight_hh.requires_grad_(False)
        else:
            cell = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}[kind](4, 5)
        network = hl.Network.recurrent(cell, nn.Linear(5, 3))
        setting.setdefault("credit", hl.Forward())
        return hl.Learner(network.to(dtype), nn.functional.mse_loss, hyper, **setting)

    return make


def stream(classes: bool, steps: int = 90) -> list[hl.Sample]:
    return random_samples(steps, 4, 3, dtype=torch.float64, classes=classes, missing=8, length=10, uneven=True)


def alone(make: Any, hyper: list[hl.Hyper], seeds: list[int], samples: Any) -> list[tuple[hl.Learner, list[Any]]]:
    found = []
    for setting in hyper:
        for seed in seeds:
            torch.manual_seed(seed)
            learner = make(setting)
            found.append((learner, list(learner.run(samples))))
    return found


def assert_same_member(member: hl.Learner, single: hl.Learner, close: float = 1e-12) -> None:
    for a, b in zip(single.network.parameters(), member.network.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=close, atol=close)
    for name, omega in single.state.omega.items():
        torch.testing.assert_close(member.state.omega[name], omega, rtol=close, atol=close)
    assert member.state.t == single.state.t


HYPERS = [
    hl.Hyper(tau=0.5, eta=0.3, beta=0.05),
    hl.Hyper(tau=0.4, eta=lambda t: 0.2 / (1 + t), beta={"output.*": 0.1, "*": lambda t: 0.02}, phi_first=2.0),
    hl.Hyper(tau=1.0, eta=0.1, eta_z=0.5, beta={"output.bias": torch.tensor([0.1, 0.0, 0.2]), "*": 0.03}, phi=0.7),
]


@pytest.mark.parametrize("setting", [{"order": "sequential"}, {"order": "parallel"}], ids=str)
@pytest.mark.parametrize("kind", ["gru", "lstm", "frozen"])
def test_members_are_their_single_runs(kind: str, setting: dict[str, Any]) -> None:
    make, seeds, samples = maker(kind, **setting), [0, 1, 2, 3, 4], stream(classes=False)
    population = hl.Population(make, hyper=HYPERS, seeds=seeds)
    reports = list(population.run(samples, chunk=17))
    assert len(population) == 15
    for number, (learner, expected) in enumerate(alone(make, HYPERS, seeds, samples)):
        member = population.members[number]
        assert_same_member(member, learner)
        torch.testing.assert_close(member.state.h, learner.state.h, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(member.state.z, learner.state.z, rtol=1e-12, atol=1e-12)
        assert member.state.updates == learner.state.updates
        assert_reports(reports, number, expected, 1e-12)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_member_that_diverges_on_a_shared_stream_is_frozen_and_the_others_go_on(engine: Any) -> None:
    hyper = [hl.Hyper.from_sgd(lr=0.01), hl.Hyper.from_sgd(lr=1e200), hl.Hyper.from_sgd(lr=0.02)]
    make, samples = maker("gru", order="sequential"), stream(classes=False)
    population = hl.Population(make, hyper=hyper)
    with pytest.warns(RuntimeWarning, match="member 1 of 3 is frozen") as told:
        reports = list(population.run(samples, chunk=16, engine=engine))
    assert len(told) == 1
    assert isinstance(population.aside[1], hl.errors.NonFiniteError)
    assert len(reports) == len(samples)
    for number in (0, 2):
        ((single, expected),) = alone(make, hyper[number : number + 1], [0], samples)
        assert_same_member(population.members[number], single)
        assert_reports(reports, number, expected, 1e-12)
    # It is as it was before the sample at which it failed.
    torch.manual_seed(0)
    single = make(hyper[1])
    with pytest.raises(hl.errors.NonFiniteError, match=re.escape(str(population.aside[1]))):
        list(single.run(samples))
    assert_same_member(population.member(1), single)
    assert [report.took[1] for report in reports] == [k < single.position for k in range(len(samples))]
    assert reports[-1][1] is None
    assert bool(reports[-1].loss[1].isnan())


def test_a_sample_that_no_member_can_take_raises_and_all_stay_as_they_were() -> None:
    population, samples = hl.Population(maker("gru"), hyper=HYPERS), stream(classes=False, steps=12)
    samples[9] = hl.Sample(torch.zeros(1, 7, dtype=torch.float64), samples[8].target)
    with pytest.raises(hl.errors.SampleError):
        list(population.run(samples, chunk=4))
    assert population.position == 9
    with pytest.raises(hl.errors.SampleError):
        population.step(samples[9])
    assert population.aside == {}
    for member, (single, _) in zip(population.members, alone(maker("gru"), HYPERS, [0], samples[:9]), strict=True):
        assert_same_member(member, single)


@pytest.mark.parametrize("policy", ["skip", "ignore"])
def test_members_that_skip_or_ignore_what_is_not_finite_do_so_each_for_itself(policy: Any) -> None:
    hyper = [hl.Hyper.from_sgd(lr=0.01), hl.Hyper.from_sgd(lr=1e200)]
    make, samples = maker("gru", order="sequential", on_nonfinite=policy), stream(classes=False, steps=20)
    population = hl.Population(make, hyper=hyper)
    reports = list(population.run(samples))
    ((_, expected),) = alone(make, hyper[:1], [0], samples)
    torch.testing.assert_close(reports[-1].y[0], expected[-1].y, rtol=1e-12, atol=1e-12)
    assert not any(report.skipped[0] for report in reports)
    assert any(report.skipped[1] for report in reports) == (policy == "skip")


def weighted(weight: float) -> Any:
    return lambda y, target: weight * nn.functional.mse_loss(y, target)


UNLIKE: dict[str, tuple[Callable[[int], nn.Module], Callable[[int], Any], str]] = {
    "sizes": (
        lambda k: nn.Linear(4, 3 + k),
        lambda k: None,
        r"network\.output\.1\.out_features is 3 here and 4 there",
    ),
    "kinds": (
        lambda k: (nn.Tanh, nn.Sigmoid)[k](),
        lambda k: None,
        r"output\.1 is a Tanh here and a Sigmoid there",
    ),
    "settings": (lambda k: nn.LeakyReLU(0.1 + k), lambda k: None, r"negative_slope is 0\.1 here and 1\.1 there"),
    "losses": (lambda k: nn.Linear(4, 3), weighted, r"'weight' in the loss is 0 here and 1 there"),
    "shapes": (lambda k: nn.Linear(4, 3, bias=not k), lambda k: None, r"network\.output\.1\.bias is"),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_unlike_members_are_refused_with_the_difference(case: str) -> None:
    module, loss, says = UNLIKE[case]

    def population(*numbers: int) -> hl.Population:
        given = iter(numbers)

        def make(hyper: hl.Hyper) -> hl.Learner:
            number = next(given)
            network = hl.Network.feedforward(nn.Sequential(nn.Linear(4, 4), module(number)))
            return hl.Learner(network, loss(number) or nn.functional.mse_loss, hyper)

        return hl.Population(make, hyper=[hl.Hyper(), hl.Hyper(beta=0.1)])

    with pytest.raises(hl.errors.ConfigError, match=f"not alike: .*{says}"):
        population(0, 1)
    assert len(population(1, 1)) == 2


def test_a_population_needs_members_and_an_engine_that_is_known() -> None:
    with pytest.raises(hl.errors.ConfigError, match="at least one Hyper"):
        hl.Population(maker("gru"), hyper=[])
    with pytest.raises(hl.errors.ConfigError, match="engine='jit'"):
        hl.Population(maker("gru"), hyper=[hl.Hyper()]).run([], engine="jit")  # type: ignore[arg-type]


def parametrized(kind: str) -> nn.Module:
    """A module whose attributes are not plain: lists and weak references of weights, or weights made of others."""
    if kind in ("GRU", "LSTM"):
        return getattr(nn, kind)(4, 3)
    return getattr(nn.utils.parametrizations, kind)(nn.Linear(4, 3))


class First(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.readout = inner, nn.Linear(3, 2)

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        y = self.inner(u)
        return self.readout(y[0] if isinstance(y, tuple) else y)


@pytest.mark.parametrize(
    ("kind", "engine"),
    [("GRU", "compiled"), ("LSTM", "compiled"), ("spectral_norm", "compiled"), ("weight_norm", "eager")],
)
@pytest.mark.parametrize("own", [False, True])
def test_members_may_hold_modules_whose_weights_stand_elsewhere_too(kind: str, engine: Any, own: bool) -> None:
    def make(hyper: hl.Hyper) -> hl.Learner:
        network = hl.Network.feedforward(First(parametrized(kind)))
        return hl.Learner(network, nn.functional.mse_loss, hyper)

    samples = random_samples(12, 4, 2, (5,))
    population = hl.Population(make, HYPERS[:2], [0, 1], streams=[samples] * 4 if own else None)
    list(population.run(None if own else samples, engine=engine))
    for member, (single, _) in zip(population.members, alone(make, HYPERS[:2], [0, 1], samples), strict=True):
        assert_same_member(member, single, 1e-6)


def test_making_a_population_leaves_the_random_numbers_of_the_program_as_they_were() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    for kind in (hl.Population, hl.distributed.ShardedPopulation):
        kind(maker("gru"), hyper=HYPERS, seeds=[0, 1])
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("own", [False, True])
def test_members_with_an_echo_are_their_single_runs(own: bool, engine: Any) -> None:
    make, samples = maker("lstm", credit=hl.Echo(truncate=4)), stream(classes=False, steps=60)
    samples[-1].boundary = True
    feeds = (
        [samples, samples[: next(k for k, s in enumerate(samples) if s.boundary) + 1]] if own else [samples] * 2
    )
    population = hl.Population(make, HYPERS[:2], streams=feeds if own else None)
    reports = list(population.run(None if own else samples, engine=engine, chunk=16))
    assert len(reports) == len(samples)
    for number, hyper in enumerate(HYPERS[:2]):
        torch.manual_seed(0)
        single = make(hyper)
        expected = list(single.run(feeds[number]))
        assert_reports(reports, number, expected, 0.0)
        assert_same_member(population.member(number), single, 0.0)
