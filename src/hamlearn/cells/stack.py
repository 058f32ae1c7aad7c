"""Recurrent cells on top of each other."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from hamlearn.errors import ConfigError


class Stack(nn.Module):
    """Recurrent cells on top of each other: each reads what the one below shows, in the same step.

    Its state is a tuple with one entry per cell; a readout sees the topmost.

    Args:
        cells: From the bottom up: `nn.RNNCell`, `nn.GRUCell`, `nn.LSTMCell`, `ColumnarGRU`, `RTU`, `LRU`, or a
            cell of your own that returns the next state and has `input_size` and `hidden_size`, how many numbers
            it shows; and, unless its state is a tensor of that size that starts at 0, `initial_state(u)` and
            `visible(h)`.

    Example:
        >>> import torch, hamlearn as hl
        >>> stack = hl.cells.Stack(torch.nn.GRUCell(3, 8), torch.nn.LSTMCell(8, 5))
        >>> network = hl.Network.recurrent(stack, torch.nn.Linear(5, 1))
        >>> h = network.initial_state(torch.zeros(2, 3))
        >>> network.output_net(None, network.state_net(torch.zeros(2, 3), h)).shape
        torch.Size([2, 1])
        >>> columns = hl.cells.Stack(hl.cells.RTU(3, 8), hl.cells.ColumnarGRU(16, 5))
        >>> columns.hidden_size
        5
    """

    def __init__(self, *cells: nn.Module) -> None:
        super().__init__()
        if not cells or not all(_fits(cell) for cell in cells):
            raise ConfigError(
                "Stack takes nn.RNNCell, nn.GRUCell, nn.LSTMCell, or cells that return the next state and have an "
                f"input_size and a hidden_size, got {cells!r}"
            )
        for below, above in itertools.pairwise(cells):
            if below.hidden_size != above.input_size:
                raise ConfigError(
                    f"a cell of hidden size {below.hidden_size} cannot feed one of input size {above.input_size}: "
                    "make them equal"
                )
        self.cells = nn.ModuleList(cells)
        self.input_size, self.hidden_size = cells[0].input_size, cells[-1].hidden_size

    def initial_state(self, u: Tensor) -> tuple[Any, ...]:
        """The first state of every cell, sized by the batch of `u`."""
        states = []
        for cell in self.cells:
            states.append(_start(cell, u))
            u = _shown(cell, states[-1])
        return tuple(states)

    def layers(self) -> list[tuple[nn.Module, Callable[[Any], Tensor]]]:
        """The cells from the bottom up, each with the function from its state to what the next one reads."""
        return [(cell, functools.partial(_shown, cell)) for cell in self.cells]

    def visible(self, h: tuple[Any, ...]) -> Tensor:
        """What the topmost cell shows."""
        return _shown(self.cells[-1], h[-1])

    def forward(self, u: Tensor, h: tuple[Any, ...]) -> tuple[Any, ...]:
        """The next state of every cell."""
        states = []
        for cell, state in zip(self.cells, h, strict=True):
            states.append(cell(u, state))
            u = _shown(cell, states[-1])
        return tuple(states)


def _fits(cell: Any) -> bool:
    sizes = (getattr(cell, "input_size", None), getattr(cell, "hidden_size", None))
    # nn.RNN and its kin have both sizes too, but take whole sequences.
    return all(isinstance(size, int) for size in sizes) and not isinstance(cell, nn.RNNBase)


def _shown(cell: Any, state: Any) -> Tensor:
    if hasattr(cell, "visible"):
        return cell.visible(state)
    return state[0] if isinstance(state, tuple) else state


def _start(cell: Any, u: Tensor) -> Any:
    if hasattr(cell, "initial_state"):
        return cell.initial_state(u)
    h = next(cell.parameters()).new_zeros(*u.shape[:-1], cell.hidden_size)
    return (h, h) if isinstance(cell, nn.LSTMCell) else h
