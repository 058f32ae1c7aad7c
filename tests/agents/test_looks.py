"""Agents between two reports: looked at, changed, saved and resumed, together and one by one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch.utils.data import TensorDataset

import hamlearn as hl
from tests.agents.feeds import Make, alone, assert_member, feed, maker
from tests.loops.running import quickly_compiled

HYPER = [hl.Hyper(tau=0.5, eta=0.3, beta=0.05), hl.Hyper.from_sgd(lr=0.05, momentum=0.5)]
SEEDS = [0, 1]
MAKE = maker(credit=hl.Forward())
Engine = Literal["eager", "compiled"]


def tables(length: int = 9) -> list[hl.streams.Stream]:
    """Data sets of different sizes, each gone through several times, in an order of its own."""
    found = []
    for number in range(4):
        generator = torch.Generator().manual_seed(number)
        u = torch.randn(length + number, 3, generator=generator, dtype=torch.float64)
        found.append(
            hl.streams.from_dataset(TensorDataset(u, u[:, :2].sin()), shuffle=True, epochs=3, seed=number)
        )
    return found


def after(make: Make, feeds: list[Any], steps: int) -> list[hl.Learner]:
    learners = [learner for learner, _, _ in alone(make, HYPER, SEEDS, [[]] * 4)]
    for learner, samples in zip(learners, feeds, strict=True):
        list(learner.run(samples, max_steps=steps))
    return learners


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_between_two_reports_members_are_where_the_last_one_left_them(engine: Engine) -> None:
    feeds = [feed(number, 20 + 5 * number) for number in range(4)]
    population = hl.Population(MAKE, HYPER, SEEDS, streams=feeds)
    with quickly_compiled():
        for step, _ in enumerate(population.run(engine=engine, chunk=16), start=1):
            assert population.positions == [min(step, len(one)) for one in feeds]
            if step in (1, 5, 22):
                for number, learner in enumerate(after(MAKE, feeds, step)):
                    if number == step % 4 or step == 22:
                        assert_member(population.member(number), learner)
    for number, learner in enumerate(after(MAKE, feeds, 99)):
        assert_member(population.member(number), learner)


def test_a_change_to_one_member_holds_from_the_next_sample_on() -> None:
    feeds = [feed(number, 20 + 5 * number) for number in range(4)]
    population = hl.Population(MAKE, HYPER, SEEDS, streams=feeds)
    learners = after(MAKE, feeds, 7)
    with quickly_compiled():
        for step, _ in enumerate(population.run(chunk=16), start=1):
            if step == 7:
                with torch.no_grad():
                    population.member(2).network.output.bias.add_(1.0)
                    learners[2].network.output.bias.add_(1.0)
    for number, learner in enumerate(learners):
        list(learner.run(feeds[number], resume=True))
        assert_member(population.member(number), learner)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_population_that_is_saved_in_mid_stream_goes_on_as_if_nothing_had_happened(
    engine: Engine, tmp_path: Path
) -> None:
    first, second = (hl.Population(MAKE, HYPER, SEEDS, streams=tables()) for _ in range(2))
    singles = alone(MAKE, HYPER, SEEDS, tables())
    with quickly_compiled():
        for step, _ in enumerate(first.run(engine=engine, chunk=16), start=1):
            if step == 11:
                first.save(tmp_path / "agents")
                state = first.state_dict()
                break
        second.load(tmp_path / "agents")
        assert second.positions == [11] * 4
        reports = list(second.run(engine=engine, chunk=16, resume=True))
        third = hl.Population(MAKE, HYPER, SEEDS, streams=tables())
        third.load_state_dict(state)
        list(third.run(engine="eager", resume=True))
    for number, (learner, expected, _) in enumerate(singles):
        assert_member(second.member(number), learner)
        assert_member(third.member(number), learner)
        assert len(reports) == 25
        assert [report.took[number] for report in reports] == [k < len(expected) - 11 for k in range(25)]


def test_one_agent_is_saved_by_itself_and_goes_on_alone_or_in_another_population(tmp_path: Path) -> None:
    first, second = (hl.Population(MAKE, HYPER, SEEDS, streams=tables()) for _ in range(2))
    with quickly_compiled():
        for step, _ in enumerate(first.run(chunk=16), start=1):
            if step == 11:
                first.member(1).save(tmp_path / "agent")
        whole, _, _ = alone(MAKE, HYPER, SEEDS, tables())[1]
        learner = after(MAKE, tables(), 0)[1]
        learner.load(tmp_path / "agent")
        assert learner.position == 11
        list(learner.run(tables()[1], resume=True))
        assert_member(learner, whole)
        second.member(1).load(tmp_path / "agent")
        reports = list(second.run(engine="eager", resume=True))
    assert_member(second.member(1), whole)
    assert [report.took[1] for report in reports] == [k < 30 - 11 for k in range(36)]


def test_a_file_of_another_population_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    population = hl.Population(MAKE, HYPER, SEEDS, streams=tables())
    list(population.run(engine="eager", max_steps=3))
    population.save(tmp_path / "agents")
    population.member(0).save(tmp_path / "agent")
    smaller = hl.Population(MAKE, HYPER, [0], streams=tables()[:2])
    before = copy.deepcopy(smaller.state_dict()["tensors"])
    for path, why in (("agents", "holds 4 members, and this population has 2"), ("agent", "of a single learner")):
        with pytest.raises(hl.errors.CheckpointError, match=why):
            smaller.load(tmp_path / path)
    other = hl.Population(MAKE, HYPER[::-1], SEEDS, streams=tables())
    with pytest.raises(hl.errors.CheckpointError, match=r"member 0 of .*agents was saved with hyper"):
        other.load(tmp_path / "agents")
    with pytest.raises(hl.errors.CheckpointError):
        smaller.member(0).load(tmp_path / "agents")
    after_all = smaller.state_dict()["tensors"]
    assert all(torch.equal(before[name], after_all[name]) for name in before if not name.startswith("rng/"))
