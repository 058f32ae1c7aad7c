"""A step that is broken off at any line leaves the learner exactly as before it, or exactly as after it."""

import copy
from itertools import count

import torch
from torch import nn

import hamlearn as hl
from hamlearn.local import LocalLearner
from tests.comparing import same
from tests.local.cases import layer
from tests.local.interrupts import broken_off

mse = nn.functional.mse_loss


def network() -> nn.Sequential:
    """Stacked layers, running statistics, and random numbers."""
    return nn.Sequential(
        nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Dropout(0.2)), layer(2, 2), layer(2, 2)
    )


def everything(learner: LocalLearner) -> list:
    state, engine = learner.state, learner._engine
    parts = [*learner.module.parameters(), *learner.module.buffers(), *state.omega.values()]
    parts += [x for tree in (state.h, state.z) for x in (tree or {}).values()]
    parts += [
        x for flight in getattr(engine, "flights", {}).values() for x in (*flight.h.values(), *flight.z.values())
    ]
    parts += [*getattr(engine, "pending", {}).values(), torch.get_rng_state()]
    modes = [module.training for module in learner.module.modules()]
    numbers = [state.t, state.updates, learner.position, getattr(engine, "number", 0), getattr(engine, "kappa", 0)]
    modes.append(torch.is_grad_enabled())
    return [*numbers, *modes, *(part.detach().clone() for part in parts)]


SETTINGS = {
    "unaligned": {},
    "aligned": {"align": True},
    "held": {"hold": 2, "align": True},
    "delay-free": {"delay_free": True, "groups": 2},
    "one group": {"groups": 1, "order": "sequential"},
}
BETA = {"0.*": 0.02, "1.*": 0.1, "*": 0.05}


def learner_of(setting: dict, module: nn.Module | None = None) -> LocalLearner:
    return LocalLearner(module or network(), mse, hl.Hyper(eta=0.3, beta=0.05 if module else BETA), **setting)


def break_off_everywhere(ready: LocalLearner, sample: hl.Sample) -> None:
    spare, through, learner = copy.deepcopy(ready), copy.deepcopy(ready), ready
    random, before = torch.get_rng_state(), everything(ready)
    through.step(sample)
    after, found = everything(through), []
    for line in count():
        torch.set_rng_state(random)
        if not broken_off(lambda: learner.step(sample), line):  # noqa: B023 (called at once)
            break
        now = everything(learner)
        found.append(same(now, after))
        assert found[-1] or same(now, before), f"line {line}"
        if found[-1]:
            learner = copy.deepcopy(spare)
    assert set(found) == {True, False}
