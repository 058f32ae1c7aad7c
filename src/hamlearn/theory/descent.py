"""ω ← decay·ω + ∂H/∂θ and θ ← θ − step·ω in one pass over memory, where that gives the same bits as two."""

from __future__ import annotations

import operator
from collections import deque
from functools import cache, partial

import torch
from torch import Tensor

from hamlearn._base.scale import PLAIN
from hamlearn._base.torch_private import fused_sgd_, increment_version

_LINE = 64
"""Numbers left over after whole vectors are rounded differently by the fused pass than by separate calls."""
_MANY = 1 << 21
"""Numbers of a weight from which on what a step touches is in no cache."""


def fuses(theta: Tensor, omega: Tensor, grad: Tensor) -> bool:
    """Whether `descend_` takes these: all laid out alike, and in a type in which its bits were found to be right.

    Example:
        >>> weight = torch.zeros(8, 4)
        >>> fuses(weight, torch.zeros(8, 4).T, weight)
        False
    """
    tensors = theta, omega, grad
    return (
        not theta.numel() % _LINE
        and all(
            t.is_cpu and t.is_contiguous() and t.dtype is theta.dtype and t.shape == theta.shape for t in tensors
        )
        and type(omega) is Tensor
        and type(grad) is Tensor
        and _same_bits(theta.dtype)
    )


def pays(theta: Tensor) -> bool:
    """Whether one pass over memory is faster than three.

    Several threads that share what fits into their caches lose more by the fused pass than it saves (two cores of
    an EPYC, 1,024 by 1,024: 0.53 against 0.33 ms; alone, one of them takes 0.14 against 0.19).

    Example:
        >>> pays(torch.zeros(2048, 1024))
        True
    """
    return theta.numel() >= _MANY or torch.get_num_threads() == 1


def descend_(theta: Tensor, omega: Tensor, grad: Tensor, decay: float, step: float) -> None:
    """ω ← decay·ω + ∂H/∂θ, then θ ← θ − step·ω, in place: all of it, or nothing where an interrupt comes first.

    The versions of θ and ω tell that it has been done. Python looks for interrupts between its own instructions,
    and `deque` calls one function after the other without any.
    """
    move = _fused(theta, omega, grad, decay, step)
    deque(map(operator.call, (move, partial(increment_version, [theta, omega]))), maxlen=0)


def _fused(theta: Tensor, omega: Tensor, grad: Tensor, decay: float, step: float) -> partial[None]:
    return partial(
        fused_sgd_,
        [theta],
        [grad],
        [omega],
        weight_decay=0.0,
        momentum=decay,
        lr=step,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


@cache
def _same_bits(dtype: torch.dtype) -> bool:
    """Whether this build of PyTorch rounds in one pass as it does in three calls, on this processor."""
    if fused_sgd_ is None or dtype not in PLAIN:
        return False
    draw = torch.Generator().manual_seed(0)
    theta, omega, grad = (torch.randn(1024 * _LINE, generator=draw, dtype=dtype, device="cpu") for _ in range(3))
    expected = omega.mul(0.9).add_(grad)
    moved = theta.add(expected, alpha=-0.01)
    _fused(theta, omega, grad, 0.9, 0.01)()
    return torch.equal(omega, expected) and torch.equal(theta, moved)
