"""Counts of indices out of range, recorded with a step: a loop in C does not raise as eager PyTorch does.

A value that is read out of range is NaN if its type has one, but an entry of a table of integers, a row of a
one-hot code or a place to write to has no such value. So the count becomes part of the step's result, and a step
with any fault is taken eagerly, which says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch.overrides import TorchFunctionMode

from hamlearn._base.torch_private import DispatchMode
from hamlearn.loops.values import UnsupportedError

aten = torch.ops.aten
Bounds = list[tuple[Tensor, int, int]]
"""Indices, with the least allowed and the first that is not."""


def _along(tensor: Tensor, dim: int, index: Tensor, *_: Any) -> Bounds:
    return [(index, 0, tensor.shape[dim] if tensor.dim() else 1)]


def _rows(weight: Tensor, indices: Tensor, *_: Any) -> Bounds:
    return [(indices, 0, weight.shape[0])]


def _axes(tensor: Tensor, indices: Any, *_: Any) -> Bounds:
    sizes = [(where, tensor.shape[axis]) for axis, where in enumerate(indices) if where is not None]
    return [(where, -size, size) for where, size in sizes if where.dtype != torch.bool]


def _classes(y: Tensor, target: Tensor, weight: Any, reduction: int, ignored: int) -> Bounds:
    known = torch.where(target == ignored, torch.zeros_like(target), target)
    return [(known, 0, y.shape[1] if y.dim() > 1 else y.shape[0])]


_BOUNDS: dict[Any, Callable[..., Bounds]] = {
    aten.gather: _along,
    aten.index_select: _along,
    aten.scatter: _along,
    aten.scatter_: _along,
    aten.scatter_add: _along,
    aten.scatter_add_: _along,
    aten.index_add: _along,
    aten.index_add_: _along,
    aten.embedding: _rows,
    aten.index: _axes,
    aten.index_put: _axes,
    aten.index_put_: _axes,
    aten.nll_loss_forward: _classes,
    aten.nll_loss2d_forward: _classes,
}


class _Operations(DispatchMode):
    def __init__(self, found: list[Tensor]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        bounds = _BOUNDS.get(getattr(func, "overloadpacket", None))
        if bounds is not None:
            self.found += [_outside(*bound) for bound in bounds(*args)]
        return func(*args, **(kwargs or {}))


class _Functions(TorchFunctionMode):
    """One-hot codes are taken apart before any operation of theirs can be seen."""

    def __init__(self, found: list[Tensor]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func is one_hot:
            index: Tensor = args[0] if args else given["input"]
            classes = args[1] if len(args) > 1 else given.get("num_classes", -1)
            if classes < 0:
                raise UnsupportedError("one_hot() without num_classes looks at numbers to decide what to do")
            self.found.append(_outside(index, 0, classes))
        return func(*args, **given)


@contextmanager
def counted() -> Iterator[list[Tensor]]:
    """Within, gathers for each index that is used how many of its entries are out of range."""
    found: list[Tensor] = []
    with _Functions(found), _Operations(found):
        yield found


def _outside(index: Tensor, low: int, high: int) -> Tensor:
    return ((index < low) | (index >= high)).sum()
