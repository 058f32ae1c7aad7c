"""Credit: what the costate z of the neurons carries from one step to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Credit:
    """Base of the ways in which z lives on between steps.

    Attributes:
        carries: Whether z enters a step with what the previous step left in it.
    """

    carries: ClassVar[bool]


@dataclass(frozen=True)
class Forward(Credit):
    """z accumulates forward in time, as the equations say (eq:hesc).

    Example:
        >>> Forward().carries
        True
    """

    carries = True


@dataclass(frozen=True)
class Cleared(Credit):
    """z is 0 at the start of each step, so that credit reaches the present step alone.

    In sequential order, with the state of a feed-forward net cleared too (`reset_h="sample"`), this is exactly
    BackPropagation (eq:figliobottom).

    Example:
        >>> Cleared().carries
        False
    """

    carries = False
