"""State nets for continuous time in which every neuron sees all others, stable by construction."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hamlearn.errors import ConfigError


class Leaky(nn.Module):
    """Leaky neurons, each with a time constant of its own: ḣ = (−h + tanh(W h + V u + b)) / T.

    The state stays within (−1, 1) if it starts there and τ ≤ T. Learned time constants stay positive.

    Args:
        inputs: Size of u.
        size: Number of neurons.
        time_constant: T at the start.

    Example:
        >>> import torch, hamlearn as hl
        >>> network = hl.Network(hl.cells.Leaky(2, 8, time_constant=3.0))
        >>> network.initial_state(torch.zeros(4, 2)).shape
        torch.Size([4, 8])
    """

    def __init__(self, inputs: int, size: int, time_constant: float = 1.0) -> None:
        super().__init__()
        self.size = size
        self.inputs = nn.Linear(inputs, size)
        self.recurrent = nn.Linear(size, size, bias=False)
        self.log_time_constant = nn.Parameter(torch.full((size,), math.log(time_constant)))

    def initial_state(self, u: Tensor) -> Tensor:
        """Zeros, sized by the batch of `u`."""
        return self.recurrent.weight.new_zeros(*u.shape[:-1], self.size)

    def forward(self, u: Tensor, h: Tensor) -> Tensor:
        """ḣ."""
        return (torch.tanh(self.recurrent(h) + self.inputs(u)) - h) * torch.exp(-self.log_time_constant)


class Antisymmetric(nn.Module):
    """Neurons that turn without growing: ḣ = tanh((W − Wᵀ − γI) h + V u + b).

    The eigenvalues of W − Wᵀ are imaginary, so the linear part neither explodes nor vanishes. Euler's method adds
    energy to such a rotation, in proportion to τ; a small damping γ takes it away again.

    Args:
        inputs: Size of u.
        size: Number of neurons.
        gamma: Damping γ ≥ 0.

    Example:
        >>> import torch
        >>> cell = Antisymmetric(2, 6, gamma=0.1)
        >>> eigenvalues = torch.linalg.eigvals(cell.matrix())
        >>> bool((eigenvalues.real + 0.1).abs().max() < 1e-5)
        True
    """

    def __init__(self, inputs: int, size: int, gamma: float = 0.01) -> None:
        super().__init__()
        if gamma < 0:
            raise ConfigError(f"gamma={gamma!r} would pump energy into the state: give a damping of at least 0")
        self.size = size
        self.gamma = gamma
        self.inputs = nn.Linear(inputs, size)
        self.weight = nn.Parameter(torch.randn(size, size) / math.sqrt(2 * size))

    def matrix(self) -> Tensor:
        """W − Wᵀ − γI."""
        eye = torch.eye(self.size, dtype=self.weight.dtype, device=self.weight.device)
        return self.weight - self.weight.T - self.gamma * eye

    def initial_state(self, u: Tensor) -> Tensor:
        """Zeros, sized by the batch of `u`."""
        return self.weight.new_zeros(*u.shape[:-1], self.size)

    def forward(self, u: Tensor, h: Tensor) -> Tensor:
        """ḣ."""
        return torch.tanh(h @ self.matrix().T + self.inputs(u))
