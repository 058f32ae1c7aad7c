"""Weights that move in place, and back to exactly what they were where the step is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hamlearn._base.scale import add_
from hamlearn._base.torch_private import foreach_copy_
from hamlearn.engines.eager.pages import keep_pages
from hamlearn.orders.system import Instant, Outcome, Pending, System
from hamlearn.theory.descent import descend_, fuses, pays


class Norms:
    """How large a weight and its costate can be by now, without having been looked at again.

    By the triangle inequality, step by step: ‖ω⁺‖ ≤ |decay|‖ω‖ + |gain|‖∂H/∂θ‖ and ‖θ⁺‖ ≤ ‖θ‖ + |by|‖ω⁺‖. This
    holds while nobody else writes to them, as their versions tell.
    """

    __slots__ = ("_bounds", "_costate", "_theta", "_versions")

    def __init__(self) -> None:
        self._bounds = (0.0, 0.0)
        self._theta: Tensor | None = None
        self._costate: Tensor | None = None
        self._versions = (-1, -1)

    def of(self, theta: Tensor, costate: Tensor, size: float | None = None) -> tuple[float, float]:
        """The norms of both, or what they are at most; looked at where that is not known, or nears overflow.

        Args:
            theta: The weight.
            costate: Its costate.
            size: What the norm of the costate is at most, where somebody knows.
        """
        most, versions = _ROOTS[theta.dtype], self._versions
        whole, part = self._bounds
        # Where nothing of ω is left after a step, it is another tensor each time, and θ is still the same.
        known = self._theta is theta
        if not known or versions[0] != theta._version or whole > most:
            whole = norm_of(theta.detach())
        if size is not None:
            part = size
        elif not known or self._costate is not costate or versions[1] != costate._version or part > most:
            part = norm_of(costate)
        self.put(theta, costate, (whole, part))
        return self._bounds

    def put(self, theta: Tensor, costate: Tensor, bounds: tuple[float, float]) -> None:
        """Say how large these are, at most, as they are now."""
        self._theta, self._costate, self._versions = None, costate, (theta._version, costate._version)
        self._bounds = bounds
        # Last: an interrupt before it leaves nothing known.
        self._theta = theta


class Late:
    """A large weight, and perhaps its costate, that move once the step is accepted.

    Each tensor's version tells how far that has come, so that an interrupt leaves nothing to guess.
    """

    __slots__ = ("bounds", "by", "norms", "omega", "pending", "slope", "versions", "weight")

    def __init__(
        self,
        weight: Tensor,
        omega: Tensor,
        pending: Pending | None,
        by: float,
        norms: Norms,
        bounds: tuple[float, float],
    ) -> None:
        self.weight, self.omega, self.pending, self.by = weight, omega, pending, by
        self.norms, self.bounds = norms, bounds
        self.versions = weight._version, omega._version
        # Both in one pass over memory where that is possible; it knows no gain, and no costate that is forgotten.
        grad = None
        if pending is not None and pending.gain == 1.0 and pending.decay and by < 0:
            grad = pending.grad
        self.slope = grad if grad is not None and pays(weight) and fuses(weight, omega, grad) else None

    def __call__(self) -> None:
        """ω ← decay·ω + gain·∂H/∂θ where that is pending, then θ ← θ − τβ⊙ω; nothing is done twice."""
        if self.slope is None or self.pending is None:
            self._one_by_one()
        elif self.weight._version == self.versions[0]:
            descend_(self.weight, self.omega, self.slope, self.pending.decay, -self.by)
        self.norms.put(self.weight, self.omega, self.bounds)

    def _one_by_one(self) -> None:
        theta, omega = self.versions
        if self.pending is not None:
            grad, decay, gain = self.pending
            if self.omega._version == omega:
                self.omega.mul_(decay)
            if self.omega._version == omega + 1 and grad is not None:
                self.omega.add_(grad, alpha=gain)
        if self.weight._version == theta and self.by:
            self.weight.add_(self.omega, alpha=self.by)


class Written:
    """Weights that take values which were computed beside them."""

    __slots__ = ("theta", "values")

    def __init__(self, theta: list[Tensor], values: list[Tensor]) -> None:
        self.theta, self.values = theta, values

    def __call__(self) -> None:
        """θ ← θ⁺; done again, it changes nothing."""
        foreach_copy_(self.theta, self.values)


class Moved(NamedTuple):
    """What a step does to the weights.

    Attributes:
        theta: θ⁺, in the weights' own memory or beside it; for those that are `late`, still θ.
        late: By index, large weights that move once the step is accepted.
        rest: What else is to be done then.
    """

    theta: list[Tensor]
    late: dict[int, Late]
    rest: list[Written]

    @property
    def beside(self) -> bool:
        """Whether θ⁺ stands beside the weights, which have not moved yet."""
        return bool(self.rest)

    def todo(self) -> list[Callable[[], None]]:
        """What moves the weights, or the rest of them."""
        return [*self.late.values(), *self.rest]


class Moves:
    """How the weights of a learner move, without passing over their memory more often than SGD does.

    Small weights are copied, then moved, then looked at. For large ones norms say, at the speed of memory, that
    their numbers are far from overflow: those move last, when nothing can be refused any more.

    Args:
        system: Whose weights.
    """

    def __init__(self, system: System) -> None:
        self.system = system
        self._weights = [system.theta[index] for index in system.small]
        self._copies = [torch.empty_like(weight, requires_grad=False) for weight in self._weights]
        self._norms = {index: Norms() for index in system.large}
        self._begun = False

    def late(self, now: Instant, outcome: Outcome, *, allowed: bool) -> dict[int, Late]:
        """The large weights that can wait, by their index; whatever else was pending is done."""
        late: dict[int, Late] = {}
        if not self.system.large:
            return late
        if not self._begun:
            self._begun = True
            weights = [self.system.theta[index] for index in self.system.large]
            keep_pages(max((weight.nbytes for weight in weights if weight.is_cpu), default=0))
        waits = outcome.moves and outcome.dtheta is None and self.system.velocity.adaptive is None
        large = self.system.large if waits else []
        betas = self.system.velocity.values(now.t) if large else []
        for index in large:
            weight, omega, beta = self.system.theta[index], outcome.omega[index], betas[index]
            pending = outcome.pending.get(index)
            if allowed and isinstance(beta, float | int):
                by = -(now.rates.stride * beta)
                norms = self._norms[index]
                bounds = None
                if abs(by) <= 1.0 and not self._lent(pending):
                    bounds = _far_from_overflow(weight, omega, pending, by, norms, outcome.sizes.get(index))
                if bounds is not None:
                    late[index] = Late(weight, omega, pending, by, norms, bounds)
                    continue
            if pending is not None:
                outcome.omega[index] = pending.after(omega)
        return late

    def _lent(self, pending: Pending | None) -> bool:
        """Whether the gradient is a view of a weight, which may have moved by the time it is added."""
        grad = None if pending is None else pending.grad
        return grad is not None and self.system.slots.holds(grad.data_ptr())

    def beside(self, now: Instant, outcome: Outcome) -> Moved:
        """θ⁺ beside the weights: a refused step has not touched them, and graphs that hold them live on."""
        k = now.updates + outcome.learned
        velocity, stride = self.system.velocity, now.rates.stride
        theta = velocity.moved(self.system.theta, outcome.omega, now.t, stride, outcome.v, k)
        return Moved(theta, {}, [Written(self.system.theta, theta)])

    def keep(self, late: dict[int, Late]) -> tuple[list[Tensor], list[Tensor]]:
        """The weights that move at once, and copies of them as they are."""
        if self._weights:  # PyTorch refuses empty lists.
            foreach_copy_(self._copies, self._weights)
        if len(late) == len(self.system.large):
            return self._weights, self._copies
        others = [self.system.theta[index] for index in self.system.large if index not in late]
        return [*self._weights, *others], [*self._copies, *(weight.clone() for weight in others)]

    def move(self, now: Instant, outcome: Outcome, late: dict[int, Late]) -> None:
        """Move those that do not wait: θ ← θ − τβ⊙ω, or along θ̇ where the order gives it."""
        theta, k = self.system.theta, now.updates + outcome.learned
        if outcome.dtheta is None:
            self.system.velocity.move(theta, outcome.omega, now.t, now.rates.stride, late, outcome.v, k)
        else:
            add_(theta, outcome.dtheta, now.rates.stride)

    def strike(self, t: float, now: Instant, outcome: Outcome) -> None:
        """Move all weights by a blow that takes no time, in which they do not dissipate."""
        velocity, k = self.system.velocity, now.updates + 1
        velocity.move(self.system.theta, outcome.omega, t, now.rates.stride, (), outcome.v, k, dissipate=False)


def _far_from_overflow(
    weight: Tensor, omega: Tensor, pending: Pending | None, by: float, norms: Norms, size: float | None
) -> tuple[float, float] | None:
    """How large both can be after the step, if no entry exceeds the root of the largest number; else `None`.

    Args:
        weight: Moves by ω.
        omega: Its costate, or what that is before it takes in what is pending.
        pending: What that is.
        by: −τβ.
        norms: What is known of both.
        size: What the norm of the pending gradient is at most, or of ω where nothing is pending.
    """
    root = _ROOTS.get(weight.dtype)
    if root is None:
        return None
    decay, gain, slope = 1.0, 0.0, 0.0
    if pending is not None:
        decay, gain = abs(pending.decay), abs(pending.gain)
        slope = 0.0
        if pending.grad is not None:
            slope = norm_of(pending.grad) if size is None else size
        if decay > 1.0 or gain > 1e6:
            return None
    theta, costate = norms.of(weight, omega, size if pending is None else None)
    if not (theta <= root and costate <= root and slope <= root):
        return None
    costate = decay * costate + gain * slope
    return theta + abs(by) * costate, costate


def norm_of(tensor: Tensor) -> float:
    """The Euclidean norm, at the speed of memory; infinite where a square is."""
    if tensor.is_contiguous() and tensor.is_cpu:
        flat = tensor.view(-1)
        return math.sqrt(torch.dot(flat, flat).item())
    return torch.linalg.vector_norm(tensor).item()


_ROOTS = {dtype: math.sqrt(torch.finfo(dtype).max) for dtype in (torch.float32, torch.float64)}
"""The root of the largest number of a type: the square of what is smaller does not overflow."""
