"""The weight velocity θ̇ = −β⊙ω (eq:hesb), with β as one number, a schedule, a tensor, or by name."""

from __future__ import annotations

from collections.abc import Container, Mapping
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from hamlearn._scale import Scale, add_, plus
from hamlearn.errors import ConfigError
from hamlearn.hyper import Beta, Schedule, nonnegative, scheduled

Value = float | Schedule | Tensor


class Velocity:
    """β resolved for a list of named weights, grouped so that equal values share one foreach call.

    Args:
        beta: As in `Hyper`.
        names: Parameter names, in the order of the lists given later.
        theta: The weights, to check shapes against.

    Attributes:
        has_tensors: Whether any β is a tensor, which may be written to at any time.

    Example:
        >>> import torch
        >>> velocity = Velocity({"a": 2.0, "*": 0.0}, ["a", "b"], [torch.zeros(1), torch.zeros(1)])
        >>> velocity.rates([torch.ones(1), torch.ones(1)], t=0.0)
        [tensor([-2.]), tensor([-0.])]
    """

    def __init__(self, beta: Beta, names: list[str], theta: list[Tensor]) -> None:
        values = _resolve(beta, names)
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
        self._scheduled = [value for value in values if callable(value) and not isinstance(value, Tensor)]

    @classmethod
    def given(cls, betas: list[Tensor], theta: list[Tensor]) -> Velocity:
        """β already evaluated, one tensor per weight."""
        names = [str(index) for index in range(len(betas))]
        return cls(dict(zip(names, betas, strict=True)), names, theta)

    def values(self, t: float) -> list[float | Tensor]:
        """β of each weight at time `t`."""
        found = {index: _at(value, t) for indices, value in self._groups for index in indices}
        return [found[index] for index in range(len(found))]

    @property
    def scheduled(self) -> bool:
        """Whether β depends on time."""
        return bool(self._scheduled)

    def rates(self, omega: list[Tensor], t: float) -> list[Tensor]:
        """θ̇ = −β⊙ω at time `t`."""
        dtheta: list[Tensor] = list(omega)
        for indices, value in self._groups:
            beta = _at(value, t)
            for index in indices:
                rate = beta.to(omega[index]) if isinstance(beta, Tensor) else beta
                dtheta[index] = omega[index] * -rate
        return dtheta

    def moved(self, theta: list[Tensor], omega: list[Tensor], t: float, tau: Scale) -> list[Tensor]:
        """θ − τβ⊙ω; a weight that stays is the very tensor that was given."""
        if self._uniform is not None:
            return plus(theta, omega, -(tau * float(_at(self._uniform, t))))
        result = list(theta)
        for indices, value in self._groups:
            beta = _at(value, t)
            weights, costates = [theta[i] for i in indices], [omega[i] for i in indices]
            if isinstance(beta, Tensor) and beta.dim():
                moved = plus(weights, [costate * beta.to(costate.device) for costate in costates], -tau)
                moved = [new.to(old.dtype) for new, old in zip(moved, weights, strict=True)]
            elif isinstance(beta, Tensor) or beta:
                moved = plus(weights, costates, -(tau * beta))
            else:
                continue
            for index, weight in zip(indices, moved, strict=True):
                result[index] = weight
        return result

    def move(
        self, theta: list[Tensor], omega: list[Tensor], t: float, tau: Scale, but: Container[int] = ()
    ) -> None:
        """θ ← θ − τβ⊙ω in place, but not for some of them; the same numbers as `moved`."""
        if self._uniform is not None and not but:
            add_(theta, omega, -(tau * float(_at(self._uniform, t))))
            return
        for indices, value in self._groups:
            beta, chosen = _at(value, t), [index for index in indices if index not in but]
            weights, costates = [theta[i] for i in chosen], [omega[i] for i in chosen]
            if not chosen:
                continue
            if isinstance(beta, Tensor) and beta.dim():
                add_(weights, [costate * beta.to(costate.device) for costate in costates], -tau)
            elif isinstance(beta, Tensor) or beta:
                add_(weights, costates, -(tau * beta))

    def still(self, t: float) -> list[int]:
        """Which weights stay where they are, because their β is the number 0."""
        if self._uniform is not None and not callable(self._uniform) and self._uniform:
            return []
        return [i for i, beta in enumerate(self.values(t)) if not isinstance(beta, Tensor) and not beta]

    def check(self, t: float) -> None:
        """Raise if a scheduled β is not one at time `t`, before anything has moved."""
        for value in self._scheduled:
            nonnegative("beta", scheduled("beta", value, t), t)


def _at(value: Value, t: float) -> float | Tensor:
    if isinstance(value, Tensor) or not callable(value):
        return value
    return nonnegative("beta", scheduled("beta", value, t), t)


def _broadcasts(value: Tensor, weight: Tensor) -> bool:
    try:
        return torch.broadcast_shapes(value.shape, weight.shape) == weight.shape
    except RuntimeError:
        return False


def _resolve(beta: Beta, names: list[str]) -> list[Value]:
    if not isinstance(beta, Mapping):
        return [beta] * len(names)
    for pattern in beta:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(f"beta names {pattern!r}, which matches no learnable parameter of {names}")
    resolved: list[Value] = []
    for name in names:
        match = next((pattern for pattern in beta if fnmatchcase(name, pattern)), None)
        if match is None:
            raise ConfigError(
                f"beta says nothing of {name!r} (it names {list(beta)}): add the pattern '*' for all others"
            )
        resolved.append(beta[match])
    return resolved
