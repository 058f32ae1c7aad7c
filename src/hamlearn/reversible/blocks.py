"""Residual and transformer blocks that oscillate by construction: Hamilton's form on the halves of the state."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hamlearn.errors import ConfigError
from hamlearn.reversible.fields import Activation


class _Gradient(nn.Module):
    """x ↦ Wᵀ σ(W x + b): the gradient of a convex function, as σ does not decrease."""

    def __init__(self, width: int, hidden: int, activation: Activation) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.randn(hidden, width) / math.sqrt(max(width, hidden)))
        self.b = nn.Parameter(torch.zeros(hidden))
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(functional.linear(x, self.W, self.b)) @ self.W


class ResidualField(nn.Module):
    r"""A two-layer residual block on each half of the state, in Hamilton's form.

    h = [p, q],  ṗ = −Wᵀ σ(W q + b),  q̇ = Vᵀ σ(V p + c): each half moves by the other's residual block, and
    the eigenvalues are imaginary because both blocks are gradients of convex functions. u is not used.

    Args:
        width: last dimension of h, even.
        hidden: number of hidden neurons of each block; None: `width`.
        activation: σ, not decreasing.

    Example:
        >>> ResidualField(8, hidden=16)(None, torch.randn(3, 8)).shape
        torch.Size([3, 8])
    """

    def __init__(self, width: int, hidden: int | None = None, activation: Activation = torch.tanh) -> None:
        super().__init__()
        _require_even(width)
        self.of_q = _Gradient(width // 2, hidden or width, activation)
        self.of_p = _Gradient(width // 2, hidden or width, activation)

    def forward(self, u: Any, h: Tensor) -> Tensor:
        """The rate of change of h."""
        p, q = h.chunk(2, dim=-1)
        return torch.cat([-self.of_q(q), self.of_p(p)], dim=-1)


class Attention(nn.Module):
    r"""∇E of a convex energy of tokens: self-attention whose Jacobian is symmetric and not negative.

    E(q) = Σ_i β⁻¹ log Σ_j exp(β/2 |x_i + x_j|²) with x = W q, for each head. With the weights
    a_ij = softmax_j(β ⟨x_i, x_j⟩ + β/2 |x_j|²), token i receives Σ_j (a_ij + a_ji)(x_i + x_j): what it attends
    to, and what attends to it. Convex, as a log-sum-exp of convex functions is. There is no causal form: the
    second term looks back from the future.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ConfigError(f"heads={heads} does not divide the {width} neurons of half the state.")
        self.W = nn.Parameter(torch.randn(width, width) / (2 * math.sqrt(width)))
        self.heads, self.beta = heads, (width // heads) ** -0.5

    def forward(self, q: Tensor) -> Tensor:
        """The gradient of E at the tokens q, of shape (…, tokens, width)."""
        x = functional.linear(q, self.W).unflatten(-1, (self.heads, -1)).transpose(-2, -3)
        scores = x @ x.mT + x.square().sum(-1).mul(0.5).unsqueeze(-2)
        a = torch.softmax(self.beta * scores, dim=-1)
        a = a + a.mT
        force = x * a.sum(-1, keepdim=True) + a @ x
        return force.transpose(-2, -3).flatten(-2) @ self.W


class TransformerField(nn.Module):
    r"""A transformer block in Hamilton's form: attention moves one half of the state, a network the other.

    h = [p, q],  ṗ = −∇E(q) (attention over tokens),  q̇ = Vᵀ σ(V p + c) (each token by itself). Imaginary
    eigenvalues for any weights; they grow with the size of the state, so look at `stability` when choosing τ.
    u is not used.

    Args:
        width: last dimension of h, which is (…, tokens, width); even.
        heads: number of attention heads; divides width / 2.
        hidden: number of hidden neurons of the network; None: 2 * `width`.
        activation: σ, not decreasing.

    Example:
        >>> TransformerField(16, heads=2)(None, torch.randn(3, 10, 16)).shape
        torch.Size([3, 10, 16])
    """

    def __init__(
        self, width: int, heads: int = 1, hidden: int | None = None, activation: Activation = torch.tanh
    ) -> None:
        super().__init__()
        _require_even(width)
        self.attention = Attention(width // 2, heads)
        self.network = _Gradient(width // 2, hidden or 2 * width, activation)

    def forward(self, u: Any, h: Tensor) -> Tensor:
        """The rate of change of h."""
        p, q = h.chunk(2, dim=-1)
        return torch.cat([-self.attention(q), self.network(p)], dim=-1)


def _require_even(width: int) -> None:
    if width % 2:
        raise ConfigError(f"width={width} cannot be halved: this field needs a state of even width.")
