"""Rates as time goes on, found anew only where they can have changed."""

from __future__ import annotations

from hamlearn.hyper import Hyper
from hamlearn.rates import Overshoot, Rates


class UsualRates:
    """The rates of one step after the other; where nothing depends on time, the last ones are kept.

    Args:
        hyper: The hyper-parameters.

    Attributes:
        constant: Whether no rate but β depends on time.
        overshoot: Warns where a step is too long for its dissipation.

    Example:
        >>> usual = UsualRates(Hyper(tau=0.5))
        >>> usual.at(0.0, None, first=False) is usual.at(0.5, None, first=False)
        True
    """

    def __init__(self, hyper: Hyper) -> None:
        self.hyper = hyper
        self.constant = hyper.constant()
        self.overshoot = Overshoot(hyper.clock)
        self._kept: tuple[float | None, bool, Rates] | None = None

    def at(self, t: float, tau: float | None, *, first: bool) -> Rates:
        """The rates of a step at time `t`, `tau` after the one before; `first`: nothing has been learned yet."""
        kept = self._kept
        if kept is not None and kept[0] is tau and kept[1] == first and self.constant:
            return kept[2]
        rates = self.hyper.at(t, tau, first=first)
        self.overshoot.look([rates])
        self._kept = tau, first, rates
        return rates
