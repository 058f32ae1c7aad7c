"""A member that goes wrong harms no other: it skips, or is frozen and named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch

import hamlearn as hl
from tests.agents.feeds import NAN, alone, assert_as_alone, feed, maker
from tests.loops.running import quickly_compiled

HYPER = [hl.Hyper(tau=0.5, eta=0.3, beta=0.05), hl.Hyper(tau=0.4, eta=0.2, beta=0.1)]
SEEDS = [0, 1]
Engine = Literal["eager", "compiled"]


def poisoned(number: int, steps: int, *bad: int) -> list[hl.Sample]:
    samples = feed(number, steps)
    for k in bad:
        samples[k] = replace(samples[k], target=torch.full((2, 2), NAN).double())
    return samples


def breaking(samples: list[hl.Sample]) -> Iterator[hl.Sample]:
    yield from samples
    raise ConnectionResetError("the line is dead")


class Breaking:
    """A feed whose line breaks."""

    def __init__(self, samples: list[hl.Sample]) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[hl.Sample]:
        return breaking(self.samples)


def bad_feeds() -> list[Any]:
    shape, tau, unended = feed(3, 25), feed(4, 30), feed(5, 35)
    shape[9] = hl.Sample(torch.zeros(2, 5).double(), torch.zeros(2, 2).double())
    tau[12] = replace(tau[12], tau=-1.0)
    unended[-1].boundary = False
    return [
        feed(0, 20),
        poisoned(1, 25, 7),
        poisoned(2, 30, 0),
        shape,
        tau,
        unended,
        Breaking(feed(6, 13)),
        feed(7, 31),
    ]


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_member_that_cannot_go_on_is_set_aside_and_the_others_go_on(engine: Engine) -> None:
    feeds, make, seeds = bad_feeds(), maker(), range(4)
    population = hl.Population(make, HYPER, seeds, streams=feeds)
    with quickly_compiled(), pytest.warns(RuntimeWarning, match="is frozen, and the others continue: ") as told:
        reports = list(population.run(engine=engine, chunk=64))
    singles = alone(make, HYPER, seeds, feeds)
    assert_as_alone(population, reports, singles)
    assert [number for number, (_, _, error) in enumerate(singles) if error is not None] == [1, 2, 3, 4, 5, 6]
    assert sorted(population.aside) == [1, 2, 3, 4, 5, 6]
    for number in population.aside:
        assert any(f"member {number} of 8 " in str(one.message) for one in told)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_skipping_members_skip_what_they_would_skip_alone(engine: Engine) -> None:
    make = maker(on_nonfinite="skip", credit=hl.Forward())
    # The last of a sequence, the first of one, several in a row, the very first, and the very last.
    feeds = [feed(0, 20), poisoned(1, 25, 5, 11, 12), poisoned(2, 30, 0, 12, 13, 29), poisoned(3, 35, 5, 6, 7)]
    singles = alone(make, HYPER, SEEDS, feeds)
    assert sum(report.skipped for _, reports, _ in singles for report in reports) == 10
    population = hl.Population(make, HYPER, SEEDS, streams=feeds)
    with quickly_compiled():
        reports = list(population.run(engine=engine, chunk=64))
    assert_as_alone(population, reports, singles)


def test_weights_that_overflow_between_two_looks_are_found_at_their_step() -> None:
    hyper = [hl.Hyper.from_sgd(lr=0.01), hl.Hyper.from_sgd(lr=1e300)]
    make, feeds = maker(), [feed(number, 20) for number in range(4)]
    population = hl.Population(make, hyper, SEEDS, streams=feeds)
    with quickly_compiled(), pytest.warns(RuntimeWarning, match="member [23] of 4 is frozen"):
        reports = list(population.run(chunk=64))
    assert_as_alone(population, reports, alone(make, hyper, SEEDS, feeds))
    assert set(population.aside) == {2, 3}


def test_a_class_out_of_range_sets_its_member_aside_even_where_samples_are_skipped() -> None:
    make = maker("mlp", on_nonfinite="skip")
    feeds = [feed(number, 20, classes=True) for number in range(4)]
    feeds[2][7] = replace(feeds[2][7], target=torch.tensor([0, 9]))
    population = hl.Population(make, HYPER, SEEDS, streams=feeds)
    with quickly_compiled(), pytest.warns(RuntimeWarning, match="member 2 of 4 is frozen"):
        reports = list(population.run(chunk=64))
    assert sorted(population.aside) == [2]
    assert population.positions == [20, 20, 7, 20]
    for number, (learner, expected, _) in enumerate(alone(make, HYPER, SEEDS, feeds)):
        assert sum(report.took[number] for report in reports) == len(expected)
        for a, b in zip(population.member(number).network.parameters(), learner.network.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("wrong", ["target", "tau"])
def test_a_run_in_which_every_member_fails_at_once_ends(wrong: str, engine: Engine) -> None:
    bad: dict[str, Any] = {"target": torch.full((2, 2), NAN).double()} if wrong == "target" else {"tau": -1.0}
    feeds = [[replace(sample, **bad) for sample in feed(number, 5)] for number in range(4)]
    population = hl.Population(maker(), HYPER, SEEDS, streams=feeds)
    with quickly_compiled(), pytest.warns(RuntimeWarning, match="is frozen"):
        assert list(population.run(engine=engine)) == []
    assert sorted(population.aside) == [0, 1, 2, 3]
    expected = hl.errors.NonFiniteError if wrong == "target" else hl.errors.SampleError
    assert all(isinstance(error, expected) for error in population.aside.values())


def test_a_member_set_aside_takes_part_again_in_the_next_run() -> None:
    feeds = [feed(number, 10) for number in range(4)]
    feeds[1][4] = replace(feeds[1][4], target=torch.full((2, 2), NAN).double())
    population = hl.Population(maker(), HYPER, SEEDS, streams=feeds)
    with pytest.warns(RuntimeWarning, match="member 1 of 4"):
        list(population.run(engine="eager"))
    assert population.positions == [10, 4, 10, 10]
    feeds[1][4] = replace(feeds[1][4], target=None)
    reports = list(population.run(engine="eager", resume=True))
    assert [report.took for report in reports] == [[False, True, False, False]] * 6
    assert population.aside == {}


def test_what_cannot_be_a_population_of_agents_is_refused() -> None:
    feeds = [feed(number, 5) for number in range(4)]
    with pytest.raises(hl.errors.ConfigError, match=r"4 members, .* but 3 streams"):
        hl.Population(maker(), HYPER, SEEDS, streams=feeds[:3])
    with pytest.raises(hl.errors.ConfigError, match="one stream is given to two members"):
        hl.Population(maker(), HYPER, SEEDS, streams=[iter(feeds[0])] * 4)
    with pytest.raises(hl.errors.ConfigError, match="each member has a stream of its own"):
        hl.Population(maker(), HYPER, SEEDS, streams=feeds).run(feeds[0])
    with pytest.raises(hl.errors.ConfigError, match="nothing to learn from"):
        hl.Population(maker(), HYPER, SEEDS).run()
    wrong: list[tuple[Any, Any, Any, str]] = [
        (maker(), [0.5], None, r"seeds=\[0\.5\] must be whole numbers"),
        (maker(), 3, None, "seeds=3 must be whole numbers"),
        (lambda hyper: torch.nn.Linear(1, 1), SEEDS, None, "a member is a Linear"),
        (maker(), SEEDS, dict(enumerate(feeds)), "stream 0 is a int"),
        (maker(), SEEDS, [*feeds[:3], None], "stream 3 is a NoneType"),
    ]
    for factory, seeds, streams, says in wrong:
        with pytest.raises(hl.errors.ConfigError, match=says):
            hl.Population(factory, HYPER, seeds, streams=streams)
    with pytest.raises(hl.errors.SampleError, match="not tuple"):
        hl.Population(maker(), HYPER, SEEDS).step((1, 2))  # type: ignore[arg-type]
    population = hl.Population(maker(), HYPER, SEEDS, streams=feeds)
    with quickly_compiled():
        first = population.run(chunk=2)
        next(first)
        next(population.run())
        with pytest.raises(hl.errors.StreamError, match="overtaken by a newer one"):
            list(first)


def test_a_member_that_has_left_keeps_its_time_when_the_others_are_brought_back() -> None:
    hyper = [hl.Hyper(tau=0.5, eta=lambda t: 0.3 / (1 + t), beta=0.05)]
    feeds = [feed(0, 6), feed(1, 20)]
    population = hl.Population(maker(), hyper, SEEDS, streams=feeds)
    with quickly_compiled():
        for step, _ in enumerate(population.run(chunk=64), start=1):
            if step == 9:
                population.member(1)
    assert [member.state.t for member in population.members] == [
        learner.state.t for learner, _, _ in alone(maker(), hyper, SEEDS, feeds)
    ]
