"""Explicit integrators. Each sees only a derivative function, and returns the slope of one step.

x(t + τ) = x(t) + τ·slope (Eq. 6 for Euler). The learner adds it, in place where it can.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor

from hamlearn._base.scale import plus
from hamlearn._base.torch_private import foreach_add_, foreach_mul

Vector = list[Tensor]
Derivative = Callable[[float, Vector], Vector]
"""ẋ = derivative(t, x), over flat lists of tensors."""


class Integrator(ABC):
    """A rule that turns a derivative into one step.

    Attributes:
        order: Order of convergence.
        partitioned: Whether the first half of x (h and θ) and the second (z and ω) take turns, as in the leapfrog
            method. Its order then holds if the rate of each half depends on the other half and on time alone.

    Example:
        >>> class Explicit(Integrator):
        ...     order = 1
        ...     def slope(self, derivative, t, x0, tau):
        ...         return derivative(t, x0)
        >>> Explicit()
        Explicit()
    """

    order: ClassVar[int]
    partitioned: ClassVar[bool] = False

    @abstractmethod
    def slope(self, derivative: Derivative, t: float, x0: Vector, tau: float) -> Vector:
        """The mean velocity over the step from `t` to `t + tau`, so that x1 = x0 + τ·slope."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Euler(Integrator):
    """x1 = x0 + τ ẋ(t, x0). First order (Eq. 6).

    Example:
        >>> import torch
        >>> Euler().slope(lambda t, x: [-x[0]], 0.0, [torch.ones(1)], tau=0.1)
        [tensor([-1.])]
    """

    order = 1

    def slope(self, derivative: Derivative, t: float, x0: Vector, tau: float) -> Vector:
        """ẋ at the start of the step."""
        return derivative(t, x0)


class Heun(Integrator):
    """The mean of the slopes at both ends of an Euler step. Second order.

    Example:
        >>> import torch
        >>> Heun().slope(lambda t, x: [-x[0]], 0.0, [torch.ones(1)], tau=0.5)
        [tensor([-0.7500])]
    """

    order = 2

    def slope(self, derivative: Derivative, t: float, x0: Vector, tau: float) -> Vector:
        """(k1 + k2) / 2."""
        k1 = derivative(t, x0)
        k2 = derivative(t + tau, _ahead(x0, k1, tau))
        return _mean([k1, k2], [1 / 2, 1 / 2])


class RK4(Integrator):
    """The classical Runge-Kutta method. Fourth order.

    Example:
        >>> import torch
        >>> k = RK4().slope(lambda t, x: [-x[0]], 0.0, [torch.ones(1, dtype=torch.float64)], tau=0.1)
        >>> abs(1 + 0.1 * k[0].item() - 0.9048374180) < 1e-7
        True
    """

    order = 4

    def slope(self, derivative: Derivative, t: float, x0: Vector, tau: float) -> Vector:
        """(k1 + 2 k2 + 2 k3 + k4) / 6."""
        k1 = derivative(t, x0)
        k2 = derivative(t + tau / 2, _ahead(x0, k1, tau / 2))
        k3 = derivative(t + tau / 2, _ahead(x0, k2, tau / 2))
        k4 = derivative(t + tau, _ahead(x0, k3, tau))
        return _mean([k1, k2, k3, k4], [1 / 6, 1 / 3, 1 / 3, 1 / 6])


def _ahead(x0: Vector, slope: Vector, tau: float) -> Vector:
    return plus(x0, slope, tau)


def _mean(slopes: list[Vector], weights: list[float]) -> Vector:
    total = list(foreach_mul(slopes[0], weights[0]))
    for slope, weight in zip(slopes[1:], weights[1:], strict=True):
        foreach_add_(total, slope, alpha=weight)
    return total


INTEGRATORS: dict[str, type[Integrator]] = {"euler": Euler, "heun": Heun, "rk4": RK4}
"""Integrators by the name that a configuration file calls them."""
