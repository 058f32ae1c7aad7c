"""Large layers, whose gradients are never written out: the same numbers, and nothing to be seen of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.local import LocalLearner
from hamlearn.rules.local import wide
from tests.comparing import same
from tests.local.cases import everything
from tests.problems import random_samples

mse = nn.functional.mse_loss
PLAIN, HEAVY = hl.Hyper.from_sgd(lr=0.1), hl.Hyper.from_sgd(lr=0.1, momentum=0.5)
BY_NAME = hl.Hyper(eta=1.0, eta_z=0.0, beta={"0.*": 0.02, "1.*": lambda t: 0.1 / (1 + t), "2.*": 0.0, "*": 0.05})
SETTINGS: dict[str, dict[str, Any]] = {
    "unaligned": {},
    "sequential": {"order": "sequential"},
    "aligned": {"align": True},
    "aligned, sequential": {"align": True, "order": "sequential"},
    "held": {"align": True, "hold": 2},
    "delay-free": {"delay_free": True},
    "one group": {"groups": 1, "order": "sequential"},
}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every matrix counts as large."""
    monkeypatch.setattr(wide, "LARGE", 1)


def network() -> nn.Sequential:
    torch.manual_seed(3)
    first = nn.Sequential(nn.Linear(7, 11), nn.Tanh())
    second = nn.Sequential(nn.Linear(11, 9, bias=False), nn.ReLU(inplace=True), nn.Linear(9, 9))
    third = nn.Sequential(nn.Flatten(), nn.Linear(9, 8), nn.LayerNorm(8))
    return nn.Sequential(first, second, third, nn.Linear(8, 5))


def samples(count: int = 9, rows: tuple[int, ...] = (2,)) -> list[hl.Sample]:
    return random_samples(count, 7, 5, rows, missing=4)


def learner(hyper: hl.Hyper = PLAIN, module: nn.Module | None = None, **setting: Any) -> LocalLearner:
    return LocalLearner(module or network(), mse, hyper, **({"groups": 4} | setting), stacked=False)


def through(subject: LocalLearner, given: Any) -> list[Any]:
    for sample in given:
        subject.step(sample)
    return everything(subject)


def assert_close(one: list[Any], other: list[Any]) -> None:
    def tensors(found: list[Any]) -> dict[str, torch.Tensor]:
        pairs = (part for part in found if isinstance(part, tuple))
        return {n: x for n, x in pairs if x.is_floating_point() and not n.startswith("factors/")}

    torch.testing.assert_close(tensors(one), tensors(other), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rows", [(2,), (1,), (1, 2)])
@pytest.mark.parametrize("hyper", [PLAIN, HEAVY, BY_NAME], ids=["plain", "momentum", "by name"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_large_layers_learn_what_small_ones_do(
    setting: str, hyper: hl.Hyper, rows: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if len(rows) > 1:
        rows, module = (1, 2), nn.Sequential(nn.Linear(7, 11), nn.Tanh(), nn.Linear(11, 9), nn.Linear(9, 5))
    else:
        module = network()
    twin = copy.deepcopy(module)
    if hyper is BY_NAME and len(rows) > 1:
        hyper = hl.Hyper(eta=1.0, eta_z=0.0, beta={"0.*": 0.02, "*": 0.1})
    setting_of = SETTINGS[setting]
    subject = learner(hyper, module, **setting_of)
    found = through(subject, samples(rows=rows))
    monkeypatch.setattr(wide, "LARGE", 10**9)
    judge = learner(hyper, twin, **setting_of)
    assert_close(found, through(judge, samples(rows=rows)))


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_learner_that_is_saved_and_loaded_goes_on_bit_for_bit(setting: str) -> None:
    subject = learner(**SETTINGS[setting])
    through(subject, samples(6))
    twin = learner(**SETTINGS[setting])
    twin.load_state_dict(subject.state_dict())
    assert same(through(twin, samples()[6:]), through(subject, samples()[6:]))


class Odd(nn.Module):
    """Not one of PyTorch's own: it might use anybody's weights."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def doubled(*given: Any) -> Any:
    return 2 * given[-1]


def overridden(module: nn.Sequential) -> None:
    first = module[0]
    first.forward = lambda x: 2 * x @ first.weight.T


def tied(module: nn.Sequential) -> None:
    module[2].weight = module[0].weight


HEEDED: dict[str, Callable[[nn.Sequential], Any]] = {
    "a hook of the layer": lambda m: m[0].register_forward_hook(doubled),
    "a hook of the weight": lambda m: m[0].weight.register_hook(lambda grad: 3 * grad),
    "a hook of the chain": lambda m: m.register_forward_hook(doubled),
    "a forward of its own": overridden,
    "a layer of others": lambda m: m.insert(1, Odd()),
    "two layers with one weight": tied,
}


@pytest.mark.parametrize("what", HEEDED)
def test_what_a_plain_product_would_pass_over_is_heeded(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for large in (1, 10**9):
        monkeypatch.setattr(wide, "LARGE", large)
        torch.manual_seed(3)
        module = nn.Sequential(nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 7), nn.Linear(7, 5))
        HEEDED[what](module)
        # The whole chain is one node, so that it is called, and its own hooks too.
        subject = learner(PLAIN, nn.Sequential(module), groups=1)
        found.append(through(subject, samples()))
    assert_close(*found)


class Real(nn.Module):
    """Both parts of complex numbers, one beside the other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(x).flatten(-2)


@pytest.mark.parametrize("stacked", [False, True])
def test_complex_layers_gather_the_gradient_of_backpropagation(stacked: bool) -> None:
    torch.manual_seed(3)
    layers = nn.Sequential(*(nn.Linear(4, 4, dtype=torch.complex128) for _ in range(3)))
    judge = copy.deepcopy(nn.Sequential(layers, Real()))
    # Each layer a node, which might be stacked; or all of them in one, as a chain.
    module = nn.Sequential(*layers, Real()) if stacked else nn.Sequential(layers, Real())
    hyper = hl.Hyper(eta=1.0, eta_z=0.0, beta=0.0)
    subject = LocalLearner(module, mse, hyper, align=True, stacked=stacked)
    sample = hl.Sample(torch.randn(2, 4, dtype=torch.complex128), torch.randn(2, 8))
    subject.step(sample)
    total = list(subject.state.omega.values())
    for _ in range(2 * len(module)):
        subject.step(hl.Sample(sample.u))
        total = [before + omega for before, omega in zip(total, subject.state.omega.values(), strict=True)]
    mse(judge(sample.u), sample.target).backward()
    for gathered, weight in zip(total, judge.parameters(), strict=True):
        torch.testing.assert_close(gathered, weight.grad, rtol=1e-12, atol=1e-12)
