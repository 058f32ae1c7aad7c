"""hl.optim.HL beside torch.optim.SGD in odd cases: the same bits, or a refusal that leaves all as it was."""

import copy

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.errors import CheckpointError, ConfigError
from tests.comparing import same


def weights(*shapes, dtype=None):
    given = torch.Generator().manual_seed(3)
    return [nn.Parameter(torch.randn(shape, generator=given, dtype=dtype)) for shape in shapes]


def feed(theta, k):
    """A gradient for most of the weights, another one at each step."""
    for i, weight in enumerate(theta):
        given = torch.Generator().manual_seed(100 * k + i)
        grad = torch.randn(weight.shape, generator=given, dtype=weight.dtype)
        weight.grad = grad if (k + i) % 3 else None


def train(optimizer, theta, steps):
    for k in steps:
        feed(theta, k)
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex128])
@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)])
def test_odd_weights_and_settings_that_change_follow_sgd_bit_for_bit(dtype, lr):
    a, b = (weights((3, 2), (4,), (0, 3), (), dtype=dtype) for _ in range(2))
    pair = [kind([{"params": w[:2]}, {"params": w[2:], "lr": 0.3}], lr=lr, momentum=0.9, weight_decay=0.05)
            for kind, w in ((hl.optim.HL, a), (torch.optim.SGD, b))]  # fmt: skip
    for k, (momentum, rate) in enumerate([(0.9, 0.1), (0.0, 0.2), (0.5, 0.0), (0.9, 0.1)]):
        for optimizer, theta in zip(pair, (a, b), strict=True):
            optimizer.param_groups[0].update(momentum=momentum, lr=rate)
            train(optimizer, theta, [2 * k, 2 * k + 1])
    assert same(a, b)


def test_the_state_of_sgd_is_taken_up_with_its_momentum():
    a, b = weights((3, 2), (4,)), weights((3, 2), (4,))
    theirs = torch.optim.SGD(b, lr=0.1, momentum=0.9, dampening=0.2)
    train(theirs, b, range(5))
    with torch.no_grad():
        for p, q in zip(a, b, strict=True):
            p.copy_(q)
    mine = hl.optim.HL(a, lr=0.7, tau=0.5)
    mine.load_state_dict(theirs.state_dict())
    for theta, optimizer in ((a, mine), (b, theirs)):
        train(optimizer, theta, range(5, 9))
    assert same(a, b)
    assert mine.param_groups[0]["tau"] == 0.5
    assert "nesterov" not in mine.param_groups[0]


def state_of_adam():
    theta = weights((2,))
    optimizer = torch.optim.Adam(theta)
    train(optimizer, theta, [1])
    return optimizer.state_dict()


def changed(**group):
    state = hl.optim.HL(weights((2,)), lr=0.1).state_dict()
    state["param_groups"][0].update(group)
    return state


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (state_of_adam, "another optimizer"),
        (
            lambda: torch.optim.SGD(weights((2,)), lr=0.1, momentum=0.9, nesterov=True).state_dict(),
            "nesterov=True",
        ),
        (lambda: torch.optim.SGD(weights((2,)), lr=0.1, maximize=True).state_dict(), "maximize=True"),
        (lambda: changed(lr=float("nan")), "lr=nan"),
        (lambda: {**changed(), "state": {0: {"omega": torch.ones(3)}}}, r"shape \[3\], the weight \[2\]"),
        (lambda: {**changed(), "state": {0: {"exp_avg": torch.ones(2)}}}, "exp_avg"),
        (dict, "not the state of an optimizer"),
        (lambda: None, "not the state of an optimizer"),
    ],
)
def test_a_state_of_another_kind_is_refused_and_nothing_is_taken_from_it(state, says):
    theta = weights((2,))
    optimizer = hl.optim.HL(theta, lr=0.1, momentum=0.5)
    train(optimizer, theta, [1])
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises((CheckpointError, ConfigError), match=says):
        optimizer.load_state_dict(state())
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert torch.equal(after["state"][0]["omega"], before["state"][0]["omega"])


@pytest.mark.parametrize("option", ["maximize", "nesterov", "differentiable"])
def test_a_step_that_is_not_hls_is_refused_in_a_group_too(option):
    with pytest.raises(ConfigError, match=f"{option}=True"):
        hl.optim.HL([{"params": weights((2,)), option: True}], lr=0.1)
    theta = weights((2,))
    optimizer = hl.optim.HL(theta, lr=0.1)
    optimizer.param_groups[0][option] = True
    with pytest.raises(ConfigError, match=f"{option}=True"):
        train(optimizer, theta, [1])
    assert same(theta, weights((2,)))


def test_a_sparse_gradient_is_refused_before_any_group_moves():
    theta = weights((2, 2), (2, 2))
    optimizer = hl.optim.HL([{"params": theta[:1]}, {"params": theta[1:]}], lr=0.1)
    theta[0].grad = torch.ones(2, 2)
    theta[1].grad = torch.ones(2, 2).to_sparse()
    with pytest.raises(ConfigError, match="dense"):
        optimizer.step()
    assert same(theta, weights((2, 2), (2, 2)))
