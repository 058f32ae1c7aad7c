"""Is the midpoint rule stable for a field at a given τ?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hamlearn.errors import SampleError
from hamlearn.reversible._chain import Field

_EDGE = 1e-3


@dataclass(frozen=True)
class Stability:
    """What `stability` found.

    Attributes:
        stable: whether no perturbation grows, to the tolerance asked for.
        growth: the largest factor by which a step multiplies a perturbation; 1 when stable.
        tau_max: the largest τ with which the oscillations found are stable: 2 / max |Im λ|.
        eigenvalues: those of ∂f/∂h that were found, as a complex tensor.

    Example:
        >>> from hamlearn.reversible import AntisymmetricLinear
        >>> found = stability(AntisymmetricLinear(8), torch.ones(8), tau=0.1)
        >>> found.stable, found.tau_max > 0.1, found.eigenvalues.dtype
        (True, True, torch.complex128)
    """

    stable: bool
    growth: float
    tau_max: float
    eigenvalues: Tensor


def stability(
    field: Field, h: Tensor, u: Any = None, *, tau: float, tol: float = _EDGE, krylov: int = 64, seed: int = 0
) -> Stability:
    r"""Estimate how fast perturbations of the midpoint rule grow at the state h.

    On an eigenvector of ∂f/∂h with eigenvalue λ the rule reads h_{k+1} = h_{k-1} + τλ h_k, whose solutions
    are wᵏ with w² − τλ w − 1 = 0. Both roots have modulus 1 exactly when τλ is imaginary with τ|λ| ≤ 2 (at 2
    the roots meet and growth is linear, so stay below). Real parts of either sign make one root grow.

    Eigenvalues are Ritz values of the Arnoldi process with products by the transposed Jacobian: all of them
    if the state has at most `krylov` entries, the outer ones otherwise. The answer is local, for this h and u.

    Args:
        field: f, called as `field(u, h)`.
        h: the state to look at.
        u: the driving signal.
        tau: τ.
        tol: growth per step that still counts as stable; Ritz values have small spurious real parts.
        krylov: number of Arnoldi steps.
        seed: of the first direction.

    Example:
        >>> from hamlearn.reversible import AntisymmetricLinear, stability
        >>> _ = torch.manual_seed(0)
        >>> stability(AntisymmetricLinear(16), torch.randn(16), tau=0.1).stable
        True
        >>> stability(lambda u, h: -h, torch.randn(16), tau=0.1).stable
        False
    """
    with torch.enable_grad():
        x = h.detach().clone().requires_grad_()
        v = field(u, x)
    if v.shape != h.shape:
        raise SampleError(f"the field returned shape {tuple(v.shape)} for a state of shape {tuple(h.shape)}.")
    eigenvalues = _ritz(v, x, krylov, seed)
    s = tau * eigenvalues
    root = torch.sqrt(s * s + 4)
    growth = torch.maximum((s + root).abs(), (s - root).abs()).max().item() / 2
    fastest = eigenvalues.imag.abs().max().item()
    tau_max = 2 / fastest if fastest > 0 else float("inf")
    return Stability(growth <= 1 + tol, growth, tau_max, eigenvalues)


def _ritz(v: Tensor, x: Tensor, krylov: int, seed: int) -> Tensor:
    """Eigenvalues of the Arnoldi matrix of the transposed Jacobian ∂v/∂x, in float64."""
    n = x.numel()
    steps = min(krylov, n)
    start = torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, device="cpu")
    Q = [(start / start.norm()).to(x.device)]
    H = torch.zeros(steps + 1, steps, dtype=torch.float64, device=x.device)
    for j in range(steps):
        w = torch.zeros_like(Q[0])
        if v.requires_grad:
            (dv,) = torch.autograd.grad(v, x, Q[j].to(v.dtype).view_as(v), retain_graph=True, allow_unused=True)
            w = w if dv is None else dv.flatten().double()
        basis = torch.stack(Q)
        for _ in range(2):  # a second pass restores the orthogonality that rounding takes away
            overlap = basis @ w
            H[: j + 1, j] += overlap
            w = w - overlap @ basis
        H[j + 1, j] = w.norm()
        if H[j + 1, j] < 1e-12:
            steps = j + 1  # an invariant subspace: its eigenvalues are exact
            break
        Q.append(w / H[j + 1, j])
    return torch.linalg.eigvals(H[:steps, :steps].cpu())
