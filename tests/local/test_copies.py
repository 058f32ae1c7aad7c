"""Copies and checkpoints of local learners with samples in flight."""

import copy
import pickle

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.errors import ConfigError
from hamlearn.local import LocalLearner
from tests.comparing import same
from tests.problems import random_samples

SETTINGS = [
    {"align": True},
    {"align": True, "stacked": False},
    {"align": True, "order": "sequential", "groups": 3},
    {"align": True, "hold": 2},
    {"hold": 2},
    {"order": "sequential"},
    {"delay_free": True},
    {"align": True, "clock": "continuous"},
]


def make(**setting):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(3)]
    module = nn.Sequential(*layers, nn.Dropout(0.2), nn.BatchNorm1d(3), nn.Linear(3, 2))
    hyper = hl.Hyper(beta=0.02, eta=0.1, eta_z=0.05, clock=setting.pop("clock", "events"))
    return LocalLearner(module, nn.functional.mse_loss, hyper, **setting)


def samples(count=14):
    return random_samples(count, missing=3, uneven=True)


def goes_on(learner, rest):
    torch.manual_seed(1)
    reports = [learner.step(sample) for sample in rest] + learner.flush()
    tensors = [report.loss for report in reports if report.loss is not None]
    return [*tensors, *learner.module.state_dict().values(), *learner.state.omega.values()]


@pytest.mark.parametrize("way", [copy.deepcopy, lambda learner: pickle.loads(pickle.dumps(learner))])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_copy_made_with_samples_in_flight_goes_on_bit_for_bit_and_leaves_the_original_alone(setting, way):
    given = samples()
    learner, alone = make(**setting), make(**setting)
    for each in (learner, alone):
        torch.manual_seed(8)
        for sample in given[:9]:
            each.step(sample)
    twin = way(learner)
    assert twin.stacks == learner.stacks
    ends = [goes_on(each, given[9:]) for each in (twin, learner, alone)]
    assert same(ends[0], ends[2])
    assert same(ends[1], ends[2])


def test_a_shallow_copy_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"copy\.copy\(\).*use copy\.deepcopy\(\)"):
        copy.copy(make())
