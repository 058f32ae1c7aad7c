"""Copies of learners: they go on bit for bit, and neither knows of the other."""

import copy
import pickle

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.errors import ConfigError
from tests.comparing import same
from tests.fuzz.checkpoint_subjects import PairCell
from tests.problems import random_samples

CREDITS = [
    hl.Forward(),
    hl.Cleared(),
    hl.Echo(),
    hl.Echo(every=3),
    hl.Echo(truncate=3),
    hl.Echo(truncate=4, every=3),
    hl.Echo(dissipate="token"),
]


class Leaky(nn.Module):
    """A cell without random numbers, which can be compiled; its h0 is learned."""

    def __init__(self):
        super().__init__()
        self.inputs, self.recurrent = nn.Linear(3, 4), nn.Linear(4, 4, bias=False)

    def forward(self, u, h):
        return torch.tanh(self.inputs(u) + self.recurrent(h))


def samples(count=12):
    return random_samples(count, missing=3, length=7, uneven=True)


def drawing(credit):
    torch.manual_seed(0)
    network = hl.Network.recurrent(PairCell(), nn.Linear(2, 2))
    return hl.Learner(network, nn.functional.mse_loss, hl.Hyper(beta=0.1, eta=0.2), "sequential", credit)


def steady(credit):
    torch.manual_seed(0)
    network = hl.Network.recurrent(Leaky(), nn.Linear(4, 2), h0=nn.Parameter(torch.randn(4)))
    return hl.Learner(network, nn.functional.mse_loss, hl.Hyper(beta=0.1, eta=0.2), "sequential", credit)


def linear(hyper):
    return hl.Learner(hl.Network.feedforward(nn.Linear(3, 2)), nn.functional.mse_loss, hyper, "sequential")


def through_pickle(learner):
    return pickle.loads(pickle.dumps(learner))


def goes_on(learner, rest):
    torch.manual_seed(1)
    losses = [learner.step(sample).loss for sample in rest]
    return [loss for loss in losses if loss is not None] + everything(learner)


def everything(learner):
    carry = learner._eager.state.carry
    tensors = [*learner.network.state_dict().values(), *carry.h, *carry.z, *carry.omega]
    return [tensor.clone() for tensor in tensors] + [torch.tensor(learner.state.t)]


@pytest.mark.parametrize("make", [drawing, steady])
@pytest.mark.parametrize("way", [copy.deepcopy, through_pickle])
@pytest.mark.parametrize("credit", CREDITS, ids=repr)
def test_a_copy_made_in_mid_sequence_goes_on_bit_for_bit_and_leaves_the_original_alone(credit, way, make):
    given = samples()
    learner, alone = make(credit), make(credit)
    for each in (learner, alone):
        torch.manual_seed(8)
        for sample in given[:4]:
            each.step(sample)
    state = torch.get_rng_state()
    twin = way(learner)
    assert torch.equal(state, torch.get_rng_state())
    ends = [goes_on(each, given[4:]) for each in (twin, learner, alone)]
    assert same(ends[0], ends[2])
    assert same(ends[1], ends[2])


@pytest.mark.parametrize("credit", [hl.Forward(), hl.Echo(), hl.Echo(truncate=4, every=3)], ids=repr)
def test_a_copy_made_in_the_middle_of_a_compiled_run_goes_on_as_the_original_does(credit):
    given, copies = samples(), []
    learner, alone = steady(credit), steady(credit)
    for number, _ in enumerate(learner.run(given, max_steps=10, engine="compiled", chunk=4)):
        if number == 4:
            copies = [copy.deepcopy(learner), through_pickle(learner)]
    for twin in copies:
        assert twin.position == 5
        assert len(list(twin.run(given, max_steps=5, engine="compiled", resume=True))) == 5
    list(alone.run(given, max_steps=10, engine="compiled", chunk=4))
    assert same(everything(copies[0]), everything(alone))
    assert same(everything(copies[1]), everything(alone))
    assert same(everything(learner), everything(alone))


@pytest.mark.parametrize("way", [copy.deepcopy, through_pickle])
def test_a_copied_population_goes_on_as_the_original_does(way):
    given = random_samples(12, batch=(1,))
    rates = [hl.Hyper.from_sgd(lr=lr) for lr in (0.01, 0.1)]
    population, alone = (hl.Population(linear, rates, seeds=[0, 1]) for _ in range(2))
    for number, _ in enumerate(population.run(given[:8], chunk=4)):
        if number == 5:
            twin = way(population)
    assert twin.position == 6
    for each, rest in ((population, given[8:]), (twin, given[6:]), (alone, given)):
        list(each.run(rest))
    for one, other, third in zip(population.members, twin.members, alone.members, strict=True):
        assert same(everything(one), everything(third))
        assert same(everything(other), everything(third))
    with pytest.raises(ConfigError, match=r"use copy\.deepcopy"):
        copy.copy(population)


def test_a_shallow_copy_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"copy\.copy\(\).*use copy\.deepcopy\(\)"):
        copy.copy(steady(hl.Forward()))


@pytest.mark.parametrize("cut", [2, 3, 4, 5])
def test_tokens_from_before_the_last_echo_meet_the_first_state_of_that_time_when_they_are_loaded(tmp_path, cut):
    given = samples(6)
    learner, again = (steady(hl.Echo(truncate=6, every=2)) for _ in range(2))
    for sample in given[:cut]:
        learner.step(sample)
    learner.save(tmp_path / "checkpoint")
    again.load(tmp_path / "checkpoint")
    assert same(goes_on(learner, given[cut:]), goes_on(again, given[cut:]))
