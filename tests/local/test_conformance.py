"""Local learners keep the promises of all learners."""

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn import checks
from hamlearn.local import LocalLearner
from tests.problems import random_samples


@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"hold": 3},
        {"align": True},
        {"delay_free": True},
        {"groups": 1, "order": "sequential"},
        {"stacked": False},
    ],
    ids=str,
)
def test_local_learners_pass_the_conformance_kit(setting):
    def make():
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(4)]
        hyper = hl.Hyper(beta=0.05, eta=0.2)
        return LocalLearner(nn.Sequential(*layers, nn.Linear(3, 2)), nn.functional.mse_loss, hyper, **setting)

    checks.check_learner(make, random_samples(12))
