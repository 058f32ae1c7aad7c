"""The shape and type of what an operation gives, in the plainest of cases.

On the device meta PyTorch works out in Python what comes of numbers of two types, laid out in different ways; the
first time it imports a compiler for that. Most operations of a step are given floating-point numbers of one type,
one after another, and what they give is plain.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hamlearn._base.torch_private import aten as private_aten

aten = torch.ops.aten
_META = torch.device("meta")


def plainly(func: Any, given: Sequence[Any], named: dict[str, Any]) -> Any:
    """What an operation gives in the plainest of cases; `None` where it has to be called to tell.

    Example:
        >>> x = torch.ones(2, 3, device="meta")
        >>> plainly(torch.ops.aten.mul.Tensor, [x, x], {}).shape
        torch.Size([2, 3])
        >>> plainly(torch.ops.aten.mul.Tensor, [x, x.double()], {})
    """
    rule = _PLAINLY.get(func)
    return None if rule is None else rule(*given, **named)


@dataclass(frozen=True)
class _Layout:
    """Floating-point numbers, row by row or, where they have two axes, column by column."""

    shape: torch.Size
    dtype: torch.dtype
    turned: bool

    def empty(self, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor laid out like this."""
        sizes = reversed(self.shape) if self.turned else self.shape
        made = torch.empty(tuple(sizes), dtype=dtype or self.dtype, device=_META)
        return made.t() if self.turned else made


def _common(*given: Any) -> _Layout | None:
    """The layout of a result, where all that an operation is given has one shape, or no axes, and one type."""
    tensors = [each for each in given if isinstance(each, Tensor)]
    largest = max(tensors, key=Tensor.dim)
    shape, dtype, turned = largest.shape, largest.dtype, None
    if not dtype.is_floating_point or any(isinstance(each, complex) for each in given):
        return None
    for each in tensors:
        if each.shape != shape:
            if each.dim() or each.is_complex():
                return None
            # Without axes, a number does not change the type of those that have some.
            continue
        if each.dtype != dtype:
            return None
        if _by_rows(each):
            by_columns = False
        elif each.dim() == 2 and each.t().is_contiguous():
            by_columns = True
        else:
            return None
        if turned is None:
            # Where they differ, PyTorch goes by the first.
            turned = by_columns
    return _Layout(shape, dtype, bool(turned))


def _by_rows(tensor: Tensor) -> bool:
    """Whether elements lie in their order, though there may be gaps, as in some columns of a matrix."""
    if tensor.is_contiguous():
        return True
    strides = tensor.stride()
    falling = all(one > next_one for one, next_one in itertools.pairwise(strides))
    return falling and strides[-1] > 0 and all(size > 1 for size in tensor.shape)


def _elementwise(*given: Any, **named: Any) -> Tensor | None:
    found = _common(*given)
    return None if found is None else found.empty()


def _in_place(*given: Any, **named: Any) -> Tensor | None:
    found = _common(*given)
    return None if found is None or given[0].shape != found.shape else given[0]


def _compared(*given: Any) -> Tensor | None:
    found = _common(*given)
    return None if found is None else found.empty(torch.bool)


def _alike(tensor: Tensor, dtype: Any = None, memory_format: Any = None, **named: Any) -> Tensor | None:
    if not tensor.is_contiguous() or memory_format not in (None, torch.preserve_format) or named.get("layout"):
        return None
    return torch.empty(tensor.shape, dtype=dtype or tensor.dtype, device=_META)


def _chosen(condition: Tensor, one: Tensor, other: Tensor) -> Tensor | None:
    if not (one.shape == other.shape and one.is_contiguous() and other.is_contiguous()):
        return None
    fits = condition.dtype is torch.bool and condition.is_contiguous()
    return _elementwise(one, other) if fits and (not condition.dim() or condition.shape == one.shape) else None


def _each(tensors: Sequence[Tensor], *others: Any) -> list[Tensor] | None:
    found = []
    for place, tensor in enumerate(tensors):
        made = _elementwise(tensor, *(each[place] if isinstance(each, list) else each for each in others))
        if made is None:
            return None
        found.append(made)
    return found


