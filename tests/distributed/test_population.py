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


def test_one_damaged_file_leaves_every_member_as_it_was(tmp_path: Path) -> None:
    population = ShardedPopulation(make, RATES[:1], (0, 1))
    list(population.run(samples(4), engine="eager"))
    population.save(tmp_path)
    # The last member's file is damaged: the first member, whose own is whole, stays as it was too.
    other = ShardedPopulation(make, RATES[:1], (0, 1))
    (damaged,) = tmp_path.glob("tick-*/member-1.safetensors")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    before = state_of(other.members)
    with pytest.raises(CheckpointError, match="member-1"):
        other.load(tmp_path)
    assert same(state_of(other.members), before)
    assert other.position == 0
    assert len(list(other.run(samples(4), engine="eager"))) == 4


class Sensitive(nn.Module):
    """One that was made with seed 1 overflows where the input is 7."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.register_buffer("factor", torch.tensor(1e30 if torch.initial_seed() == 1 else 1.0))

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        return self.linear(u) * torch.where(u.max() > 6, self.factor * self.factor, 1.0)


def test_a_member_that_fails_is_set_aside_by_its_number_among_all() -> None:
    def sensitive(hyper: hl.Hyper) -> hl.Learner:
        return hl.Learner(hl.Network.feedforward(Sensitive()), nn.functional.mse_loss, hyper)

    spoilt = [*samples(2), hl.Sample(torch.full((1, 2), 7.0), torch.ones(1, 1)), *samples(1)]
    population = ShardedPopulation(sensitive, RATES[:1], (0, 1))
    with pytest.warns(RuntimeWarning, match="is frozen"):
        reports = list(population.run(spoilt, engine="eager"))
    assert [report.took for report in reports] == [[True, True], [True, True], [True, False], [True, False]]
    assert list(population.aside) == [1]
