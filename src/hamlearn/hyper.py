"""Hyper-parameters: τ, η, β, φ and s, each a number or a schedule."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from hamlearn._base.numbers import (
    Scaling,
    check_scaling,
    fraction,
    nonnegative,
    per_time,
    positive_time,
    share,
    two_betas,
)
from hamlearn._base.numbers import Schedule as Schedule
from hamlearn.adaptive import Adaptive
from hamlearn.errors import ConfigError, SampleError
from hamlearn.rates import Rates, check_share, over_gaps, over_many_gaps

Beta = Scaling | Adaptive


def _knows_optimizers(kind: type[Hyper]) -> type[Hyper]:
    """Let arguments of optimizers raise an error that says which constructor takes them."""
    made = kind.__init__

    @functools.wraps(made)
    def init(self: Hyper, *args: Any, **given: Any) -> None:
        of_sgd = [name for name in ("lr", "momentum", "dampening") if name in given]
        if of_sgd:
            asked = ", ".join(f"{name}={given[name]!r}" for name in of_sgd)
            raise ConfigError(
                f"Hyper has no {of_sgd[0]!r}: use Hyper.from_sgd({asked}), or from_adam, from_adamw, from_rmsprop"
            )
        made(self, *args, **given)

    kind.__init__ = init  # type: ignore[method-assign]
    return kind


@_knows_optimizers
@dataclass(frozen=True)
class Hyper:
    """Hyper-parameters of a learner: time step, dissipation, scales of weights and loss.

    ḣ = f_h; θ̇ = −β⊙ω; ż = −s ∂H/∂h − η_z z; ω̇ = −s ∂H/∂θ − η ω (Eq. E⋆1 to E⋆4)

    `tau`, `eta`, `eta_z` and `phi` are numbers or functions of time. `beta` is also a tensor, or a mapping
    from glob patterns over parameter names to any of these; the first pattern that matches wins. An `Adaptive`
    β follows the squares of the gradients, as in `from_adam`.

    Args:
        tau: Time step τ, for samples that carry none of their own.
        eta: Dissipation η of ω. It is a rate of forgetting, never a learning rate. τη = 1, the default, keeps no
            momentum; η = 0 forgets nothing, and the weights then swing around an optimum without coming to rest.
        beta: Positive scale β of the weight velocity. Weights whose β is 0 do not move.
        phi: Positive scale φ of the loss.
        s: Sign of the costate equations: −1 runs them forward in time, +1 is the original.
        eta_z: Dissipation of z; `None` takes `eta`.
        phi_first: φ until the first weight update that a loss has entered; `None` takes `phi`.
        clock: What happens where a sample's own τ is not the nominal step τ0 = `tau`. `"events"`: each sample
            counts once, with gain τ0φ, and moves the weights by τ0β⊙ω; costates keep (1 − τ0η)^(τ/τ0) of
            themselves over the gap; the state flows by the true τ. Learning then depends neither on the unit of
            time nor on gaps, and needs τ0η ≤ 1. `"continuous"`: the equations above with τ everywhere. At τ = τ0
            both are the same step, bit-for-bit.
        weight_decay: λ of the penalty ½λ|θ|² that is added to the loss: H = φ·(L + ½λ|θ|²) + ⟨z, f_h⟩. It enters
            with a loss, and is absent where a sample has no target.

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
    clock: Literal["events", "continuous"] = "events"
    weight_decay: float = 0.0
    # The momentum that η was made of, exactly: 1 − τη is rounded.
    kept: float | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.clock not in ("events", "continuous"):
            raise ConfigError(f"clock={self.clock!r} must be 'events' or 'continuous'")
        if self.s not in (-1, 1):
            raise ConfigError(f"s={self.s!r} must be -1 (forward in time) or +1 (the original equations)")
        if not callable(self.tau):
            positive_time(self.tau, ConfigError)
        for name in ("eta", "phi", "eta_z", "phi_first"):
            value = getattr(self, name)
            left_out = value is None and name in ("eta_z", "phi_first")
            if not left_out and not (callable(value) and name != "phi_first"):
                nonnegative(name, value)
        nonnegative("weight_decay", self.weight_decay)
        if isinstance(self.beta, Mapping):
            if any(isinstance(value, Adaptive) for value in self.beta.values()):
                raise ConfigError(
                    "beta maps names to hl.Adaptive: one adapts for all weights. Give "
                    "beta=hl.Adaptive(scale={...}), with the scale of each name, 0 for weights that stay"
                )
            # A copy: what is done to the caller's mapping later is done to no learner.
            object.__setattr__(self, "beta", dict(self.beta))
        if not isinstance(self.beta, Adaptive):
            check_scaling("beta", self.beta)
        if self.clock == "events" and not callable(self.tau):
            for name in ("eta", "eta_z"):
                value = getattr(self, name)
                if value is not None and not callable(value):
                    check_share(name, float(value), float(self.tau))

    @classmethod
    def from_sgd(
        cls,
        lr: float | Schedule,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        tau: float = 1.0,
    ) -> Hyper:
        """The hyper-parameters with which sequential order follows `torch.optim.SGD` (Appendix D of the paper).

        lr = τβ, momentum μ = 1 − τη, dampening ρ = 1 − τφ. PyTorch's momentum buffer starts at the first
        gradient, undampened, hence `phi_first` = 1/τ; and without momentum PyTorch ignores dampening,
        hence φ = 1/τ throughout. Momentum lives in ω alone, so `eta_z` is 0. Nesterov's step is not of this form:
        it moves the weights by a gradient beside ω.

        Args:
            lr: Learning rate, a number or a function of time.
            momentum: μ, between 0 and 1.
            dampening: ρ, between 0 and 1.
            weight_decay: λ of ½λ|θ|², part of H as in `Hyper`.
            tau: Time step τ.

        Example:
            >>> hyper = Hyper.from_sgd(lr=0.01, momentum=0.9, dampening=0.5, tau=0.5)
            >>> round(hyper.eta, 12), hyper.beta, hyper.phi, hyper.phi_first
            (0.2, 0.02, 1.0, 2.0)
        """
        positive_time(tau, ConfigError)
        for name, value in (("momentum", momentum), ("dampening", dampening)):
            if not fraction(value):
                raise ConfigError(f"{name}={value!r} must be a number between 0 and 1")
        hyper = cls(
            tau=tau,
            eta=(1.0 - momentum) / tau,
            beta=per_time(lr, tau),
            phi=(1.0 - dampening) / tau if momentum else 1.0 / tau,
            eta_z=0.0,
            phi_first=1.0 / tau,
            weight_decay=weight_decay,
        )
        if hyper.at(0.0).decay != momentum:
            object.__setattr__(hyper, "kept", float(momentum))
        return hyper

    @classmethod
    def from_adam(
        cls,
        lr: float | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        tau: float = 1.0,
    ) -> Hyper:
        """The hyper-parameters with which sequential order follows `torch.optim.Adam`.

        ω is the first moment, so that τη = τφ = 1 − β₁, and β follows the second one, v: it is
        (lr/τ)/(1 − β₁^k)/(√(v/(1 − β₂^k)) + ε) at the k-th update that a loss enters. Adam's options `amsgrad` and
        `maximize`, and Nesterov's step, are not of this form.

        Args:
            lr: Learning rate, a number or a function of time.
            betas: β₁ and β₂: how much of the first and of the second moment is kept at each update.
            eps: ε, above 0.
            weight_decay: λ of ½λ|θ|², part of H as in `Hyper`.
            tau: Time step τ.

        Example:
            >>> hyper = Hyper.from_adam(lr=0.01, tau=0.5)
            >>> round(hyper.eta, 12), hyper.phi == hyper.eta, hyper.beta.scale, hyper.beta.keep
            (0.2, True, 0.02, 0.999)
        """
        return cls._adam(lr, betas, eps, weight_decay, tau, shrink=0.0)

    @classmethod
    def from_adamw(
        cls,
        lr: float | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        tau: float = 1.0,
    ) -> Hyper:
        """The hyper-parameters with which sequential order follows `torch.optim.AdamW`.

        As `from_adam`, but the weights dissipate by themselves, whatever the loss says:
        θ̇ = −β⊙ω − (lr/τ)·weight_decay·θ.

        Args:
            lr: Learning rate, a number or a function of time.
            betas: β₁ and β₂: how much of the first and of the second moment is kept at each update.
            eps: ε, above 0.
            weight_decay: How fast the weights dissipate, per unit of the learning rate.
            tau: Time step τ.

        Example:
            >>> hyper = Hyper.from_adamw(lr=0.01, weight_decay=0.1)
            >>> hyper.weight_decay, hyper.beta.shrink
            (0.0, 0.1)
        """
        return cls._adam(lr, betas, eps, 0.0, tau, shrink=weight_decay)

    @classmethod
    def _adam(
        cls,
        lr: float | Schedule,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        tau: float,
        shrink: float,
    ) -> Hyper:
        positive_time(tau, ConfigError)
        beta1, beta2 = two_betas(betas)
        beta1, beta2 = share("betas[0]", beta1), share("betas[1]", beta2)
        nonnegative("weight_decay", shrink)
        beta = Adaptive(per_time(lr, tau), keep=beta2, eps=eps, momentum=beta1, shrink=shrink)
        rate = (1.0 - beta1) / tau
        return cls(tau=tau, eta=rate, beta=beta, phi=rate, eta_z=0.0, weight_decay=weight_decay)

    @classmethod
    def from_rmsprop(
        cls,
        lr: float | Schedule = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        tau: float = 1.0,
    ) -> Hyper:
        """The hyper-parameters with which sequential order follows `torch.optim.RMSprop`.

        ω is the gradient itself, τη = τφ = 1, and β is (lr/τ)/(√v + ε), where v keeps `alpha` of itself at each
        update. RMSprop's `momentum`, which gathers gradients that are scaled already, and its `centered` are not
        of this form.

        Args:
            lr: Learning rate, a number or a function of time.
            alpha: How much of v is kept at each update.
            eps: ε, above 0.
            weight_decay: λ of ½λ|θ|², part of H as in `Hyper`.
            tau: Time step τ.

        Example:
            >>> hyper = Hyper.from_rmsprop(lr=0.01)
            >>> hyper.eta, hyper.phi, hyper.beta
            (1.0, 1.0, Adaptive(scale=0.01, keep=0.99, eps=1e-08, momentum=None, shrink=0.0))
        """
        positive_time(tau, ConfigError)
        beta = Adaptive(per_time(lr, tau), keep=share("alpha", alpha), eps=eps)
        return cls(tau=tau, eta=1.0 / tau, beta=beta, phi=1.0 / tau, eta_z=0.0, weight_decay=weight_decay)

    def at(self, t: float, tau: float | None = None, *, first: bool = False) -> Rates:
        """The rates at time `t`, for a step of length `tau` (`None`: this object's own)."""
        nominal = self._value("tau", t)
        step = nominal if tau is None else tau
        for time in (nominal, step):
            positive_time(time, SampleError)
        eta = self._value("eta", t)
        eta_z = eta if self.eta_z is None else self._value("eta_z", t)
        phi = self.phi_first if first and self.phi_first is not None else self._value("phi", t)
        step = float(step)
        if self.clock == "continuous":
            return Rates(step, step, eta, eta_z, phi, self.s)
        check_share("eta", eta, nominal, t)
        check_share("eta_z", eta_z, nominal, t)
        if step != nominal:
            eta, eta_z = over_gaps(eta, nominal)(step), over_gaps(eta_z, nominal)(step)
        return Rates(step, nominal, eta, eta_z, phi, self.s)

    def along(self, taus: np.ndarray) -> np.ndarray:
        """The rates of steps of these lengths, where none depends on time; 0 stands for this object's own τ.

        Returns:
            A row for each step: τ, stride, η, η_z and φ as in `Rates`, bit-for-bit as `at` returns them.

        Example:
            >>> Hyper(tau=0.5, eta=1.0).along(np.array([0.0, 2.0])).tolist()
            [[0.5, 0.5, 1.0, 1.0, 1.0], [2.0, 0.5, 1.875, 1.875, 1.0]]
        """
        usual = self.at(0.0)
        steps = np.where(taus == 0.0, usual.tau, taus)
        table = np.empty((len(steps), 5))
        table[:] = usual[:5]
        table[:, 0] = steps
        if self.clock == "continuous":
            table[:, 1] = steps
            return table
        gaps = np.flatnonzero(steps != usual.tau)
        table[gaps, 2] = over_many_gaps(usual.eta, usual.stride, steps[gaps])
        alike = usual.eta == usual.eta_z
        table[gaps, 3] = table[gaps, 2] if alike else over_many_gaps(usual.eta_z, usual.stride, steps[gaps])
        return table

    def constant(self) -> bool:
        """Whether no rate but β depends on time."""
        # A tensor or an array can be written to, so it is read again.
        return all(
            rate is None or isinstance(rate, float | int) for rate in (self.tau, self.eta, self.eta_z, self.phi)
        )

    def _value(self, name: str, t: float) -> float:
        rate = getattr(self, name)
        if not callable(rate):
            return float(rate)
        value = rate(t)
        if name == "tau":
            positive_time(value, SampleError)
            return float(value)
        return nonnegative(name, value, t)
