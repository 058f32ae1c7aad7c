"""The rates of one step as plain numbers, what a gap in time makes of them, and which of them are too high."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import numpy as np

from hamlearn.errors import ConfigError

_ROUNDING = 1e-12
"""How far from 1 a product τη may be by rounding alone."""


class Rates(NamedTuple):
    """The hyper-parameters of one step, as plain numbers. β is kept by `hamlearn.rules.velocity`.

    Attributes:
        tau: Length τ of the step, along which the state flows.
        stride: What the rates of costates and weights are multiplied by: τ on the continuous clock, the nominal
            step τ0 on the clock of events.
        eta: Dissipation of ω, such that `1 − stride·eta` is what is left of it.
        eta_z: Dissipation of z, likewise.
        phi: Scale of the loss.
        s: Sign of the costate equations.
        t: Time before the step, where nets or a running cost read it; else 0.
    """

    tau: float
    stride: float
    eta: float
    eta_z: float
    phi: float
    s: int
    t: float = 0.0

    @property
    def decay(self) -> float:
        """What a step leaves of ω: 1 − τη, with the nominal τ on the event clock."""
        return 1 - self.stride * self.eta


def over_gaps(eta: float, nominal: float) -> Callable[[float], float]:
    """From a gap τ to the η' with which one nominal step dissipates as the gap does: 1 − τ0η' = (1 − τ0η)^(τ/τ0).

    Example:
        >>> round(1 - 0.5 * over_gaps(0.2, nominal=0.5)(1.0), 12)
        0.81
    """
    power = _power(eta, nominal)
    if power is None:
        return lambda tau: 1.0 / nominal
    return lambda tau: -math.expm1(tau / nominal * power) / nominal


def over_many_gaps(eta: float, nominal: float, taus: np.ndarray) -> np.ndarray:
    """The same for many gaps, bit-for-bit.

    Example:
        >>> gaps = np.array([0.3, 1.0, 2.5])
        >>> over_many_gaps(0.2, 0.5, gaps).tolist() == [over_gaps(0.2, 0.5)(tau) for tau in gaps]
        True
    """
    power = _power(eta, nominal)
    if power is None:
        return np.full(len(taus), 1.0 / nominal)
    # The library's own function, number by number: NumPy's may differ in the last bit.
    return -np.array([math.expm1(x) for x in (taus / nominal * power).tolist()]) / nominal


def _power(eta: float, nominal: float) -> float | None:
    """The logarithm of what a nominal step leaves; `None` where it leaves nothing."""
    share = nominal * eta
    # A share of 1 but for rounding loses everything over any gap, be it as short as it may.
    return None if share > 1 - _ROUNDING else math.log1p(-share)


def check_share(name: str, eta: float, tau: float, t: float | None = None) -> None:
    """Raise where a costate would lose more than all of itself over one nominal step."""
    if tau * eta > 1 + _ROUNDING:
        when = "" if t is None else f" at t={t:g}"
        raise ConfigError(
            f"{name}={eta:g} times tau={tau:g}{when} is {tau * eta:g}: over one nominal step a costate would lose "
            f"more than all of itself. Lower {name} to at most 1/tau = {1 / tau:g}, or use clock='continuous', "
            "which takes the equations literally"
        )


class Overshoot:
    """Tells once where a step of the continuous clock is too long for its dissipation.

    Args:
        clock: As in `Hyper`; on the clock of events no step is too long.
    """

    def __init__(self, clock: Literal["events", "continuous"]) -> None:
        self._told = clock == "events"

    def look(self, steps: Iterable[Rates]) -> None:
        """Warn if a costate loses more than all of itself in one of these steps, and nothing was said before."""
        if self._told:
            return
        for rates in steps:
            name = "eta" if rates.eta >= rates.eta_z else "eta_z"
            eta = max(rates.eta, rates.eta_z)
            if rates.stride * eta > 1 + _ROUNDING:
                self._told = True
                warnings.warn(
                    f"{name}={eta:g} times tau={rates.tau:g} is {rates.stride * eta:g}: in this step a costate "
                    "loses more than all of itself, so that it changes its sign, and grows where the product is "
                    "above 2. Use Hyper(clock='events'), count time in a longer unit, limit the gaps of the "
                    f"stream, or lower {name}. This is said once",
                    RuntimeWarning,
                    stacklevel=4,
                )
                return
