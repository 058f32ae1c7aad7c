"""Checks of rates: a rate is a number or a function of time; another value raises an error."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hamlearn.errors import ConfigError, SampleError, shown

Schedule = Callable[[float], float]
"""A function of time."""
Scaling = float | Schedule | Tensor | Mapping[str, float | Schedule | Tensor]
"""A number, a schedule or a tensor; or one of these for each pattern of parameter names."""


def positive_time(tau: object, error: type[ConfigError] | type[SampleError]) -> None:
    """Raise unless `tau` is a finite number above 0."""
    try:
        valid = math.isfinite(tau) and tau > 0  # type: ignore[arg-type,operator]
    except (TypeError, ValueError, OverflowError):
        valid = False
    if not valid:
        raise error(
            f"tau={shown(tau)} is not a time step: it must be a finite number above 0. "
            "Give the time since the previous sample, or None for the tau of Hyper"
        )


def as_number(value: Any) -> float:
    """`value` as a float; NaN if it is not a number. A text is not one, though Python would read it."""
    if isinstance(value, str | bytes | bytearray):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return math.nan


def nonnegative(name: str, value: object, t: float | None = None) -> float:
    """`value` as a float; raises unless it is a finite number of at least 0."""
    number = as_number(value)
    if not (math.isfinite(number) and number >= 0):
        when = "" if t is None else f" at t={t:g}"
        raise ConfigError(
            f"{name}={value!r}{when} must be a finite number of at least 0, or a function of time that returns one"
        )
    return number


def share(name: str, value: object) -> float:
    """`value` as a float; raises unless it is a number of at least 0 and below 1."""
    number = as_number(value)
    if not 0.0 <= number < 1.0:
        raise ConfigError(
            f"{name}={value!r} must be a number of at least 0 and below 1: what is kept at each step"
        )
    return number


def fraction(value: object) -> bool:
    """Whether `value` is a number from 0 to 1."""
    return 0.0 <= as_number(value) <= 1.0


def two_betas(betas: Any) -> tuple[Any, Any]:
    """β₁ and β₂ as they are given; raises where they are not two."""
    try:
        beta1, beta2 = betas
    except (TypeError, ValueError) as error:
        raise ConfigError(f"betas={betas!r} must be two numbers, as in (0.9, 0.999)") from error
    return beta1, beta2


def check_scaling(name: str, scaling: object) -> None:
    """Raise unless `scaling` can scale weight velocities."""
    for pattern in scaling if isinstance(scaling, Mapping) else ():
        if not isinstance(pattern, str):
            raise ConfigError(f"{name} maps {pattern!r}, which is not a name: give patterns over parameter names")
    for value in scaling.values() if isinstance(scaling, Mapping) else (scaling,):
        if isinstance(value, Tensor):
            if value.is_complex():
                raise ConfigError(f"{name} is a tensor of {value.dtype}: every entry must be a real number")
            wrong = value[~((value >= 0) & value.isfinite())]
            if wrong.numel():
                raise ConfigError(f"{name} holds {wrong[0].item():g}: every entry must be finite and at least 0")
        elif not callable(value):
            nonnegative(name, value)


def per_time(lr: float | Schedule, tau: float) -> float | Schedule:
    """A learning rate, or a schedule of it, for each unit of time: lr/τ."""
    if callable(lr):
        return _Scaled(lr, tau)
    nonnegative("lr", lr)
    return lr / tau


@dataclass(frozen=True)
class _Scaled:
    """A learning-rate schedule read as β: lr(t) / τ."""

    lr: Schedule
    tau: float

    def __call__(self, t: float) -> float:
        return self.lr(t) / self.tau
