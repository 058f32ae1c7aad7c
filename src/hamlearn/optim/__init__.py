"""Hamiltonian Learning as a `torch.optim.Optimizer`: a drop-in for SGD, Adam, AdamW and RMSprop."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from hamlearn._base.numbers import positive_time
from hamlearn._base.scale import scale_
from hamlearn._base.torch_private import foreach_add, foreach_add_, foreach_mul
from hamlearn.adaptive import Adaptive, adapt_, averaged, follow
from hamlearn.errors import ConfigError
from hamlearn.optim.states import SETTINGS, check_group, understood


class HL(Optimizer):
    """Integrates the costate ω of the weights, and the weights, from the gradients of a training loop.

    ω ← (1 − τη) ω + τφ g; θ ← θ − τβ ω (Eq. 11, 12), with β = lr/τ, η = (1 − momentum)/τ and
    φ = (1 − dampening)/τ (Appendix D of the paper). At its own time step it follows `torch.optim.SGD` bit-for-bit,
    SGD's undampened first step included; by another `rule`, whose β follows the squares of the gradients,
    `torch.optim.Adam`, `AdamW` or `RMSprop`. Where data are unevenly spaced in time, `step(tau=…)` says how long
    ago the previous step was; that is what those cannot do. On the clock of events ω forgets over the gap, by the
    factor momentum^(tau/τ), and each gradient counts once.

    Args:
        params: Parameters, or groups of them with settings of their own.
        lr: Learning rate τβ; of an adaptive β, its scale. `None`: 1e-3, for `"rmsprop"` 1e-2, as in PyTorch.
        momentum: 1 − τη; 0 keeps no costate. For `"sgd"`.
        dampening: 1 − τφ; without momentum it has no effect, as in SGD. For `"sgd"`.
        weight_decay: Multiple of θ added to the gradient; for `"adamw"`, what θ loses by itself per unit of `lr`.
            `None`: 0, for `"adamw"` 1e-2, as in PyTorch.
        tau: Time step τ that the other settings are meant for.
        clock: As in `Hyper`. `"events"`: a gap changes only how much ω forgets. `"continuous"`: learning and
            forgetting are both scaled to it, as the equations say.
        rule: `"sgd"`, `"adam"`, `"adamw"` or `"rmsprop"`, as in `Hyper.from_sgd`, `from_adam` and so on.
        betas: β₁ = 1 − τη = 1 − τφ, and β₂. For `"adam"` and `"adamw"`.
        alpha: What the mean square keeps of itself at each step. For `"rmsprop"`.
        eps: ε, above 0. For all but `"sgd"`.

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
        >>> adam = hl.optim.HL(model.parameters(), lr=1e-3, rule="adam")
        >>> adam.step()
        >>> sorted(adam.state[model.weight])
        ['omega', 'updates', 'v']
    """

    _told = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor | None = None,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float | None = None,
        tau: float = 1.0,
        clock: Literal["events", "continuous"] = "events",
        rule: Literal["sgd", "adam", "adamw", "rmsprop"] = "sgd",
        betas: tuple[float, float] = (0.9, 0.999),
        alpha: float = 0.99,
        eps: float = 1e-8,
    ) -> None:
        if not isinstance(rule, str) or rule not in SETTINGS:
            raise ConfigError(f"rule={rule!r} is not known: use one of {', '.join(map(repr, SETTINGS))}")
        for name, value in (("momentum", momentum), ("dampening", dampening)):
            if value and rule != "sgd":
                raise ConfigError(f"{name}={value!r} belongs to rule='sgd': leave it out, or give betas for Adam")
        given = {
            "lr": (1e-2 if rule == "rmsprop" else 1e-3) if lr is None else lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": (1e-2 if rule == "adamw" else 0.0) if weight_decay is None else weight_decay,
            "tau": tau,
            "clock": clock,
            "betas": betas,
            "alpha": alpha,
            "eps": eps,
        }
        # A scheduler that finds betas among the defaults changes them, and momentum else.
        super().__init__(params, {name: given[name] for name in SETTINGS[rule]} | {"rule": rule})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; settings it does not name are the optimizer's."""
        if isinstance(param_group, dict):  # of anything else PyTorch says what it is
            check_group({**self.defaults, **param_group}, self.defaults["rule"])
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up a state that `state_dict` gave: HL's own, or that of PyTorch's optimizer by the same rule."""
        params = [weight for group in self.param_groups for weight in group["params"]]
        super().load_state_dict(understood(state_dict, self.defaults, params))

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
        groups = [(group, [w for w in group["params"] if w.grad is not None]) for group in self.param_groups]
        for group, theta in groups:
            # Settings may be changed at any time; all is looked at before anything moves.
            check_group(group, self.defaults["rule"])
            if any(weight.grad.layout is not torch.strided for weight in theta):
                raise ConfigError("hl.optim.HL takes dense gradients only: build the embedding with sparse=False")
            if group["rule"] != "sgd" and any(weight.is_complex() for weight in theta):
                raise ConfigError(
                    f"rule={group['rule']!r} follows real weights, and one of shape "
                    f"{list(next(w for w in theta if w.is_complex()).shape)} is complex: use rule='sgd', or "
                    "torch.view_as_real"
                )
        for group, theta in groups:
            if theta:
                self._move(theta, group, 1.0 if tau is None else tau / group["tau"])
        return loss

    def _move(self, theta: list[Tensor], group: dict[str, Any], stretch: float) -> None:
        # With β, η and φ fixed, a literal step `stretch` times as long has τη and τφ that many times as large.
        # Written so that at stretch 1 the numbers are momentum and 1 − dampening exactly.
        momentum = group["momentum"] if group["rule"] == "sgd" else _momentum(group)
        decay, whole = momentum, stretch == 1.0
        if group["clock"] == "events":
            decay, stretch = decay**stretch, 1.0
        elif not whole:
            decay = 1.0 - stretch * (1.0 - decay)
            if decay < 0 and momentum and not self._told:
                self._told = True
                warnings.warn(
                    f"a step of {stretch:g} times tau with momentum={momentum:g} leaves {decay:.3g} of the "
                    "costate: it changes its sign, and grows where that is below -1. Use clock='events', or "
                    "shorter steps. This is said once",
                    RuntimeWarning,
                    stacklevel=3,
                )
        drive: Any = [weight.grad for weight in theta]
        if group["weight_decay"] and group["rule"] != "adamw":
            drive = foreach_add(drive, theta, alpha=group["weight_decay"])
        if group["rule"] != "sgd":
            self._adapt(theta, list(drive), group, decay, stretch, whole=whole)
            return
        if momentum:
            drive = self._costates(theta, list(drive), decay, (1.0 - group["dampening"]) * stretch, stretch)
        elif stretch != 1.0:
            drive = foreach_mul(drive, stretch)
        foreach_add_(theta, drive, alpha=-(float(group["lr"]) * stretch))

    def _adapt(
        self,
        theta: list[Tensor],
        g: list[Tensor],
        group: dict[str, Any],
        decay: float,
        stretch: float,
        *,
        whole: bool,
    ) -> None:
        """θ ← θ − τβ ω with a β that follows g²; weights that were updated equally often move together."""
        rule, lr = _adaptive(group), float(group["lr"]) * stretch
        gain = 1.0 - (rule.momentum or 0.0)
        together: dict[int, list[int]] = {}
        for index, weight in enumerate(theta):
            kept = self.state[weight]
            if not kept:
                kept["updates"], kept["v"] = 0, torch.zeros_like(weight)
                if rule.momentum is not None:
                    kept["omega"] = torch.zeros_like(weight)
            kept["updates"] += 1
            together.setdefault(kept["updates"], []).append(index)
        for k, indices in together.items():
            kept, grads = [self.state[theta[i]] for i in indices], [g[i] for i in indices]
            v = follow([one["v"] for one in kept], grads, rule.keep, 1 - rule.keep)
            if rule.momentum is None:
                omega = grads if stretch == 1.0 else list(foreach_mul(grads, stretch))
            elif whole:
                omega = averaged([one["omega"] for one in kept], grads, gain)
            else:
                omega = list(foreach_mul([one["omega"] for one in kept], decay))
                foreach_add_(omega, grads, alpha=gain * stretch)
            adapt_([theta[i] for i in indices], omega, v, lr, rule.at(k))
            for one, new, costate in zip(kept, v, omega, strict=True):
                one["v"] = new
                if rule.momentum is not None:
                    one["omega"] = costate

    def _costates(
        self, theta: list[Tensor], grads: list[Tensor], decay: float, gain: float, stretch: float
    ) -> list[Tensor]:
        known = [i for i, weight in enumerate(theta) if "omega" in self.state[weight]]
        if known:
            omega = [self.state[theta[i]]["omega"] for i in known]
            scale_(omega, decay)
            foreach_add_(omega, [grads[i] for i in known], alpha=gain)
        for i in set(range(len(theta))) - set(known):
            first = torch.clone(grads[i]).detach()
            self.state[theta[i]]["omega"] = first if stretch == 1.0 else first.mul_(stretch)
        return [self.state[weight]["omega"] for weight in theta]


def _momentum(group: dict[str, Any]) -> float:
    return 0.0 if group["rule"] == "rmsprop" else float(group["betas"][0])


def _adaptive(group: dict[str, Any]) -> Adaptive:
    if group["rule"] == "rmsprop":
        return Adaptive(1.0, keep=group["alpha"], eps=group["eps"])
    beta1, beta2 = group["betas"]
    shrink = group["weight_decay"] if group["rule"] == "adamw" else 0.0
    return Adaptive(1.0, keep=beta2, eps=group["eps"], momentum=beta1, shrink=shrink)
