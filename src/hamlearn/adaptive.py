"""β that follows the squares of the gradients: Adam and RMSprop as Hamiltonian Learning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hamlearn._base.numbers import Scaling, check_scaling, nonnegative, share
from hamlearn._base.scale import PLAIN, Scale, plus, scale_, scaled
from hamlearn._base.torch_private import (
    foreach_add_,
    foreach_addcdiv_,
    foreach_addcmul_,
    foreach_copy_,
    foreach_div_,
    foreach_lerp,
    foreach_mul,
    foreach_sqrt,
)
from hamlearn.errors import ConfigError


class Moments(NamedTuple):
    """What an adaptive β takes of one step: numbers or, inside a compiled step, tensors without axes.

    Attributes:
        keep: What v keeps of itself where a loss enters.
        share: What v takes of g² there.
        first: Sum of the weights with which ω is an average so far, 1 − β₁^k; 1 where it is not corrected for.
        second: Root of the same sum for v, √(1 − β₂^k); or 1.
        eps: ε.
        shrink: Dissipation of the weights per unit of scale.
    """

    keep: Scale
    share: Scale
    first: Scale
    second: Scale
    eps: Scale
    shrink: Scale


@dataclass(frozen=True)
class Adaptive:
    """A positive β for every weight, small where gradients are large: β = scale/(√v + ε).

    v⁺ = keep·v + (1 − keep)·g², where g is what enters ω at a step, per unit of the gain τφ. v lies beside ω,
    starts at 0, and moves where a loss enters; steps without a target leave it as it is, and so does φ = 0. It
    counts samples, not time, on either clock. With `momentum`, ω and v are corrected for having started at 0: at
    the k-th update β is scale/(1 − momentum^k)/(√(v/(1 − keep^k)) + ε).

    In sequential order the weights move by the new ω and the new v. In parallel order every right-hand side is of
    time t: they move by the old ω and the old v.

    Args:
        scale: What β would be if it did not adapt: a number, a schedule, a tensor, or a mapping from patterns over
            parameter names to these. Weights whose scale is 0 do not move.
        keep: What v keeps of itself at each update (Adam's β₂, RMSprop's α).
        eps: ε, above 0: it bounds β.
        momentum: Adam's β₁, for the corrections; `None` for none.
        shrink: The weights dissipate as well: θ̇ = −β⊙ω − scale·shrink·θ (AdamW's decoupled weight decay).

    Example:
        >>> import hamlearn as hl
        >>> beta = hl.Adaptive(scale={"output.*": 0.01, "*": 0.0}, keep=0.99)
        >>> hl.Hyper(beta=beta).beta.eps
        1e-08
    """

    scale: Scaling
    keep: float = 0.999
    eps: float = 1e-8
    momentum: float | None = None
    shrink: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.scale, Mapping):
            object.__setattr__(self, "scale", dict(self.scale))
        check_scaling("scale", self.scale)
        share("keep", self.keep)
        if self.momentum is not None:
            share("momentum", self.momentum)
        if not nonnegative("eps", self.eps):
            raise ConfigError(
                f"eps={self.eps!r} must be above 0: where gradients are 0, it is all that bounds beta"
            )
        nonnegative("shrink", self.shrink)

    def at(self, k: int) -> Moments:
        """What the `k`-th update takes. Before the first, β is 0: v has followed nothing, and 1/ε is not a rate.

        Example:
            >>> first = Adaptive(0.1, keep=0.75, momentum=0.5).at(1)
            >>> first.first, first.second
            (0.5, 0.5)
        """
        first = second = 1.0
        if k < 1:
            # Something enters ω before the first target if there is a running cost, or if ω was set.
            first = math.inf
        elif self.momentum is not None:
            first, second = 1 - self.momentum**k, (1 - self.keep**k) ** 0.5
        return Moments(self.keep, 1 - self.keep, first, second, self.eps, self.shrink)


def follow(v: list[Tensor], g: Sequence[Tensor], keep: Scale, share: Scale) -> list[Tensor]:
    """v⁺ = keep·v + share·g², rounded as PyTorch's optimizers do."""
    if isinstance(keep, Tensor) or isinstance(share, Tensor):
        return [a * _as(keep, a) + b * b * _as(share, a) for a, b in zip(v, g, strict=True)]
    if not _plain(v):
        return [a.mul(keep).addcmul_(b, b, value=share) for a, b in zip(v, g, strict=True)]
    new = list(foreach_mul(v, keep))
    foreach_addcmul_(new, list(g), list(g), value=share)
    return new


def divisors(v: list[Tensor], moments: Moments) -> list[Tensor]:
    """√(v/(1 − β₂^k)) + ε, rounded as PyTorch's optimizers do."""
    _, _, _, second, eps, _ = moments
    if isinstance(second, Tensor) or isinstance(eps, Tensor):
        return [a.sqrt() / _as(second, a) + _as(eps, a) for a in v]
    if not _plain(v):
        return [(a.sqrt() / second).add_(eps) for a in v]
    roots = list(foreach_sqrt(v))
    if second != 1.0:
        foreach_div_(roots, second)
    foreach_add_(roots, eps)
    return roots


def adapted(
    theta: list[Tensor],
    omega: list[Tensor],
    v: list[Tensor],
    by: Scale,
    moments: Moments,
    *,
    dissipate: bool = True,
) -> list[Tensor]:
    """θ − by·(shrink·θ + ω/(1 − β₁^k)/(√(v/(1 − β₂^k)) + ε)), rounded as PyTorch's optimizers do.

    Args:
        theta: The weights.
        omega: Their costates.
        v: What β follows.
        by: τ times the scale of β; a tensor with axes where that has them.
        moments: What the step takes.
        dissipate: Whether the weights dissipate too.
    """
    _, _, first, _, _, shrink = moments
    if not isinstance(by, Tensor) and not isinstance(first, Tensor):
        new = [weight.detach().clone() for weight in theta]
        adapt_(new, omega, v, by, moments, dissipate=dissipate)
        return new
    if dissipate and (isinstance(shrink, Tensor) or shrink):
        theta = [weight * _as(1 - by * shrink, weight) for weight in theta]
    roots, rate = divisors(v, moments), by / first
    return [w - o * _as(rate, w) / root for w, o, root in zip(theta, omega, roots, strict=True)]


def adapt_(
    theta: list[Tensor],
    omega: list[Tensor],
    v: list[Tensor],
    by: Scale,
    moments: Moments,
    *,
    dissipate: bool = True,
) -> None:
    """The same as `adapted`, in place."""
    _, _, first, _, _, shrink = moments
    if isinstance(by, Tensor) or isinstance(first, Tensor):
        foreach_copy_(theta, adapted(theta, omega, v, by, moments, dissipate=dissipate))
        return
    if dissipate and shrink:
        scale_(theta, 1 - by * float(shrink))
    roots = divisors(v, moments)
    if _plain(theta):
        foreach_addcdiv_(theta, omega, roots, value=-(by / first))
        return
    for weight, costate, root in zip(theta, omega, roots, strict=True):
        weight.addcdiv_(costate, root, value=-(by / first))


def velocities(
    theta: list[Tensor], omega: list[Tensor], v: list[Tensor], scale: Scale, moments: Moments
) -> list[Tensor]:
    """θ̇ = −β⊙ω − scale·shrink·θ."""
    first, shrink, rates = moments.first, moments.shrink, []
    for weight, costate, root in zip(theta, omega, divisors(v, moments), strict=True):
        rate = -(costate / root) * _as(scale / first, costate)
        if isinstance(shrink, Tensor) or shrink:
            rate = rate - weight.detach() * _as(scale * shrink, weight)
        rates.append(rate)
    return rates


def averaged(omega: list[Tensor], g: list[Tensor], weight: float) -> list[Tensor]:
    """ω + weight·(g − ω), as PyTorch's optimizers compute a first moment."""
    if not _plain(omega):
        return [a.lerp(b, weight) for a, b in zip(omega, g, strict=True)]
    return list(foreach_lerp(omega, g, weight))


def penalised(g: list[Tensor], theta: list[Tensor], weight_decay: Scale) -> list[Tensor]:
    """∂L/∂θ + λθ, the gradient of L + ½λ|θ|²."""
    return plus(g, [weight.detach() for weight in theta], weight_decay)


def penalty(theta: list[Tensor], weight_decay: Scale) -> Tensor:
    """½λ|θ|², over all weights."""
    squares = torch.stack([weight.detach().square().sum() for weight in theta]).sum()
    return scaled([squares], 0.5 * weight_decay)[0]


def _as(scale: Scale, like: Tensor) -> Scale:
    return scale.to(like.dtype) if isinstance(scale, Tensor) else scale


def _plain(tensors: Sequence[Tensor]) -> bool:
    # In types of 16 bits an operation on a list may round its number first, one on a tensor does not.
    return all(tensor.dtype in PLAIN for tensor in tensors)
