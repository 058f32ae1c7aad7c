"""Members that would write to the same memory are refused: each would lose to the last what it has learned."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import hamlearn as hl
from tests.problems import random_samples

mse = nn.functional.mse_loss


def population(make: Callable[[], hl.Network]) -> hl.Population:
    return hl.Population(lambda hyper: hl.Learner(make(), mse, hyper), [hl.Hyper()], [0, 1])


def test_a_weight_that_two_members_would_learn_is_named() -> None:
    readout = nn.Linear(3, 1)
    with pytest.raises(hl.errors.ConfigError, match=r"member 0 and member 1 share 'output\.weight'"):
        population(lambda: hl.Network.recurrent(nn.RNNCell(2, 3), readout))


def test_a_buffer_that_two_members_would_change_is_named() -> None:
    norm = nn.BatchNorm1d(2, affine=False)
    with pytest.raises(hl.errors.ConfigError, match=r"share '.*running_mean'"):
        population(lambda: hl.Network.feedforward(nn.Sequential(norm, nn.Linear(2, 1))))


def test_what_no_member_changes_may_be_shared() -> None:
    encoder = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 3)).requires_grad_(False).eval()
    made = population(lambda: hl.Network.feedforward(nn.Sequential(encoder, nn.Linear(3, 1))))
    samples = random_samples(5, 2, 1, (4,))
    alone = [copy.deepcopy(member) for member in made.members]
    for _ in made.run(samples, engine="eager"):
        pass
    for member, single in zip(made.members, alone, strict=True):
        list(single.run(samples))
        for one, other in zip(member.network.parameters(), single.network.parameters(), strict=True):
            assert torch.equal(one, other)
