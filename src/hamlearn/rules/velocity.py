"""The weight velocity θ̇ = −β⊙ω (Eq. E⋆2), with β as one number, a schedule, a tensor, or by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from torch import Tensor

from hamlearn._base.numbers import Scaling, Schedule, nonnegative
from hamlearn._base.scale import Scale, add_, plus
from hamlearn.adaptive import Adaptive, Moments, adapted, velocities
from hamlearn.errors import ConfigError
from hamlearn.hyper import Beta

Value = float | Schedule | Tensor


class Velocity:
    """β resolved for a list of named weights, grouped so that equal values share one foreach call.

    Args:
        beta: As in `Hyper`.
        names: Parameter names, in the order of the lists given later.
        theta: The weights, to check shapes against.

    Attributes:
        resolved: β of each weight, as it was given.
        has_tensors: Whether any β is a tensor, which may be written to at any time.
        scheduled: Whether β depends on time.
        may_stay: Whether some weight may stay where it is, because its β is the number 0.
        adaptive: How β follows v, of which β's number, schedule or tensor is the scale then; `None` where it does
            not.

    Example:
        >>> import torch
        >>> velocity = Velocity({"a": 2.0, "*": 0.0}, ["a", "b"], [torch.zeros(1), torch.zeros(1)])
        >>> velocity.rates([torch.ones(1), torch.ones(1)], t=0.0)
        [tensor([-2.]), tensor([-0.])]
    """

    def __init__(self, beta: Beta, names: list[str], theta: list[Tensor]) -> None:
        self.adaptive: Adaptive | Moments | None = None
        if isinstance(beta, Adaptive):
            self.adaptive, beta = beta, beta.scale
            _refuse_complex(names, theta)
        self.resolved = values = _resolve(beta, names)
        for name, value, weight in zip(names, values, theta, strict=True):
            if isinstance(value, Tensor) and not _broadcasts(value, weight):
                raise ConfigError(
                    f"beta of shape {tuple(value.shape)} does not fit {name} of shape {tuple(weight.shape)}: "
                    "give a number, or a mapping from names to tensors of their shapes"
                )
        groups: dict[object, tuple[list[int], Value]] = {}
        for index, value in enumerate(values):
            key = value if isinstance(value, float | int) else id(value)
            groups.setdefault(key, ([], value))[0].append(index)
        self._groups = list(groups.values())
        only = values[0] if len(groups) == 1 else None
        self._uniform = None if isinstance(only, Tensor) else only
        self.has_tensors = any(isinstance(value, Tensor) for value in values)
        self._schedules = [value for value in values if callable(value) and not isinstance(value, Tensor)]
        self.scheduled = bool(self._schedules)
        self.may_stay = self.scheduled or any(not isinstance(value, Tensor) and value == 0 for value in values)

    @classmethod
    def given(cls, betas: list[Tensor], theta: list[Tensor], moments: Moments | None = None) -> Velocity:
        """β already evaluated, one tensor per weight, and what it adapts by."""
        names = [str(index) for index in range(len(betas))]
        velocity = cls(dict(zip(names, betas, strict=True)), names, theta)
        velocity.adaptive = moments
        return velocity

    def values(self, t: float) -> list[float | Tensor]:
        """β of each weight at time `t`; its scale, where it adapts."""
        found = {index: _at(value, t) for indices, value in self._groups for index in indices}
        return [found[index] for index in range(len(found))]

    def rates(
        self, omega: list[Tensor], t: float, theta: Sequence[Tensor] = (), v: Sequence[Tensor] = (), k: int = 0
    ) -> list[Tensor]:
        """θ̇ = −β⊙ω at time `t`; a β that adapts takes `v` after `k` updates, and weights that dissipate too."""
        dtheta: list[Tensor] = list(omega)
        if self.adaptive is not None:
            moments = self._moments(k)
            for indices, value in self._groups:
                weights, costates, squares = _chosen(indices, theta, omega, v)
                found = velocities(weights, costates, squares, _at(value, t), moments)
                for index, velocity in zip(indices, found, strict=True):
                    dtheta[index] = velocity
            return dtheta
        for indices, value in self._groups:
            beta = _at(value, t)
            for index in indices:
                rate = beta.to(omega[index]) if isinstance(beta, Tensor) else beta
                dtheta[index] = omega[index] * -rate
        return dtheta

    def moved(
        self,
        theta: list[Tensor],
        omega: list[Tensor],
        t: float,
        tau: Scale,
        v: Sequence[Tensor] = (),
        k: int = 0,
        *,
        dissipate: bool = True,
    ) -> list[Tensor]:
        """θ − τβ⊙ω; a weight that stays is the very tensor that was given.

        Args:
            theta: The weights.
            omega: Their costates.
            t: Time, at which β is taken.
            tau: Length of the step.
            v: What an adaptive β follows.
            k: Number of updates, for its corrections.
            dissipate: Whether weights that dissipate by themselves do so in this step.
        """
        if self.adaptive is None and self._uniform is not None:
            beta = _at(self._uniform, t) if callable(self._uniform) else self._uniform
            return plus(theta, omega, -(tau * float(beta)))
        result = list(theta)
        for indices, value in self._groups:
            beta, (weights, costates) = _at(value, t), _chosen(indices, theta, omega)
            if not isinstance(beta, Tensor) and not beta:
                continue
            if self.adaptive is not None:
                (squares,) = _chosen(indices, v)
                moved = adapted(weights, costates, squares, tau * beta, self._moments(k), dissipate=dissipate)
            elif isinstance(beta, Tensor) and beta.dim():
                moved = plus(weights, [costate * beta.to(costate.device) for costate in costates], -tau)
                moved = [new.to(old.dtype) for new, old in zip(moved, weights, strict=True)]
            else:
                moved = plus(weights, costates, -(tau * beta))
            for index, weight in zip(indices, moved, strict=True):
                result[index] = weight
        return result

    def move(self, theta: list[Tensor], omega: list[Tensor], t: float, tau: float) -> None:
        """θ ← θ − τβ⊙ω in place, for a β that does not adapt; the same numbers as `moved`."""
        for indices, value in self._groups:
            beta, (weights, costates) = _at(value, t), _chosen(indices, theta, omega)
            if isinstance(beta, Tensor) and beta.dim():
                add_(weights, [costate * beta.to(costate.device) for costate in costates], -tau)
            elif isinstance(beta, Tensor) or beta:
                add_(weights, costates, -(tau * beta))

    def _moments(self, k: int) -> Moments:
        assert self.adaptive is not None
        return self.adaptive.at(k) if isinstance(self.adaptive, Adaptive) else self.adaptive

    def check(self, t: float) -> None:
        """Raise if a scheduled β is not one at time `t`, before anything has moved."""
        for value in self._schedules:
            nonnegative("beta", value(t), t)


def _chosen(indices: list[int], *lists: Sequence[Tensor]) -> tuple[list[Tensor], ...]:
    return tuple([tensors[index] for index in indices] for tensors in lists)


def _at(value: Value, t: float) -> float | Tensor:
    if isinstance(value, Tensor) or not callable(value):
        return value
    return nonnegative("beta", value(t), t)


def _broadcasts(value: Tensor, weight: Tensor) -> bool:
    # PyTorch's own function for this imports a computer algebra system, which takes half a second.
    sizes = zip(reversed(value.shape), reversed(weight.shape), strict=False)
    return value.dim() <= weight.dim() and all(own in (1, size) for own, size in sizes)


def _refuse_complex(names: list[str], theta: list[Tensor]) -> None:
    for name, weight in zip(names, theta, strict=True):
        if weight.is_complex():
            raise ConfigError(f"an adaptive beta follows real weights, and {name} is complex: use a plain beta")


def _resolve(beta: Scaling, names: list[str]) -> list[Value]:
    if not isinstance(beta, Mapping):
        return [beta] * len(names)
    meant = {pattern: {name for name in names if fnmatchcase(name, pattern)} for pattern in beta}
    for place, (pattern, own) in enumerate(meant.items()):
        if not own:
            raise ConfigError(f"beta names {pattern!r}, which matches no learnable parameter of {names}")
        for before in list(meant)[:place]:
            if meant[before] > own:
                raise ConfigError(
                    f"beta names {pattern!r} behind {before!r}, which matches the same weights and more, and the "
                    f"first that matches wins: put {pattern!r} before it"
                )
    resolved: list[Value] = []
    for name in names:
        match = next((pattern for pattern in beta if fnmatchcase(name, pattern)), None)
        if match is None:
            raise ConfigError(
                f"beta says nothing of {name!r} (it names {list(beta)}): add the pattern '*' for all others"
            )
        resolved.append(beta[match])
    return resolved
