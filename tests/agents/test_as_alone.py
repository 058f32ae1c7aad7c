"""Members with streams of their own do what learners do that run alone on these streams."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch

import hamlearn as hl
from tests.agents.feeds import alone, assert_as_alone, feed, maker
from tests.loops.running import quickly_compiled

NUMBERS = [hl.Hyper(tau=0.5, eta=0.3, beta=0.05), hl.Hyper.from_sgd(lr=0.05, momentum=0.5, dampening=0.2)]
TIMED = [
    hl.Hyper(tau=0.4, eta=lambda t: 0.2 / (1 + t), beta={"output.*": 0.1, "*": lambda t: 0.02}, phi_first=2.0),
    hl.Hyper(tau=1.0, eta=0.1, eta_z=0.5, beta={"output.bias": torch.tensor([0.1, 0.2]), "*": 0.03}, phi=0.7),
]
ADAPTIVE = [hl.Hyper.from_adam(lr=0.01), hl.Hyper.from_adam(lr=0.02, weight_decay=0.1)]
LITERAL = [hl.Hyper(tau=0.5, eta=0.3, beta=0.05, clock="continuous")] * 2
SEEDS = [0, 1]
FEEDS = [feed(number, 23 + 5 * number) for number in range(4)]
CASES: dict[str, tuple[str, list[hl.Hyper], dict[str, Any]]] = {
    "sequential": ("rnn", NUMBERS, {"credit": hl.Forward()}),
    "parallel, by the literal clock": ("rnn", LITERAL, {"order": "parallel", "credit": hl.Forward()}),
    "sensitivity": ("columnar", NUMBERS, {"credit": hl.Sensitivity()}),
    "schedules, each sample anew": ("rnn", TIMED, {"reset_h": "sample"}),
    "adaptive, nothing is looked at": ("rnn", ADAPTIVE, {"on_nonfinite": "ignore"}),
}


@pytest.mark.parametrize("case", CASES)
def test_members_with_streams_of_their_own_are_their_single_runs(case: str) -> None:
    kind, hyper, setting = CASES[case]
    make = maker(kind, **setting)
    population = hl.Population(make, hyper, SEEDS, streams=FEEDS)
    with quickly_compiled():
        # All take part in the first blocks of the first case; elsewhere one loop serves for all.
        reports = list(population.run(chunk=9 if case == "sequential" else 64))
    assert_as_alone(population, reports, alone(make, hyper, SEEDS, FEEDS))
    assert population.positions == [23, 28, 33, 38]


def test_the_eager_engine_is_each_member_alone_to_the_bit() -> None:
    make = maker(credit=hl.Forward())
    population = hl.Population(make, NUMBERS, SEEDS, streams=FEEDS)
    reports = list(population.run(engine="eager"))
    assert_as_alone(population, reports, alone(make, NUMBERS, SEEDS, FEEDS), close=0.0)


def test_members_that_share_a_stream_give_the_reports_of_one_stream() -> None:
    make = maker(credit=hl.Forward())
    one = hl.Population(make, NUMBERS, SEEDS)
    each = hl.Population(make, NUMBERS, SEEDS, streams=[FEEDS[0]] * 4)
    for a, b in zip(one.run(FEEDS[0], engine="eager"), each.run(engine="eager"), strict=True):
        assert a.t == b.t
        assert torch.equal(b.y, a.y)
        assert torch.equal(b.hamiltonian, a.hamiltonian)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_max_steps_is_how_many_samples_each_member_takes_and_a_run_can_be_resumed(
    engine: Literal["eager", "compiled"],
) -> None:
    make = maker(credit=hl.Forward())
    population = hl.Population(make, NUMBERS, SEEDS, streams=FEEDS)
    with quickly_compiled():
        first = list(population.run(max_steps=11, engine=engine, chunk=4))
        assert population.positions == [11] * 4
        rest = list(population.run(engine=engine, chunk=4, resume=True))
    assert_as_alone(population, first + rest, alone(make, NUMBERS, SEEDS, FEEDS))


def test_samples_of_other_shapes_and_late_labels_are_taken_by_the_member_that_meets_them() -> None:
    make = maker(credit=hl.Cleared())
    feeds: list[Any] = copy.deepcopy(FEEDS)
    wide = feed(7, 12)
    for sample in wide:
        sample.u, sample.target = sample.u.repeat(2, 1), None
    feeds[1] = feeds[1][:6] + wide + feeds[1][:9]
    feeds[1][5] = replace(feeds[1][5], boundary=True)
    feeds[1][-1] = replace(feeds[1][-1], boundary=True)
    late = hl.Sample(feeds[2][4].u, id="late")
    feeds[2] = [*feeds[2][:4], late, *feeds[2][4:9], hl.Label("late", torch.ones(2, 2).double()), *feeds[2][9:]]
    population = hl.Population(make, NUMBERS, SEEDS, streams=feeds)
    with quickly_compiled():
        list(population.run(chunk=8))
    for number, (learner, _, error) in enumerate(alone(make, NUMBERS, SEEDS, feeds)):
        assert error is None
        member = population.member(number)
        for a, b in zip(member.network.parameters(), learner.network.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        assert member.state.t == learner.state.t
        assert member.labels == learner.labels
    assert population.member(2).labels.learned == 1
