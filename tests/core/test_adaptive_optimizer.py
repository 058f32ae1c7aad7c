"""hl.optim.HL by the rules whose β adapts, against torch.optim."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import hamlearn as hl
from tests.core.test_sgd_recovered import MODELS, iris

RULES = {
    "adam": (torch.optim.Adam, {"betas": (0.8, 0.99), "eps": 1e-6}),
    "adamw": (torch.optim.AdamW, {"betas": (0.9, 0.999)}),
    "rmsprop": (torch.optim.RMSprop, {"alpha": 0.9, "eps": 1e-7}),
}


def groups(module):
    return [
        {"params": module[0].parameters(), "lr": 0.02, "weight_decay": 0.1},
        {"params": module[2].parameters(), "eps": 1e-5},
    ]


def loop(optimizer, module, scheduler, start, stop, dtype):
    x, y = iris(dtype)
    for i in range(start, stop):
        optimizer.zero_grad()
        functional.cross_entropy(module(x[i % 150 : i % 150 + 1]), y[i % 150 : i % 150 + 1]).backward()
        if i % 7 == 3:
            module[2].bias.grad = None  # from here on it has been updated less often than the others
        optimizer.step()
        scheduler.step()


def scheduled(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rule", RULES)
def test_optimizer_follows_the_rule_bit_for_bit_with_groups_decay_schedule_and_reload(rule, dtype):
    kind, settings = RULES[rule]
    torch.manual_seed(3)
    module = MODELS["mlp"]().to(dtype)
    twin = copy.deepcopy(module)
    theirs = kind(groups(module), lr=0.01, weight_decay=0.01, **settings)
    mine = hl.optim.HL(groups(twin), lr=0.01, weight_decay=0.01, rule=rule, tau=0.5, **settings)
    schedule, my_schedule = scheduled(theirs), scheduled(mine)
    loop(theirs, module, schedule, 0, 100, dtype)
    loop(mine, twin, my_schedule, 0, 50, dtype)
    saved = copy.deepcopy((twin.state_dict(), mine.state_dict(), my_schedule.state_dict()))
    fresh = MODELS["mlp"]().to(dtype)
    again = hl.optim.HL(groups(fresh), lr=0.01, weight_decay=0.01, rule=rule, tau=0.5, **settings)
    again_schedule = scheduled(again)
    fresh.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    again_schedule.load_state_dict(saved[2])
    loop(again, fresh, again_schedule, 50, 100, dtype)
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), fresh.parameters(), strict=True))


@pytest.mark.parametrize("rule", RULES)
def test_optimizer_takes_up_the_state_of_the_rules_own(rule):
    kind, settings = RULES[rule]
    torch.manual_seed(4)
    module = MODELS["mlp"]()
    theirs = kind(module.parameters(), lr=0.01, **settings)
    schedule = scheduled(theirs)
    loop(theirs, module, schedule, 0, 15, torch.float32)
    twin = copy.deepcopy(module)
    mine = hl.optim.HL(twin.parameters(), lr=1.0, rule=rule)
    mine.load_state_dict(theirs.state_dict())
    my_schedule = torch.optim.lr_scheduler.LambdaLR(mine, lambda _: 1.0)
    assert mine.param_groups[0]["lr"] == 0.01
    loop(theirs, module, schedule, 15, 19, torch.float32)
    loop(mine, twin, my_schedule, 15, 19, torch.float32)
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), twin.parameters(), strict=True))
    for other in set(RULES) - {rule}:
        with pytest.raises((hl.errors.CheckpointError, hl.errors.ConfigError)):
            hl.optim.HL(twin.parameters(), rule=other).load_state_dict(theirs.state_dict())


def test_optimizer_forgets_over_a_gap_and_takes_each_gradient_once():
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = hl.optim.HL([weight], lr=0.1, rule="adam", betas=(0.5, 0.75), eps=1e-3, tau=0.5)
    theta, omega, v = 0.0, 0.0, 0.0
    for k, tau in enumerate([0.5, 0.25, 1.0, 0.1], start=1):
        weight.grad = torch.full_like(weight, float(k))
        optimizer.step(tau=tau)
        omega, v = 0.5 ** (tau / 0.5) * omega + 0.5 * k, 0.75 * v + 0.25 * k**2
        theta -= 0.1 / (1 - 0.5**k) * omega / ((v / (1 - 0.75**k)) ** 0.5 + 1e-3)
        assert abs(weight.item() - theta) < 1e-15


@pytest.mark.parametrize("rule", ["adamw", "rmsprop"])
def test_optimizer_on_the_continuous_clock_takes_the_equations_literally(rule):
    weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = hl.optim.HL([weight], lr=0.1, rule=rule, weight_decay=0.2, eps=1e-3, tau=0.5, clock="continuous")
    weight.grad = torch.full_like(weight, 2.0)
    optimizer.step(tau=0.25)
    if rule == "adamw":
        expected = 1 - 0.05 * 0.2 - 0.05 * (0.05 * 2.0 / (1 - 0.9)) / (2.0 + 1e-3)
    else:
        expected = 1 - 0.05 * (0.5 * 2.2) / (2.2 * 0.1 + 1e-3)
    assert weight.item() == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"rule": "lion"}, "rule='lion'"),
        ({"rule": "adam", "betas": (0.9, 1.0)}, r"betas\[1\]=1.0"),
        ({"rule": "adam", "eps": 0.0}, "eps=0.0"),
        ({"rule": "adam", "momentum": 0.9}, "momentum=0.9 belongs to rule='sgd'"),
        ({"rule": "rmsprop", "alpha": -0.1}, "alpha=-0.1"),
        ({"rule": "adam", "betas": 0.9}, "betas=0.9 must be two numbers"),
        ({"rule": "adam", "betas": (0.9, 0.9, 0.9)}, "must be two numbers"),
    ],
)
def test_optimizer_names_the_setting_of_a_rule_that_cannot_be(settings, names):
    with pytest.raises(hl.errors.ConfigError, match=names):
        hl.optim.HL(nn.Linear(1, 1).parameters(), **settings)


@pytest.mark.parametrize("rule", RULES)
def test_optimizer_has_the_defaults_of_the_rules_own(rule):
    torch.manual_seed(0)
    module = MODELS["mlp"]()
    twin = copy.deepcopy(module)
    mine, theirs = hl.optim.HL(module.parameters(), rule=rule), RULES[rule][0](twin.parameters())
    for name in ("lr", "weight_decay"):
        assert mine.defaults[name] == theirs.defaults[name]
    for optimizer, its in ((mine, module), (theirs, twin)):
        loop(optimizer, its, scheduled(optimizer), 0, 5, torch.float32)
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("rule", RULES)
def test_complex_weights_are_refused_before_anything_moves(rule):
    theta = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=torch.complex64))]
    for weight in theta:
        weight.grad = torch.ones_like(weight)
    with pytest.raises(hl.errors.ConfigError, match=r"of shape \[2\] is complex: use rule='sgd'"):
        hl.optim.HL(theta, rule=rule).step()
    assert all(torch.equal(weight, torch.ones_like(weight)) for weight in theta)


def test_all_groups_of_an_optimizer_follow_one_rule():
    optimizer = hl.optim.HL(nn.Linear(1, 1).parameters(), rule="adam")
    with pytest.raises(hl.errors.ConfigError, match="rule='sgd' is not that of the optimizer, 'adam'"):
        optimizer.add_param_group({"params": nn.Linear(1, 1).parameters(), "rule": "sgd"})
    with pytest.raises(hl.errors.ConfigError, match=r"momentum=0\.9"):
        optimizer.add_param_group({"params": nn.Linear(1, 1).parameters(), "momentum": 0.9})
