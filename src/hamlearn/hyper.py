"""Hyper-parameters: τ, η, β, φ and s, each a number or a schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from hamlearn.errors import ConfigError, SampleError

Schedule = Callable[[float], float]
"""A function of time."""
Beta = float | Schedule | Tensor | Mapping[str, float | Schedule | Tensor]


class Rates(NamedTuple):
    """The hyper-parameters at one instant, as plain numbers. β is kept by `hamlearn.velocity`."""

    tau: float
    eta: float
    eta_z: float
    phi: float
    s: int


@dataclass(frozen=True)
class Hyper:
    """The choices that turn four differential equations into a way of learning.

    ḣ = f_h; θ̇ = −β⊙ω; ż = −s ∂H/∂h − η_z z; ω̇ = −s ∂H/∂θ − η ω (eq:hesa to eq:hesd)

    `tau`, `eta`, `eta_z` and `phi` are numbers or functions of time. `beta` is also a tensor, or a mapping
    from glob patterns over parameter names to any of these; the first pattern that matches wins.

    Args:
        tau: Time step τ, for samples that carry none of their own.
        eta: Dissipation η of ω. It is a rate of forgetting, never a learning rate. τη = 1, the default, keeps no
            momentum; η = 0 forgets nothing, and the weights then swing around an optimum without coming to rest.
        beta: Positive scale β of the weight velocity. Weights whose β is 0 do not move.
        phi: Positive scale φ of the loss.
        s: Sign of the costate equations: −1 runs them forward in time, +1 is the original.
        eta_z: Dissipation of z; `None` takes `eta`.
        phi_first: φ until the first weight update that a loss has entered; `None` takes `phi`.

    Example:
        >>> hyper = Hyper(tau=0.5, eta=0.1, beta={"output.*": 0.01, "*": lambda t: 0.1 / (1 + t)})
        >>> hyper.at(t=0.0).phi
        1.0
    """

    tau: float | Schedule = 1.0
    eta: float | Schedule = 1.0
    beta: Beta = 0.01
    phi: float | Schedule = 1.0
    s: int = -1
    eta_z: float | Schedule | None = None
    phi_first: float | None = None

    def __post_init__(self) -> None:
        if self.s not in (-1, 1):
            raise ConfigError(f"s={self.s!r} must be -1 (forward in time) or +1 (the original equations)")
        if not callable(self.tau):
            positive_time(self.tau, ConfigError)
        for name in ("eta", "phi", "eta_z", "phi_first"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                nonnegative(name, value)
        for value in self.beta.values() if isinstance(self.beta, Mapping) else (self.beta,):
            check_beta(value)

    @classmethod
    def from_sgd(
        cls, lr: float | Schedule, momentum: float = 0.0, dampening: float = 0.0, tau: float = 1.0
    ) -> Hyper:
        """The hyper-parameters with which sequential order follows `torch.optim.SGD` (Appendix oob).

        lr = τβ, momentum μ = 1 − τη, dampening ρ = 1 − τφ. PyTorch's momentum buffer starts at the first
        gradient, undampened, hence `phi_first` = 1/τ; and without momentum PyTorch ignores dampening,
        hence φ = 1/τ throughout. Momentum lives in ω alone, so `eta_z` is 0.

        Example:
            >>> hyper = Hyper.from_sgd(lr=0.01, momentum=0.9, dampening=0.5, tau=0.5)
            >>> round(hyper.eta, 12), hyper.beta, hyper.phi, hyper.phi_first
            (0.2, 0.02, 1.0, 2.0)
        """
        positive_time(tau, ConfigError)
        for name, value in (("momentum", momentum), ("dampening", dampening)):
            if not 0.0 <= value <= 1.0:
                raise ConfigError(f"{name}={value!r} must lie between 0 and 1")
        if callable(lr):
            beta: float | Schedule = _Scaled(lr, tau)
        else:
            nonnegative("lr", lr)
            beta = lr / tau
        return cls(
            tau=tau,
            eta=(1.0 - momentum) / tau,
            beta=beta,
            phi=(1.0 - dampening) / tau if momentum else 1.0 / tau,
            eta_z=0.0,
            phi_first=1.0 / tau,
        )

    def at(self, t: float, tau: float | None = None, *, first: bool = False) -> Rates:
        """The rates at time `t`, for a step of length `tau` (`None`: this object's own)."""
        step = self._value("tau", t) if tau is None else tau
        positive_time(step, SampleError)
        eta = self._value("eta", t)
        eta_z = eta if self.eta_z is None else self._value("eta_z", t)
        phi = self.phi_first if first and self.phi_first is not None else self._value("phi", t)
        return Rates(float(step), eta, eta_z, phi, self.s)

    def constant(self) -> bool:
        """Whether no rate but β depends on time."""
        return not any(map(callable, (self.tau, self.eta, self.eta_z, self.phi)))

    def _value(self, name: str, t: float) -> float:
        rate = getattr(self, name)
        if not callable(rate):
            return float(rate)
        value = float(rate(t))
        return value if name == "tau" else nonnegative(name, value, t)


@dataclass(frozen=True)
class _Scaled:
    """A learning-rate schedule read as β: lr(t) / τ."""

    lr: Schedule
    tau: float

    def __call__(self, t: float) -> float:
        return self.lr(t) / self.tau


def positive_time(tau: object, error: type[ConfigError] | type[SampleError]) -> None:
    """Raise unless `tau` is a finite number above 0."""
    try:
        valid = math.isfinite(tau) and tau > 0  # type: ignore[arg-type,operator]
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise error(
            f"tau={tau!r} is not a time step: it must be a finite number above 0. "
            "Give the time since the previous sample, or None for the tau of Hyper"
        )


def nonnegative(name: str, value: object, t: float | None = None) -> float:
    """`value` as a float; raises unless it is a finite number of at least 0."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        when = "" if t is None else f" at t={t:g}"
        raise ConfigError(
            f"{name}={value!r}{when} must be a finite number of at least 0, or a function of time that returns one"
        )
    return number


def check_beta(value: object) -> None:
    """Raise unless `value` can scale a weight velocity."""
    if isinstance(value, Tensor):
        wrong = value[~((value >= 0) & value.isfinite())]
        if wrong.numel():
            raise ConfigError(f"beta holds {wrong[0].item():g}: every entry must be finite and at least 0")
    elif not callable(value):
        nonnegative("beta", value)
