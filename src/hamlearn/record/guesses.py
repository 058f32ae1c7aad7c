"""How whoever knows nothing but the mean of the targets would have done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

LARGEST = 4096
"""Numbers in a target that is followed; larger ones take too long."""


class MeanGuess:
    """The mean squared error, block by block, of guessing the mean of all targets so far.

    Batches have their first axis as one; targets of less than two axes are taken entry by entry.

    Example:
        >>> guess = MeanGuess()
        >>> for number in (1.0, 3.0, 1.0, 3.0):
        ...     guess.take(torch.tensor([number]))
        >>> guess.block()
        1.0
    """

    def __init__(self) -> None:
        self._waiting: list[Tensor] = []
        self._count, self._block = 0, 0
        self._sum = self._block_sum = self._block_squares = torch.zeros(0, dtype=torch.float64)

    def take(self, target: Any) -> None:
        """Take in one target; what is no tensor of floating-point numbers, or a large one, says nothing."""
        if isinstance(target, Tensor) and target.is_floating_point() and 0 < target.numel() <= LARGEST:
            self._waiting.append(target.detach().clone())

    def block(self) -> float | None:
        """What the guess scored since the last call; `None` where nothing was taken in since then."""
        self._settle()
        if not self._block:
            return None
        mean, known = self._block_sum / self._block, self._sum / self._count
        found = (self._block_squares / self._block - 2 * known * mean + known.square()).mean()
        self._block = 0
        return max(float(found), 0.0)

    def state_dict(self) -> dict[str, Any]:
        """What it has seen, JSON-able."""
        self._settle()
        sums = {"sum": self._sum, "block_sum": self._block_sum, "block_squares": self._block_squares}
        numbers = {"count": self._count, "block": self._block}
        return numbers | {name: tensor.tolist() for name, tensor in sums.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what it had seen."""
        self._waiting = []
        self._count, self._block = state["count"], state["block"]
        self._sum, self._block_sum, self._block_squares = (
            torch.tensor(state[name], dtype=torch.float64) for name in ("sum", "block_sum", "block_squares")
        )

    def _settle(self) -> None:
        waiting, self._waiting = self._waiting, []
        if len({target.shape for target in waiting}) == 1:
            rows = torch.stack(waiting).cpu().double()
            together = rows.dim() > 2
            self._add(len(waiting), *((x.mean(1) if together else x).sum(0) for x in (rows, rows.square())))
            return
        for target in waiting:
            row = target.cpu().double()
            self._add(1, *((x.mean(0) if row.dim() > 1 else x) for x in (row, row.square())))

    def _add(self, count: int, total: Tensor, squares: Tensor) -> None:
        total, squares = total.flatten(), squares.flatten()
        if len(total) != len(self._sum):
            self._count, self._block, self._sum = 0, 0, torch.zeros_like(total)
        if not self._block:
            self._block_sum, self._block_squares = torch.zeros_like(total), torch.zeros_like(total)
        self._count, self._block = self._count + count, self._block + count
        self._sum = self._sum + total
        self._block_sum, self._block_squares = self._block_sum + total, self._block_squares + squares
