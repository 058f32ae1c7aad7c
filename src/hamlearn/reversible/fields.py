"""Fields that oscillate by construction, which is what the midpoint rule needs.

The rule is stable at τ when every eigenvalue λ of ∂f/∂h is imaginary with τ|λ| < 2 (see `stability`). Two
structures give imaginary eigenvalues whatever the weights: D·W with D diagonal, not negative, and W
antisymmetric; and [[0, −A], [B, 0]] with A and B symmetric, not negative. The size of the eigenvalues is then a
matter of the weights and of τ; `limit` bounds it for the antisymmetric fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hamlearn.errors import ConfigError

Activation = Callable[[Tensor], Tensor]


def _limited(W: Tensor, limit: float | None) -> Tensor:
    """W scaled down, if need be, to a spectral norm of at most `limit`.

    The largest sum of magnitudes over what feeds one output bounds the norm of an antisymmetric operator.
    """
    if limit is None:
        return W
    return W * (limit / W.abs().flatten(1).sum(1).max().clamp_min(1e-30)).clamp_max(1.0)


class AntisymmetricLinear(nn.Module):
    r"""f(u, h) = σ(W h + V u + b) with W = A − Aᵀ: a dense field with imaginary eigenvalues.

    Args:
        width: number of neurons, the last dimension of h.
        inputs: size of u, the last dimension; None: u is not used.
        activation: σ, not decreasing; its slope is at most 1 for tanh, relu and the like.
        limit: bound on |λ|, met by scaling W; `2 / tau` makes the rule stable at `tau`. None: no bound.

    Example:
        >>> field = AntisymmetricLinear(4)
        >>> bool((field.weight() == -field.weight().T).all())
        True
    """

    def __init__(
        self, width: int, inputs: int | None = None, activation: Activation = torch.tanh, limit: float | None = None
    ) -> None:
        super().__init__()
        self.A = nn.Parameter(torch.randn(width, width) / math.sqrt(2 * width))
        self.b = nn.Parameter(torch.zeros(width))
        self.V = nn.Parameter(torch.randn(width, inputs) / math.sqrt(inputs)) if inputs else None
        self.activation, self.limit = activation, limit

    def weight(self) -> Tensor:
        """W."""
        return _limited(self.A - self.A.T, self.limit)

    def forward(self, u: Any, h: Tensor) -> Tensor:
        """The rate of change of h."""
        a = F.linear(h, self.weight(), self.b)
        return self.activation(a if self.V is None else a + F.linear(u, self.V))


class AntisymmetricConv(nn.Module):
    r"""f(u, h) = σ(K ∗ h + b), K antisymmetric as an operator: K[o, i, d] = −K[i, o, −d].

    Zero padding keeps the size of h and the antisymmetry. u is not used.

    Args:
        channels: of h, which is (batch, channels, …) with `dims` dimensions of space.
        kernel: size of the kernel in each dimension, odd.
        dims: 1, 2 or 3.
        activation: σ, not decreasing.
        limit: bound on |λ|, as in `AntisymmetricLinear`.

    Example:
        >>> field = AntisymmetricConv(4, kernel=3)
        >>> field(None, torch.randn(2, 4, 8, 8)).shape
        torch.Size([2, 4, 8, 8])
    """

    def __init__(
        self,
        channels: int,
        kernel: int = 3,
        dims: int = 2,
        activation: Activation = torch.tanh,
        limit: float | None = None,
    ) -> None:
        super().__init__()
        if kernel % 2 == 0:
            raise ConfigError(f"kernel={kernel} has no centre: an antisymmetric convolution needs an odd size.")
        if dims not in (1, 2, 3):
            raise ConfigError(f"dims={dims}: convolutions have 1, 2 or 3 dimensions of space.")
        self.A = nn.Parameter(torch.randn(channels, channels, *[kernel] * dims) / math.sqrt(2 * channels * kernel**dims))
        self.b = nn.Parameter(torch.zeros(channels))
        self.activation, self.limit, self.padding = activation, limit, kernel // 2
        self.space = tuple(range(2, 2 + dims))
        self._conv = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[dims]

    def weight(self) -> Tensor:
        """K."""
        return _limited(self.A - self.A.transpose(0, 1).flip(self.space), self.limit)

    def forward(self, u: Any, h: Tensor) -> Tensor:
        """The rate of change of h."""
        return self.activation(self._conv(h, self.weight(), self.b, padding=self.padding))


class _Gradient(nn.Module):
    """x ↦ Wᵀ σ(W x + b): the gradient of a convex function, as σ does not decrease."""

    def __init__(self, width: int, hidden: int, activation: Activation) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.randn(hidden, width) / math.sqrt(max(width, hidden)))
        self.b = nn.Parameter(torch.zeros(hidden))
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(F.linear(x, self.W, self.b)) @ self.W


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
    a_ij = softmax_j(β ⟨x_i, x_j⟩ + β/2 |x_j|²), token i receives Σ_j (a_ij + a_ji)(x_i + x_j): what it attends to, and
    what attends to it. Convex, as a log-sum-exp of convex functions is. There is no causal form: the second term
    looks back from the future.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ConfigError(f"heads={heads} does not divide the {width} neurons of half the state.")
        self.W = nn.Parameter(torch.randn(width, width) / (2 * math.sqrt(width)))
        self.heads, self.beta = heads, (width // heads) ** -0.5

    def forward(self, q: Tensor) -> Tensor:
        """The gradient of E at the tokens q, of shape (…, tokens, width)."""
        x = F.linear(q, self.W).unflatten(-1, (self.heads, -1)).transpose(-2, -3)
        scores = x @ x.mT + x.square().sum(-1).mul(0.5).unsqueeze(-2)
        a = torch.softmax(self.beta * scores, dim=-1)
        a = a + a.mT
        force = x * a.sum(-1, keepdim=True) + a @ x
        return force.transpose(-2, -3).flatten(-2) @ self.W


class TransformerField(nn.Module):
    r"""A transformer block in Hamilton's form: attention moves one half of the state, a network the other.

    h = [p, q],  ṗ = −∇E(q) (attention over tokens),  q̇ = Vᵀ σ(V p + c) (each token by itself). Imaginary eigenvalues
    for any weights; they grow with the size of the state, so look at `stability` when choosing τ. u is not used.

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
