"""What can go wrong with a reversible chain, by name."""

from hamlearn.errors import HamlearnError


class GridOverflowError(HamlearnError, OverflowError):
    """A state left the range of the fixed-point grid, where additions are no longer exact."""


class RebuildError(HamlearnError, RuntimeError):
    """The rebuilt states are not those of the forward run: the field gave other bits when recomputed."""
