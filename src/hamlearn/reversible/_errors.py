"""What can go wrong with a reversible chain, by name."""

from hamlearn.errors import HamlearnError


class GridOverflowError(HamlearnError, OverflowError):
    """A state left the range of the fixed-point grid, where additions are no longer exact.

    What to do: give a larger `bound`, with `state_dtype=torch.float64` if the grid is to stay as fine, or a field
    that does not grow.

    Example:
        >>> import torch
        >>> from hamlearn.reversible import Midpoint
        >>> Midpoint(lambda u, h: 0 * h + 100.0, steps=10, tau=1.0)(torch.zeros(3))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        hamlearn.reversible._errors.GridOverflowError: ...
    """


class RebuildError(HamlearnError, RuntimeError):
    """The rebuilt states are not those of the forward run: the field gave other bits when recomputed.

    What to do: change nothing that the field depends on between the forward and the backward run, use a field that
    computes the same bits every time, or `memory="stored"`.

    Example:
        >>> import torch
        >>> from hamlearn.reversible import Midpoint
        >>> gain = [0.1]
        >>> h = torch.ones(3, requires_grad=True)
        >>> loss = Midpoint(lambda u, h: gain[0] * h, steps=10, tau=0.1)(h).sum()
        >>> gain[0] = 0.2
        >>> loss.backward()  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        hamlearn.reversible._errors.RebuildError: ...
    """
