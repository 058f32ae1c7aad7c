"""A loss that reads weights itself: τφ ∂L/∂θ reaches ω, in every order and in both engines."""

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.local import LocalLearner
from tests.local.cases import chain
from tests.problems import random_samples

mse = nn.functional.mse_loss
ORDERS = {
    "unaligned": {},
    "sequential": {"order": "sequential"},
    "aligned": {"align": True},
    "aligned sequential": {"align": True, "order": "sequential"},
    "delay-free": {"delay_free": True},
    "held": {"hold": 3},
}


def penalised(module: nn.Module, size: float = 0.1):
    def loss(y, target):
        return mse(y, target) + size * sum(w.square().sum() for w in module.parameters())

    return loss


def learned(setting: dict, engine: str, missing: int = 0, **options) -> LocalLearner:
    torch.manual_seed(0)
    module = chain(3, 4, 4, 4, 2)
    learner = LocalLearner(module, penalised(module), hl.Hyper(eta=0.3, beta=0.01), **setting, **options)
    list(learner.run(random_samples(40, missing=missing), engine=engine, chunk=16))
    return learner


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("order", ORDERS)
def test_a_penalty_alone_gathers_its_gradient_with_every_tick(order, stacked):
    torch.manual_seed(0)
    module = chain(3, 4, 4, 4, 2)
    hyper = hl.Hyper(eta=0.0, beta=0.0)
    penalty = lambda y, target: 0.5 * sum(w.square().sum() for w in module.parameters()) + 0 * y.sum()  # noqa: E731
    learner = LocalLearner(module, penalty, hyper, **ORDERS[order], stacked=stacked)
    samples = random_samples(12)
    list(learner.run(samples))
    ticks = 12 * ORDERS[order].get("hold", 1)
    for name, weight in module.named_parameters():
        torch.testing.assert_close(learner.state.omega[name], ticks * weight.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("missing", [0, 3])
@pytest.mark.parametrize("order", [order for order in ORDERS if order != "delay-free"])
def test_both_engines_learn_alike_from_a_loss_with_a_penalty(order, missing):
    eager, compiled = (learned(ORDERS[order], engine, missing) for engine in ("eager", "compiled"))
    plain = [torch.zeros(())] if eager.state.updates == 0 else list(eager.state.omega.values())
    assert any(omega.any() for omega in plain)
    for name, omega in eager.state.omega.items():
        torch.testing.assert_close(omega, compiled.state.omega[name], rtol=1e-10, atol=1e-12)
    for a, b in zip(eager.module.parameters(), compiled.module.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
