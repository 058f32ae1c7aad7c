"""What targets came with each value of a column, counted on line: inputs for columns whose values are names.

A network needs many rows to learn what each of 300 airports means. How often each class came with an airport so
far, or what its targets were on average, says so at once. A row is encoded by the counts from before its target.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from hamlearn.loops.bound import Tensors

CELLS = 256
"""Values, or ranges of them, of a column that are counted apart; two more are for others and for missing."""
RANGES = 32
"""Ranges of a column whose values seldom come again."""
MOST_COLUMNS = 32
"""Tables of more columns at first are learned without counts, which would make them slow."""
KEEP = 0.995
"""What the count of a value keeps when it comes again."""
SLOW = 0.998
"""What the count of all targets keeps from row to row."""
TRUST = 1.0
"""So many targets of a value count as much as what is usual."""
WIDEST = 3.0


class ValueCounts(ABC):
    """Counts by column and value; `ClassCounts` and `NumberCounts` say of what.

    Args:
        width: Numbers that are counted for each value.
        numbers: Numeric columns.
        categories: Columns of categories.
        used: Whether anything is counted.

    Attributes:
        knots: Where the ranges of each numeric column begin.
        tables: The counts of numeric columns and of categories, by column and value.
        usual: The counts of all targets.
    """

    dtype: ClassVar[torch.dtype]

    def __init__(self, width: int, numbers: int, categories: int, used: bool) -> None:
        self.used = range((2 if categories else 1) if used else 0)
        self.knots = torch.full((numbers, CELLS), torch.inf, dtype=torch.float64)
        self.tables = [torch.zeros(count, CELLS + 2, width, dtype=self.dtype) for count in (numbers, categories)]
        self.usual = torch.zeros(width, dtype=self.dtype)

    @property
    def carry(self) -> list[Tensor]:
        """What moves with each row."""
        return [*self.tables, self.usual]

    def step(
        self, carry: Tensors, x: Tensor, known: Tensor, code: Tensor, knots: Tensor, target: Tensor | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The carry with this row and its target, and the inputs, from before.

        Args:
            carry: Tables and usual counts.
            x: The numbers of a row.
            known: Whether each of them is known.
            code: The codes of categories, NaN if missing.
            knots: As held.
            target: The target; without one, nothing is counted.
        """
        *tables, usual = carry
        cells = [
            torch.where(known, (x[:, None] >= knots).sum(-1), CELLS + 1),
            torch.where(code >= 0, code, float(CELLS + 1)).long(),
        ]
        places = [(torch.arange(len(cell)), cell) for cell in cells]
        counted = [tables[kind][places[kind]] for kind in self.used]
        inputs = [self.inputs(found, usual).float().reshape(-1) for found in counted]
        if target is not None:
            one = self.counted(target)
            for kind in self.used:
                tables[kind] = tables[kind].index_put(places[kind], KEEP * counted[kind] + one)
            usual = SLOW * usual + one
        return [*tables, usual], inputs

    def refit(self, column: int, quantiles: np.ndarray) -> None:
        """New ranges of a numeric column; each begins with what the old one knew of it.

        Args:
            column: Which column.
            quantiles: Of its latest values, as many as `ranges` says.
        """
        old, table = self.knots[column].numpy(), self.tables[0][column].numpy()
        # A range is the one from its knot on; the first one is below all knots.
        at = np.searchsorted(old, [-np.inf, *quantiles], side="right")
        moved = table[at] / np.bincount(at)[at, None]
        table[: CELLS + 1] = 0.0
        table[: len(at)] = moved
        old[:] = np.inf
        old[: len(quantiles)] = quantiles

    @abstractmethod
    def counted(self, y: Tensor) -> Tensor:
        """What a target adds."""

    @abstractmethod
    def inputs(self, counted: Tensor, usual: Tensor) -> Tensor:
        """The inputs for the values of a row, from their counts and those of all targets."""


def ranges(values: np.ndarray) -> int:
    """How many ranges a column has: one for each value if most of them come again."""
    again = len(np.unique(values)) <= len(values) / 2
    return CELLS - 1 if again else RANGES


class ClassCounts(ValueCounts):
    """How often each class came with a value."""

    dtype = torch.float32

    def counted(self, y: Tensor) -> Tensor:
        """One of its class."""
        return y

    def inputs(self, counted: Tensor, usual: Tensor) -> Tensor:
        """How much more likely each class is than usually, as logarithms; 0 for those not seen."""
        prior = usual / usual.sum().clamp(min=1.0)
        p = (counted + TRUST * prior) / (counted.sum(-1, keepdim=True) + TRUST)
        ratio = (p / prior.clamp(min=1e-6)).clamp(min=0.01).log()
        return torch.where(prior > 0, ratio, torch.zeros_like(ratio)).clamp(-WIDEST, WIDEST)


class NumberCounts(ValueCounts):
    """The number, the sum and the squares of the targets that came with a value."""

    dtype = torch.float64

    def counted(self, y: Tensor) -> Tensor:
        """One, the target and its square."""
        return torch.cat([torch.ones_like(y), y, y.square()])

    def inputs(self, counted: Tensor, usual: Tensor) -> Tensor:
        """How far the targets of a value are from the usual one on average, in deviations."""
        number, mean, square = usual.unbind()
        number = number.clamp(min=1.0)
        mean, square = mean / number, square / number
        deviation = (square - mean.square()).clamp(min=1e-12 * square + 1e-30).sqrt()
        away = (counted[:, 1] - counted[:, 0] * mean) / (counted[:, 0] + TRUST)
        return (away / deviation).clamp(-WIDEST, WIDEST)