def _product(a: Tensor, b: Tensor) -> Tensor | None:
    if a.shape[1] != b.shape[0] or a.dtype != b.dtype or not a.is_floating_point():
        return None
    return torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=_META)


def _addmm(bias: Tensor, a: Tensor, b: Tensor) -> Tensor | None:
    found = _product(a, b)
    if found is None or bias.dtype != a.dtype or not bias.is_contiguous():
        return None
    return found if bias.shape in (found.shape, found.shape[1:]) else None


def _joined(tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    """Tensors of one type and one number of axes, of the same sizes but along one of them."""
    first, rank = tensors[0], tensors[0].dim()
    if not rank or not -rank <= dim < rank:
        return None
    axis = dim % rank
    sizes = list(first.shape)
    sizes[axis] = sum(each.shape[axis] if each.dim() == rank else 0 for each in tensors)
    for each in tensors:
        rest = [*each.shape[:axis], sizes[axis], *each.shape[axis + 1 :]]
        if rest != sizes or each.dtype != first.dtype or not each.is_contiguous():
            return None
    return torch.empty(sizes, dtype=first.dtype, device=_META)


def _stacked(tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    sizes, dtype = tensors[0].shape, tensors[0].dtype
    axis = dim % (len(sizes) + 1)
    if any(each.shape != sizes or each.dtype != dtype or not each.is_contiguous() for each in tensors):
        return None
    return torch.empty((*sizes[:axis], len(tensors), *sizes[axis:]), dtype=dtype, device=_META)


def _summed(tensor: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, dtype: Any = None) -> Any:
    if not tensor.is_floating_point() or dtype is not None:
        return None
    rank = tensor.dim()
    axes = {axis % rank for axis in dim} if dim and rank else set(range(rank))
    sizes = [1 if axis in axes else size for axis, size in enumerate(tensor.shape) if keepdim or axis not in axes]
    return torch.empty(sizes, dtype=tensor.dtype, device=_META)


def _loss(y: Tensor, target: Tensor, reduction: int = 1) -> Tensor | None:
    found = _elementwise(y, target)
    if found is None or y.shape != target.shape:
        return None
    return found if reduction == 0 else torch.empty((), dtype=y.dtype, device=_META)


def _loss_backward(grad: Tensor, y: Tensor, target: Tensor, reduction: int) -> Tensor | None:
    return _elementwise(grad, y, target) if y.shape == target.shape else None


_PLAINLY: dict[Any, Callable[..., Any]] = {
    private_aten("_foreach_add.List"): _each,
    private_aten("_foreach_mul.Scalar"): _each,
    aten.abs.default: _elementwise,
    aten.add.Tensor: _elementwise,
    aten.addmm.default: _addmm,
    aten.cat.default: _joined,
    aten.cos.default: _elementwise,
    aten.div.Tensor: _elementwise,
    aten.empty_like.default: _alike,
    aten.exp.default: _elementwise,
    aten.mean.default: _summed,
    aten.mean.dim: _summed,
    aten.mm.default: _product,
    aten.mse_loss.default: _loss,
    aten.mse_loss_backward.default: _loss_backward,
    aten.mul.Tensor: _elementwise,
    aten.neg.default: _elementwise,
    aten.ones_like.default: _alike,
    aten.pow.Tensor_Scalar: _elementwise,
    aten.rsub.Scalar: _elementwise,
    aten.sigmoid.default: _elementwise,
    aten.sigmoid_.default: _in_place,
    aten.sigmoid_backward.default: _elementwise,
    aten.sin.default: _elementwise,
    aten.stack.default: _stacked,
    aten.sub.Tensor: _elementwise,
    aten.sum.default: _summed,
    aten.sum.dim_IntList: _summed,
    aten.tanh.default: _elementwise,
    aten.tanh_.default: _in_place,
    aten.tanh_backward.default: _elementwise,
    aten.where.self: _chosen,
    aten.zeros_like.default: _alike,
}
_PLAINLY |= {
    getattr(op, kind): _compared
    for op in (aten.eq, aten.ge, aten.gt, aten.le, aten.lt, aten.ne)
    for kind in ("Tensor", "Scalar")
}
