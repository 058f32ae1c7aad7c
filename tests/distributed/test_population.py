"""A population over ranks is the population of one process, member by member."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.distributed import ShardedPopulation
from hamlearn.errors import CheckpointError, ConfigError
from tests.comparing import same
from tests.distributed.ranks import values
from tests.problems import random_samples

RATES = [hl.Hyper.from_sgd(lr=lr, momentum=0.5) for lr in (0.01, 0.05)]
SEEDS = (0, 1, 2, 3)


def make(hyper: hl.Hyper) -> hl.Learner:
    network = hl.Network.recurrent(nn.RNNCell(2, 3), readout=nn.Linear(3, 1))
    return hl.Learner(network, nn.functional.mse_loss, hyper)


def samples(count: int) -> list[hl.Sample]:
    return random_samples(count, 2, 1, (1,), missing=4)


def state_of(members: list[hl.Learner]) -> list[Any]:
    return [
        (m.state.t, m.state.h, m.state.omega, {n: w.detach().clone() for n, w in m.network.named_parameters()})
        for m in members
    ]


def work(folder: str, load: bool) -> tuple[list[Any], list[Any], range]:
    """Twelve samples and a checkpoint, or the rest of twenty from it on."""
    population = ShardedPopulation(make, RATES, SEEDS, timeout=20)
    if load:
        population.load(folder)
        assert population.position == 12
    reports = list(population.run(samples(20), None if load else 12, "eager", resume=load, block=5))
    if not load:
        population.save(folder)
    return [report.loss for report in reports], state_of(population.members), population.own


def test_every_member_ends_as_in_one_process_and_a_checkpoint_of_three_shards_goes_on_in_two(
    tmp_path: Path,
) -> None:
    folder = str(tmp_path / "saved")
    alone = hl.Population(make, RATES, SEEDS)
    losses = [report.loss for report in alone.run(samples(20), 12, "eager")]
    first, first_losses = state_of(alone.members), losses
    losses = [report.loss for report in alone.run(samples(20)[12:], None, "eager")]
    for ranks, load, expected, told in (
        (3, False, first, first_losses),
        (2, True, state_of(alone.members), losses),
    ):
        found = values(work, ranks, tmp_path / str(ranks), folder, load)
        assert [k for *_, own in found for k in own] == list(range(8))
        assert same([member for _, members, _ in found for member in members], expected)
        for rank_losses, *_ in found:
            assert same(rank_losses, told)


def test_other_members_and_a_population_that_is_too_small_are_refused(tmp_path: Path) -> None:
    population = ShardedPopulation(make, RATES[:1], (0, 1))
    list(population.run(samples(3), engine="eager"))
    population.save(tmp_path)
    with pytest.raises(CheckpointError, match="other members"):
        ShardedPopulation(make, RATES[:1], (1, 0)).load(tmp_path)
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        population.load(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="0 members for 1 ranks"):
        ShardedPopulation(make, [])
    with pytest.raises(ConfigError, match="block=0"):
        population.run(samples(3), block=0)


class Feed:
    """A member's own stream, which knows its place; some end before others, and some targets are missing."""

    def __init__(self, number: int) -> None:
        self.number, self.position = number, 0

    def __iter__(self) -> Iterator[hl.Sample]:
        while self.position < LENGTHS[self.number]:
            u = torch.randn(1, 2, generator=torch.Generator().manual_seed(100 * self.number + self.position))
            self.position += 1
            target = None if (self.position + self.number) % 4 == 1 else u.sum(1, keepdim=True)
            yield hl.Sample(u, target)

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


LENGTHS = (20, 20, 9, 17, 20, 14, 5, 3)


def agents(folder: str, load: bool) -> tuple[Any, ...]:
    """Twelve steps of members with streams of their own and a checkpoint, or all that is left from it on."""
    population = ShardedPopulation(make, RATES, SEEDS, timeout=20, streams=Feed)
    if load:
        population.load(folder)
    start = population.position, population.positions
    reports = list(population.run(None, None if load else 12, "eager", resume=load, block=5))
    if not load:
        population.save(folder)
    told = [(report.loss, report.took, report.own.took) for report in reports]
    return told, start, population.positions, state_of(population.members), population.own


