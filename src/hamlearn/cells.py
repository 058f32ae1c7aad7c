"""State nets ready to use: stacks of recurrent cells, and stable nets for continuous time."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn

from hamlearn.errors import ConfigError


class Stack(nn.Module):
    """Recurrent cells on top of each other: each reads the hidden state of the one below, in the same step.

    Its state is a tuple with one entry per cell; a readout sees the hidden state of the topmost.

    Args:
        cells: `nn.RNNCell`, `nn.GRUCell` or `nn.LSTMCell`, from the bottom up.

    Example:
        >>> import torch, hamlearn as hl
        >>> stack = hl.cells.Stack(torch.nn.GRUCell(3, 8), torch.nn.LSTMCell(8, 5))
        >>> network = hl.Network.recurrent(stack, torch.nn.Linear(5, 1))
        >>> h = network.initial_state(torch.zeros(2, 3))
        >>> network.output_net(None, network.state_net(torch.zeros(2, 3), h)).shape
        torch.Size([2, 1])
    """

    def __init__(self, *cells: nn.RNNCellBase) -> None:
        super().__init__()
        if not cells or not all(isinstance(cell, nn.RNNCellBase) for cell in cells):
            raise ConfigError(f"Stack takes nn.RNNCell, nn.GRUCell or nn.LSTMCell modules, got {cells!r}")
        for below, above in itertools.pairwise(cells):
            if below.hidden_size != above.input_size:
                raise ConfigError(
                    f"a cell of hidden size {below.hidden_size} cannot feed one of input size {above.input_size}: "
                    "make them equal"
                )
        self.cells = nn.ModuleList(cells)

    def initial_state(self, u: Tensor) -> tuple[Any, ...]:
        """Zeros for every cell, sized by the batch of `u`."""
        return tuple(_zeros(cell, u) for cell in self.cells)

    def visible(self, h: tuple[Any, ...]) -> Tensor:
        """The hidden state of the topmost cell."""
        return _hidden(h[-1])

    def forward(self, u: Tensor, h: tuple[Any, ...]) -> tuple[Any, ...]:
        """The next state of every cell."""
        states = []
        for cell, state in zip(self.cells, h, strict=True):
            states.append(cell(u, state))
            u = _hidden(states[-1])
        return tuple(states)


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


class Diagonal(nn.Module):
    """Neurons that do not touch each other: ḣ = λ⊙h + B u, with Re λ < 0 by construction.

    Real neurons decay; complex ones also turn, and are kept as pairs of real numbers [Re h, Im h]. A step of
    Euler's method is stable while |1 + τλ| ≤ 1: for real λ while τ ≤ 2/|λ|.

    Args:
        inputs: Size of u.
        size: Number of neurons; a complex one counts once and has two numbers.
        rotating: Whether λ is complex.
        decay: Range from which the decay rates −Re λ are drawn at the start, evenly in their logarithm.
        frequency: Largest |Im λ| at the start.

    Example:
        >>> import torch
        >>> cell = Diagonal(2, 5, rotating=True)
        >>> cell(torch.zeros(3, 2), cell.initial_state(torch.zeros(3, 2))).shape
        torch.Size([3, 10])
    """

    def __init__(
        self,
        inputs: int,
        size: int,
        rotating: bool = False,
        decay: tuple[float, float] = (0.01, 1.0),
        frequency: float = math.pi / 2,
    ) -> None:
        super().__init__()
        low, high = decay
        if not 0 < low <= high:
            raise ConfigError(f"decay={decay!r} must be two positive rates, the smaller first")
        self.size = 2 * size if rotating else size
        self.inputs = nn.Linear(inputs, self.size, bias=False)
        self.log_decay = nn.Parameter(torch.empty(size).uniform_(math.log(low), math.log(high)))
        self.frequency = nn.Parameter(torch.empty(size).uniform_(0, frequency)) if rotating else None

    def initial_state(self, u: Tensor) -> Tensor:
        """Zeros, sized by the batch of `u`."""
        return self.inputs.weight.new_zeros(*u.shape[:-1], self.size)

    def forward(self, u: Tensor, h: Tensor) -> Tensor:
        """ḣ."""
        decay = torch.exp(self.log_decay)
        if self.frequency is None:
            return self.inputs(u) - decay * h
        real, imaginary = h.chunk(2, dim=-1)
        turned = [
            -decay * real - self.frequency * imaginary,
            self.frequency * real - decay * imaginary,
        ]
        return self.inputs(u) + torch.cat(turned, dim=-1)


def _hidden(state: Any) -> Tensor:
    return state[0] if isinstance(state, tuple) else state


def _zeros(cell: Any, u: Tensor) -> Any:
    h = next(cell.parameters()).new_zeros(*u.shape[:-1], cell.hidden_size)
    return (h, h) if isinstance(cell, nn.LSTMCell) else h
