"""Fields that oscillate by construction, which is what the midpoint rule needs.

The rule is stable at τ when every eigenvalue λ of ∂f/∂h is imaginary with τ|λ| < 2 (see `stability`). Two
structures give imaginary eigenvalues whatever the weights: D·W with D diagonal, not negative, and W
antisymmetric; and [[0, −A], [B, 0]] with A and B symmetric, not negative. The size of the eigenvalues is
then a matter of the weights and of τ; `limit` bounds it for the antisymmetric fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

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
        self,
        width: int,
        inputs: int | None = None,
        activation: Activation = torch.tanh,
        limit: float | None = None,
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
        a = functional.linear(h, self.weight(), self.b)
        return self.activation(a if self.V is None else a + functional.linear(u, self.V))


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
        self.A = nn.Parameter(
            torch.randn(channels, channels, *[kernel] * dims) / math.sqrt(2 * channels * kernel**dims)
        )
        self.b = nn.Parameter(torch.zeros(channels))
        self.activation, self.limit, self.padding = activation, limit, kernel // 2
        self.space = tuple(range(2, 2 + dims))
        self._conv = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[dims]

    def weight(self) -> Tensor:
        """K."""
        return _limited(self.A - self.A.transpose(0, 1).flip(self.space), self.limit)

    def forward(self, u: Any, h: Tensor) -> Tensor:
        """The rate of change of h."""
        return self.activation(self._conv(h, self.weight(), self.b, padding=self.padding))
