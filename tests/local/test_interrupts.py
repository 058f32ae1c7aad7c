"""A step that fails leaves the learner exactly as it was; Ctrl-C waits until a step is done."""

import copy
import signal

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.local import LocalLearner
from tests.comparing import same
from tests.local.cases import everything, layer
from tests.problems import random_samples

mse = nn.functional.mse_loss
SETTINGS = {
    "unaligned": {},
    "aligned": {"align": True},
    "held": {"hold": 2, "align": True},
    "delay-free": {"delay_free": True, "groups": 2},
    "one group": {"groups": 1, "order": "sequential"},
}


class Disturbed(nn.Module):
    """Calls a function of the test in the midst of a forward pass."""

    def __init__(self):
        super().__init__()
        self.call = lambda: None

    def forward(self, x):
        self.call()
        return x


def ready_learner(setting: dict) -> LocalLearner:
    first = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Dropout(0.2), Disturbed())
    learner = LocalLearner(
        nn.Sequential(first, layer(2, 3), layer(3, 2)), mse, hl.Hyper(eta=0.3, beta=0.05), **setting
    )
    for sample in random_samples(7, batch=(3,)):
        learner.step(sample)
    return learner


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_step_that_fails_in_its_midst_leaves_the_learner_as_it_was(setting, call):
    learner, sample, calls = ready_learner(SETTINGS[setting]), random_samples(1, batch=(3,))[0], []

    def count() -> None:
        calls.append(1)
        if len(calls) == call:
            raise ArithmeticError

    learner.module[0][3].call = count
    before = everything(learner)
    if call == 2 and setting in ("unaligned", "delay-free", "one group"):
        learner.step(sample)
        before = everything(learner)
    with pytest.raises(ArithmeticError):
        learner.step(sample)
    assert same(everything(learner), before)


@pytest.mark.parametrize("setting", SETTINGS)
def test_ctrl_c_waits_for_the_end_of_the_step(setting):
    learner, sample = ready_learner(SETTINGS[setting]), random_samples(1, batch=(3,))[0]
    through, random = copy.deepcopy(learner), torch.get_rng_state()
    through.step(sample)
    torch.set_rng_state(random)
    learner.module[0][3].call = lambda: signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        learner.step(sample)
    assert same(everything(learner), everything(through))
