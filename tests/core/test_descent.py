"""A large weight and its costate in one pass over memory: the same bits, done whole or not at all."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import hamlearn as hl
from hamlearn.orders.system import LARGE
from hamlearn.theory import descent
from hamlearn.theory.descent import descend_, fuses


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=60, deadline=None)
@given(
    lines=st.integers(1, 2000),
    decay=st.floats(1e-6, 1.0),
    step=st.floats(1e-12, 10.0),
    scale=st.floats(1e-30, 1e30),
    seed=st.integers(0, 2**31),
)
def test_one_pass_gives_the_bits_of_three_calls(dtype, lines, decay, step, scale, seed):
    torch.manual_seed(seed)
    theta, omega, grad = (torch.randn(64 * lines, dtype=dtype) * scale for _ in range(3))
    expected = omega.mul(decay).add_(grad, alpha=1.0)
    moved, before = theta.add(expected, alpha=-step), grad.clone()
    assert fuses(theta, omega, grad)
    descend_(theta, omega, grad, decay, step)
    assert torch.equal(omega, expected)
    assert torch.equal(theta, moved)
    assert torch.equal(grad, before)


def test_the_versions_tell_that_it_was_done():
    theta, omega, grad = nn.Parameter(torch.randn(64)), torch.randn(64), torch.randn(64)
    held = (theta * theta).sum()
    with torch.no_grad():
        descend_(theta, omega, grad, 0.9, 0.1)
    assert (theta._version, omega._version, grad._version) == (1, 1, 0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        held.backward()


@pytest.mark.parametrize(
    "odd",
    [
        lambda x: x.T,
        lambda x: x[:, ::2],
        lambda x: x.double(),
        lambda x: x[:-1],
        lambda x: nn.Parameter(x),
        lambda x: x.to("meta"),
    ],
    ids=["transposed", "strided", "another type", "another shape", "a subclass", "elsewhere"],
)
def test_what_is_laid_out_otherwise_is_left_to_three_calls(odd):
    theta, usual = torch.randn(8, 8), torch.randn(8, 8)
    assert fuses(theta, usual, usual)
    assert not fuses(theta, odd(torch.randn(8, 8)), usual)
    assert not fuses(theta, usual, odd(torch.randn(8, 8)))
    assert not fuses(torch.randn(8, 8, dtype=torch.bfloat16), usual.bfloat16(), usual.bfloat16())


def test_what_does_not_fill_whole_vectors_is_left_to_three_calls():
    assert not fuses(torch.ones(63), torch.ones(63), torch.ones(63))
    assert not fuses(torch.ones(65), torch.ones(65), torch.ones(65))


def test_a_build_of_pytorch_that_rounds_otherwise_is_found_out(monkeypatch):
    monkeypatch.setattr(descent, "fused_sgd_", lambda theta, grad, omega, **rates: omega[0].add_(1e-6))
    descent._same_bits.cache_clear()
    try:
        assert not fuses(torch.ones(64), torch.ones(64), torch.ones(64))
    finally:
        descent._same_bits.cache_clear()


@pytest.mark.parametrize("more", [8, 5])
@pytest.mark.parametrize(("momentum", "dampening"), [(0.0, 0.0), (0.9, 0.0), (0.9, 0.5)])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_wide_layer_follows_sgd_bit_for_bit(momentum, dampening, more, threads, monkeypatch):
    width, passes, called = int(LARGE**0.5) // 8 * 8 + more, [], descent.fused_sgd_

    def counted(*given, **rates):
        passes.append(given)
        called(*given, **rates)

    monkeypatch.setattr(descent, "fused_sgd_", counted)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    torch.manual_seed(0)
    net = nn.Linear(width, width)
    twin = nn.Linear(width, width)
    twin.load_state_dict(net.state_dict())
    rates = {"lr": 0.05, "momentum": momentum, "dampening": dampening}
    learner = hl.Learner(hl.Network.feedforward(net), nn.functional.mse_loss, hl.Hyper.from_sgd(**rates))
    optimizer = torch.optim.SGD(twin.parameters(), **rates)
    for _ in range(6):
        u, target = torch.randn(2, width), torch.randn(2, width)
        optimizer.zero_grad()
        nn.functional.mse_loss(twin(u), target).backward()
        optimizer.step()
        learner.step(hl.Sample(u, target))
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), twin.parameters(), strict=True))
    # Before the first update φ is 1/τ, whatever the dampening.
    assert (len(passes) > 1) == (momentum > 0 and not dampening and more == 8 and threads == 1)
