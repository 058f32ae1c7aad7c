"""Lists of tensors times a rate, where the rate is a number or, inside a compiled step, a tensor without axes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hamlearn._base.torch_private import foreach_add, foreach_add_, foreach_mul, foreach_mul_
from hamlearn.errors import NonFiniteError

Scale = float | Tensor
_SMALL = 60_000.0
"""What every type of floating-point numbers can hold."""
PLAIN = (torch.float32, torch.float64)


def is_one(scale: Scale) -> bool:
    """Whether to multiply by this rate would change nothing; a rate that is a tensor is not looked at.

    Example:
        >>> is_one(1.0), is_one(torch.tensor(1.0))
        (True, False)
    """
    return not isinstance(scale, Tensor) and scale == 1.0


def scaled(tensors: list[Tensor], by: Scale) -> list[Tensor]:
    """Each tensor times `by`.

    Example:
        >>> scaled([torch.ones(2)], 3.0)
        [tensor([3., 3.])]
    """
    if isinstance(by, Tensor):
        return [tensor * by.to(tensor.dtype) for tensor in tensors]
    if not tensors:  # PyTorch raises for empty lists.
        return []
    if not -_SMALL < by < _SMALL:
        _require_held(by, tensors)
    # PyTorch wraps a number once for each tensor, which takes longer than small products themselves. A tensor of
    # their own type gives the same bits, in the types that compute in themselves.
    dtype = tensors[0].dtype
    if dtype not in PLAIN:
        return list(foreach_mul(tensors, by))
    for tensor in tensors:
        if type(tensor) is not Tensor or not tensor.is_cpu or tensor.dtype is not dtype:
            return list(foreach_mul(tensors, by))
    return list(foreach_mul(tensors, torch.scalar_tensor(by, dtype=dtype, device="cpu")))


def scale_(tensors: list[Tensor], by: float) -> None:
    """Multiply each tensor by `by`, in place, and round as PyTorch's own optimizers do on one tensor at a time."""
    if all(tensor.dtype in PLAIN for tensor in tensors):
        foreach_mul_(tensors, by)
        return
    # In types of 16 bits the product of a list rounds the number first.
    for tensor in tensors:
        tensor.mul_(by)


def plus(tensors: list[Tensor], others: list[Tensor], by: Scale) -> list[Tensor]:
    """Each tensor plus `by` times its partner."""
    if isinstance(by, Tensor):
        return [a + b * by.to(a.dtype) for a, b in zip(tensors, others, strict=True)]
    if not tensors:
        return []
    if not -_SMALL < by < _SMALL:
        _require_held(by, tensors)
    return list(foreach_add(tensors, others, alpha=by))


def add_(tensors: list[Tensor], others: list[Tensor], by: Scale) -> None:
    """Add `by` times its partner to each tensor, in place."""
    if isinstance(by, Tensor):
        for a, b in zip(tensors, others, strict=True):
            a.add_(b * by.to(a.dtype))
    elif tensors:
        if not -_SMALL < by < _SMALL:
            _require_held(by, tensors)
        foreach_add_(tensors, others, alpha=by)


def add_some_(tensors: list[Tensor], others: Sequence[Tensor | None], by: Scale) -> None:
    """Add `by` times its partner to each tensor that has one, in place."""
    pairs = [(a, b) for a, b in zip(tensors, others, strict=True) if b is not None]
    add_([a for a, _ in pairs], [b for _, b in pairs], by)


def _require_held(by: float, tensors: list[Tensor]) -> None:
    """Raise if the tensors' type cannot hold the rate."""
    for tensor in tensors:
        if not abs(by) <= torch.finfo(tensor.dtype).max:
            raise NonFiniteError(
                f"a product of rates is {by:g}, which {tensor.dtype} cannot hold: lower tau, beta or phi, or "
                "look at the time step of the sample"
            )


def seed(like: Tensor, value: Scale) -> Tensor:
    """A cotangent for a scalar.

    Example:
        >>> seed(torch.tensor(2.0), 0.5)
        tensor(0.5000)
    """
    if isinstance(value, Tensor):
        return value.to(like.dtype).expand_as(like)
    return torch.full_like(like, value)
