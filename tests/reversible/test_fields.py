import math

import pytest
import torch
from torch import nn

from hamlearn.errors import SampleError
from hamlearn.reversible import (
    AntisymmetricConv,
    AntisymmetricLinear,
    Midpoint,
    ResidualField,
    TransformerField,
    stability,
)
from hamlearn.reversible.blocks import Attention

FIELDS = {
    "dense": (lambda: AntisymmetricLinear(12), (12,)),
    "dense limited": (lambda: AntisymmetricLinear(12, limit=1.0), (12,)),
    "relu": (lambda: AntisymmetricLinear(12, activation=torch.relu), (12,)),
    "conv1d": (lambda: AntisymmetricConv(3, 5, dims=1), (1, 3, 7)),
    "conv2d": (lambda: AntisymmetricConv(3, 3), (1, 3, 4, 5)),
    "conv3d": (lambda: AntisymmetricConv(2, 3, dims=3), (1, 2, 3, 3, 2)),
    "residual": (lambda: ResidualField(12, hidden=20), (12,)),
    "transformer": (lambda: TransformerField(8, heads=2), (5, 8)),
}


def jacobian(field, h):
    n = h.numel()
    return torch.autograd.functional.jacobian(lambda x: field(None, x), h).reshape(n, n)


@pytest.mark.parametrize("name", FIELDS)
def test_shipped_fields_have_imaginary_eigenvalues_for_any_weights(name):
    make, shape = FIELDS[name]
    for seed in range(3):
        torch.manual_seed(seed)
        field = make().double()
        for p in field.parameters():
            nn.init.normal_(p, std=0.5)
        J = jacobian(field, torch.randn(shape, dtype=torch.float64))
        eigenvalues = torch.linalg.eigvals(J)
        assert eigenvalues.abs().max() > 0.1
        # A root of a polynomial with a double zero is found to half the digits only.
        assert eigenvalues.real.abs().max() < 1e-6 * eigenvalues.abs().max()


@pytest.mark.parametrize("name", FIELDS)
def test_shipped_fields_are_stable_below_the_tau_that_stability_names_and_not_above(name):
    make, shape = FIELDS[name]
    torch.manual_seed(0)
    field = make().double()
    h = torch.randn(shape, dtype=torch.float64)
    tau_max = stability(field, h, tau=1e-3, krylov=100).tau_max
    below = stability(field, h, tau=0.9 * tau_max, krylov=100)
    above = stability(field, h, tau=1.1 * tau_max, krylov=100)
    assert below.stable
    assert below.growth == pytest.approx(1.0, abs=1e-6)
    assert not above.stable
    assert above.growth > 1.1


@pytest.mark.parametrize("real", [0.3, -0.3])
@pytest.mark.parametrize("tau", [0.1, 1.0])
def test_growth_of_a_real_eigenvalue_is_the_root_of_its_quadratic(real, tau):
    found = stability(lambda u, h: real * h, torch.ones(3, dtype=torch.float64), tau=tau)
    s = abs(real) * tau
    assert found.growth == pytest.approx((s + math.sqrt(s * s + 4)) / 2, rel=1e-12)
    assert not found.stable
    assert found.tau_max == math.inf


def test_predicted_growth_is_that_of_the_midpoint_rule():
    torch.manual_seed(0)
    A = torch.randn(6, 6, dtype=torch.float64) * 0.3
    h = torch.randn(6, dtype=torch.float64)
    found = stability(lambda u, h: h @ A, h, tau=0.5)

    def norm(steps):
        return Midpoint(lambda u, h: h @ A, steps, 0.5, exact=False)(h).norm()

    measured = (norm(1400) / norm(400)) ** (1 / 1000)
    assert found.growth == pytest.approx(measured.item(), rel=1e-3)


def test_arnoldi_finds_the_fastest_oscillation_of_a_large_field():
    torch.manual_seed(0)
    A = torch.randn(400, 400, dtype=torch.float64)
    W = (A - A.T) / 20
    found = stability(lambda u, h: h @ W, torch.randn(400, dtype=torch.float64), tau=0.1)
    assert len(found.eigenvalues) == 64
    fastest = torch.linalg.eigvals(W).abs().max().item()
    assert 0.97 * fastest < 2 / found.tau_max <= fastest * (1 + 1e-9)


def test_limit_bounds_the_eigenvalues():
    for field, shape in (
        (AntisymmetricLinear(9, limit=0.7), (9,)),
        (AntisymmetricConv(3, limit=0.7), (1, 3, 4, 4)),
    ):
        nn.init.normal_(field.A, std=5.0)
        assert torch.linalg.eigvals(jacobian(field, torch.zeros(shape))).abs().max() <= 0.7 + 1e-5
        assert jacobian(field, torch.zeros(shape)).abs().max() > 0.01


def test_attention_is_the_gradient_of_its_energy():
    torch.manual_seed(0)
    attention = Attention(6, heads=2).double()
    q = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    x = (q @ attention.W.T).view(2, 5, 2, 3).transpose(1, 2)
    pairs = (x.unsqueeze(-2) + x.unsqueeze(-3)).square().sum(-1)
    energy = torch.logsumexp(attention.beta / 2 * pairs, dim=-1).sum() / attention.beta
    (expected,) = torch.autograd.grad(energy, q)
    torch.testing.assert_close(attention(q), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", FIELDS)
def test_shipped_fields_run_reversibly(name):
    make, shape = FIELDS[name]
    torch.manual_seed(0)
    field = make()
    h = torch.randn(2, *shape[1:]) if name.startswith("conv") else torch.randn(2, *shape)
    found = []
    for memory in ("reversible", "stored"):
        field.zero_grad()
        Midpoint(field, 30, 0.05, memory=memory)(h).square().mean().backward()
        found.append([p.grad for p in field.parameters()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_stability_refuses_a_field_of_another_shape():
    with pytest.raises(SampleError, match="shape"):
        stability(lambda u, h: h[:1], torch.zeros(3), tau=0.1)
