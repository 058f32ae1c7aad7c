"""The running cost R(u, h, dh, y, θ, t): the part of H beside φL and ⟨z, f_h⟩, which needs no target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from hamlearn._base import trees
from hamlearn.errors import ConfigError
from hamlearn.network import as_time

RunningCost = Callable[..., Tensor]
"""R(u, h, dh, y, theta, t): input, state, its rate, output, weights by name, and time."""


def running_cost(
    system: Any,
    u: Any,
    h: list[Tensor],
    dh: list[Tensor],
    spec: trees.Spec,
    y: Any,
    theta: Sequence[Tensor],
    t: Any,
) -> Tensor | None:
    """R at one instant; `None` if the system has none.

    Args:
        system: The system, which has the function and the names of the weights.
        u: The input.
        h: The state, flat; empty where there is no state net, and the function is given `None`.
        dh: Its rate, likewise.
        spec: Structure of both.
        y: The output.
        theta: The weights.
        t: Time.

    Raises:
        ConfigError: If it is not one number.
    """
    if system.running_cost is None:
        return None
    state, rate = (trees.unflatten(x, spec) if x else None for x in (h, dh))
    return one_number(system.running_cost(u, state, rate, y, system.by_name(list(theta)), as_time(t)))


def one_number(R: Any) -> Tensor:
    """R itself; raises `ConfigError` if it is not one number."""
    if not isinstance(R, Tensor) or R.dim() or not R.is_floating_point():
        raise ConfigError(
            f"running_cost returned {trees.describe(R)}, not one floating-point number: reduce it, for example by "
            "its sum"
        )
    return R


def added(one: Tensor | None, R: Tensor | None) -> Tensor | None:
    """A part of H and R, without a graph; `None` stands for 0."""
    if R is None:
        return one
    return R.detach() if one is None else one + R.detach()
