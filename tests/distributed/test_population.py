"""A population over ranks is the population of one process, member by member."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.distributed import ShardedPopulation
from hamlearn.errors import CheckpointError, ConfigError
from tests.distributed.ranks import values
from tests.distributed.test_equal import equal

RATES = [hl.Hyper.from_sgd(lr=lr, momentum=0.5) for lr in (0.01, 0.05)]
SEEDS = (0, 1, 2, 3)


def make(hyper: hl.Hyper) -> hl.Learner:
    network = hl.Network.recurrent(nn.RNNCell(2, 3), readout=nn.Linear(3, 1))
    return hl.Learner(network, nn.functional.mse_loss, hyper)


def samples(count: int) -> list[hl.Sample]:
    generator = torch.Generator().manual_seed(4)
    drawn = torch.randn(count, 1, 2, generator=generator)
    return [hl.Sample(u, None if k % 4 == 1 else u.sum(1, keepdim=True)) for k, u in enumerate(drawn)]


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
        assert equal([member for _, members, _ in found for member in members], expected)
        for rank_losses, *_ in found:
            assert equal(rank_losses, told)


def test_members_of_a_compiled_run_can_be_saved_and_go_on(tmp_path: Path) -> None:
    population = ShardedPopulation(make, RATES, SEEDS)
    list(population.run(samples(8)))
    population.save(tmp_path)
    other = ShardedPopulation(make, RATES, SEEDS)
    other.load(tmp_path)
    assert equal(state_of(other.members), state_of(population.members))


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
