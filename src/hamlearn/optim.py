"""Hamiltonian Learning as a `torch.optim.Optimizer`: a drop-in for SGD in an ordinary training loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from hamlearn.errors import ConfigError
from hamlearn.hyper import nonnegative, positive_time


class HL(Optimizer):
    """Integrates the costate ω of the weights, and the weights, from the gradients of a training loop.

    ω ← (1 − τη) ω + τφ g; θ ← θ − τβ ω (eq:fanculo, eq:fanculo2), with β = lr/τ, η = (1 − momentum)/τ and
    φ = (1 − dampening)/τ (Appendix oob). At its own time step it follows `torch.optim.SGD` bit for bit, SGD's
    undampened first step included. Where data are unevenly spaced in time, `step(tau=…)` says how long ago the
    previous step was; that is what SGD cannot do. On the clock of events ω forgets over the gap, by the factor
    momentum^(tau/τ), and each gradient counts once.

    Args:
        params: Parameters, or groups of them with settings of their own.
        lr: Learning rate τβ.
        momentum: 1 − τη; 0 keeps no costate.
        dampening: 1 − τφ; without momentum it has no effect, as in SGD.
        weight_decay: Multiple of θ added to the gradient.
        tau: Time step τ that the other settings are meant for.
        clock: As in `Hyper`. `"events"`: a gap changes only how much ω forgets. `"continuous"`: learning and
            forgetting are both scaled to it, as the equations say.

    Example:
        >>> import torch, hamlearn as hl
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = hl.optim.HL(model.parameters(), lr=0.1, momentum=0.9)
        >>> for _ in range(3):
        ...     optimizer.zero_grad()
        ...     model(torch.ones(1, 2)).square().sum().backward()
        ...     optimizer.step()
        >>> sorted(optimizer.state[model.weight])
        ['omega']
    """

    _told = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        tau: float = 1.0,
        clock: Literal["events", "continuous"] = "events",
    ) -> None:
        settings = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "tau": tau,
            "clock": clock,
        }
        super().__init__(params, settings)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; settings it does not name are the optimizer's."""
        settings = {**self.defaults, **param_group}
        for name in ("lr", "weight_decay"):
            nonnegative(name, settings[name])
        for name in ("momentum", "dampening"):
            if not 0.0 <= settings[name] <= 1.0:
                raise ConfigError(f"{name}={settings[name]!r} must lie between 0 and 1")
        positive_time(settings["tau"], ConfigError)
        if settings["clock"] not in ("events", "continuous"):
            raise ConfigError(f"clock={settings['clock']!r} must be 'events' or 'continuous'")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None, *, tau: float | None = None
    ) -> float | None:
        """One step of length `tau` (`None`: each group's own); returns what `closure` returns, if given."""
        if tau is not None:
            positive_time(tau, ConfigError)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            theta = [weight for weight in group["params"] if weight.grad is not None]
            if theta:
                self._move(theta, group, 1.0 if tau is None else tau / group["tau"])
        return loss

    def _move(self, theta: list[Tensor], group: dict[str, Any], stretch: float) -> None:
        # With β, η and φ fixed, a literal step `stretch` times as long has τη and τφ that many times as large.
        # Written so that at stretch 1 the numbers are momentum and 1 − dampening to the last bit.
        grads = [weight.grad for weight in theta]
        if any(grad is None or grad.is_sparse for grad in grads):
            raise ConfigError("hl.optim.HL takes dense gradients only: build the embedding with sparse=False")
        decay = group["momentum"]
        if group["clock"] == "events":
            decay, stretch = decay**stretch, 1.0
        elif stretch != 1.0:
            decay = 1.0 - stretch * (1.0 - decay)
            if decay < 0 and group["momentum"] and not self._told:
                self._told = True
                warnings.warn(
                    f"a step of {stretch:g} times tau with momentum={group['momentum']:g} leaves {decay:.3g} of "
                    "the costate: it changes its sign, and grows where that is below -1. Use clock='events', or "
                    "shorter steps. This is said once",
                    RuntimeWarning,
                    stacklevel=3,
                )
        drive: Any = grads
        if group["weight_decay"]:
            drive = torch._foreach_add(drive, theta, alpha=group["weight_decay"])
        if group["momentum"]:
            drive = self._costates(theta, list(drive), decay, (1.0 - group["dampening"]) * stretch, stretch)
        elif stretch != 1.0:
            drive = torch._foreach_mul(drive, stretch)
        torch._foreach_add_(theta, drive, alpha=-(float(group["lr"]) * stretch))

    def _costates(
        self, theta: list[Tensor], grads: list[Tensor], decay: float, gain: float, stretch: float
    ) -> list[Tensor]:
        known = [i for i, weight in enumerate(theta) if "omega" in self.state[weight]]
        if known:
            omega = [self.state[theta[i]]["omega"] for i in known]
            torch._foreach_mul_(omega, decay)
            torch._foreach_add_(omega, [grads[i] for i in known], alpha=gain)
        for i in set(range(len(theta))) - set(known):
            first = torch.clone(grads[i]).detach()
            self.state[theta[i]]["omega"] = first if stretch == 1.0 else first.mul_(stretch)
        return [self.state[weight]["omega"] for weight in theta]