def test_agents_of_three_shards_go_on_in_two_each_from_its_own_place_in_its_stream(tmp_path: Path) -> None:
    folder = str(tmp_path / "saved")
    alone = hl.Population(make, RATES, SEEDS, streams=[Feed(number) for number in range(8)])
    position = 0
    for ranks, steps in ((3, 12), (2, None)):
        before = alone.positions
        reports = list(alone.run(None, steps, "eager", resume=steps is None))
        found = values(agents, ranks, tmp_path / str(ranks), folder, steps is None)
        whole, taken = state_of(alone.members), alone.positions
        for told, start, now, state, own in found:
            mine = slice(own.start, own.stop)
            assert start == (position, before[mine])
            assert now == taken[mine]
            assert same(state, whole[mine])
            for (loss, took, own_took), report in zip(told, reports, strict=True):
                assert (took, own_took) == (report.took, report.took[mine])
                assert (loss is None) == (report.loss is None)
                assert loss is None or torch.equal(loss.nan_to_num(-1.0), report.loss.nan_to_num(-1.0))
        position = 12
    assert taken == list(LENGTHS)


def test_agents_of_a_compiled_run_can_be_saved_and_go_on(tmp_path: Path) -> None:
    first = ShardedPopulation(make, RATES, SEEDS, streams=Feed)
    list(first.run(max_steps=12))
    first.save(tmp_path)
    second = ShardedPopulation(make, RATES, SEEDS, streams=Feed)
    second.load(tmp_path)
    assert second.positions == [min(12, length) for length in LENGTHS]
    list(second.run(resume=True))
    alone = hl.Population(make, RATES, SEEDS, streams=[Feed(number) for number in range(8)])
    list(alone.run(max_steps=12))
    list(alone.run(resume=True))
    assert same(state_of(second.members), state_of(alone.members))
    assert second.positions == list(LENGTHS)


def test_streams_that_do_not_fit_and_checkpoints_of_the_other_kind_are_refused_and_nothing_changes(
    tmp_path: Path,
) -> None:
    shared = ShardedPopulation(make, RATES[:1], (0, 1))
    with pytest.raises(ConfigError, match=r"give run\(stream\)"):
        shared.run()
    several = ShardedPopulation(make, RATES[:1], (0, 1), streams=[samples(3), samples(4)])
    with pytest.raises(ConfigError, match="a stream of its own"):
        several.run(samples(3))
    with pytest.raises(ConfigError, match=r"there are 2 members.*but 1 streams"):
        ShardedPopulation(make, RATES[:1], (0, 1), streams=[samples(3)])
    list(several.run(engine="eager"))
    several.save(tmp_path)
    before = state_of(shared.members)
    with pytest.raises(CheckpointError, match="streams of their own"):
        shared.load(tmp_path)
    assert same(state_of(shared.members), before)
    # The last member's file is damaged: the first member, whose own is whole, stays as it was too.
    other = ShardedPopulation(make, RATES[:1], (0, 1), streams=[samples(3), samples(4)])
    (damaged,) = tmp_path.glob("tick-*/member-1.safetensors")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    before = state_of(other.members)
    with pytest.raises(CheckpointError, match="member-1"):
        other.load(tmp_path)
    assert same(state_of(other.members), before)
    assert other.positions == [0, 0]
    assert len(list(other.run(engine="eager"))) == 4


def test_a_member_that_fails_is_set_aside_by_its_number_among_all() -> None:
    spoilt = [*samples(2), hl.Sample(torch.ones(1, 7), torch.ones(1, 1))]
    population = ShardedPopulation(make, RATES[:1], (0, 1), streams=[samples(4), spoilt])
    with pytest.warns(RuntimeWarning, match="is frozen"):
        reports = list(population.run(engine="eager"))
    assert [report.took for report in reports] == [[True, True], [True, True], [True, False], [True, False]]
    assert list(population.aside) == [1]
