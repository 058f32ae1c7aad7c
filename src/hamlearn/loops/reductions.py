"""Sums, products and extremes over axes, and matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hamlearn.loops import blas
from hamlearn.loops.call import Call, require
from hamlearn.loops.indices import ZERO, Index, counter
from hamlearn.loops.pointwise import elementwise
from hamlearn.loops.shapes import view
from hamlearn.loops.values import Value, computed
from hamlearn.loops.writer import LARGEST, PRODUCT, SMALLEST, SUM, Fold, Writer

aten = torch.ops.aten
FOLDED = {aten.sum: SUM, aten.prod: PRODUCT, aten.amax: LARGEST, aten.amin: SMALLEST}
EXTREMES = {aten.max: LARGEST, aten.min: SMALLEST, aten.argmax: LARGEST, aten.argmin: SMALLEST}


def folded(
    writer: Writer, source: Value, axes: Sequence[int], shape: tuple[int, ...], dtype: torch.dtype, fold: Fold
) -> Value:
    """A value folded over `axes`, computed in `dtype`."""
    source = elementwise(writer, "{0}", [source], source.shape, dtype, 0)
    if all(source.shape[axis] == 1 for axis in axes):
        return view(writer, source, shape)
    if not fold.reorders:
        source = writer.remember(source)
    return writer.reduce(source, axes, shape, fold)


def _fold(writer: Writer, call: Call) -> Value:
    return folded(writer, call["self"], call.axes(), call.shape, call.dtype, FOLDED[call.op])


def _averaged(
    writer: Writer, source: Value, axes: list[int], shape: Any, dtype: torch.dtype, less: float
) -> Value:
    """Σ over the axes, divided by the number of elements less `less`."""
    total = folded(writer, source, axes, shape, dtype, SUM)
    count = 1
    for axis in axes:
        count *= source.shape[axis]
    return elementwise(writer, "({0} / {1})", [total, max(count - less, 0)], shape, dtype, 2)


def _mean(writer: Writer, call: Call) -> Value:
    return _averaged(writer, call["self"], call.axes(), call.shape, call.dtype, 0)


def _var_mean(writer: Writer, call: Call) -> list[Value]:
    source, axes = writer.remember(call["self"]), call.axes()
    correction = 1 if call["correction"] is None else call["correction"]
    kept = tuple(1 if axis in axes else n for axis, n in enumerate(source.shape))
    mean = writer.remember(_averaged(writer, source, axes, kept, call.dtype, 0))
    away = elementwise(writer, "({0} - {1})", [source, mean], source.shape, call.dtype)
    square = elementwise(writer, "({0} * {0})", [away], source.shape, call.dtype)
    variance = _averaged(writer, square, axes, call.shape, call.dtype, correction)
    return [variance, view(writer, mean, call.shape)]


def _var(writer: Writer, call: Call) -> Value:
    return _var_mean(writer, call)[0]


def _extreme(writer: Writer, call: Call) -> Any:
    """The largest or smallest element, and where it is."""
    fold, source, axes = EXTREMES[call.op], writer.remember(call["self"]), call.axes()
    kept = tuple(1 if axis in axes else n for axis, n in enumerate(source.shape))
    best = folded(writer, source, axes, kept, source.dtype, fold)
    where = call.op in (aten.argmax, aten.argmin)
    if "dim" not in call.given and not where:
        require("other" not in call.given, "such a maximum")
        return view(writer, best, call.shape)
    require(len(axes) == 1 or len(source.shape) == 0 or call["dim"] is None, "such a maximum")
    strides = {axis: _count(source.shape[axis + 1 :]) if len(axes) > 1 else 1 for axis in axes}
    beyond = _count([source.shape[axis] for axis in axes])

    def at(i: Index) -> str:
        place = sum((i[axis] * stride for axis, stride in strides.items()), ZERO)
        x, top = source.at(i), best.at([(ZERO if axis in axes else n) for axis, n in enumerate(i)])
        return f"({x} == {top} || {x} != {x} ? {place} : {beyond})"

    place = computed(source.shape, torch.int64, at, [source, best], 2)
    first = folded(writer, place, axes, call.shape, torch.int64, SMALLEST)
    return first if where else [view(writer, best, call.shape), first]


def _count(lengths: Sequence[int]) -> int:
    count = 1
    for length in lengths:
        count *= length
    return count


def _cumsum(writer: Writer, call: Call) -> Value:
    if not call.shape:
        return elementwise(writer, "{0}", [call["self"]], call.shape, call.dtype, 0)
    source = elementwise(writer, "{0}", [call["self"]], call.shape, call.dtype, 0)
    return writer.accumulate(source, call.axis())


def product(writer: Writer, a: Value, b: Value, shape: tuple[int, ...], dtype: torch.dtype) -> Value:
    """Matrix product, of each pair of a batch if there is one."""
    a, b = writer.remember(a), writer.remember(b)
    batch, (rows, inner), columns = a.shape[:-2], a.shape[-2:], b.shape[-1]
    n = len(batch)
    if writer.on_cpu and not (a.lanes or b.lanes) and blas.is_faster(rows, inner, columns, dtype):
        return view(writer, blas.multiplied(writer, a, b, (*batch, rows, columns)), shape)

    def at(i: Index) -> str:
        return f"({a.at([*i[:n], i[n], i[n + 2]])} * {b.at([*i[:n], i[n + 2], i[n + 1]])})"

    products = computed((*batch, rows, columns, inner), dtype, at, [a, b], 1)
    if inner == 1:
        return products.viewed(shape, lambda i: [*i, ZERO])
    if columns > 1 and _last_axis_in_order(writer, b):
        # Σ over the middle axis, so that the innermost loop runs along the rows of b.
        swapped = products.viewed((*batch, rows, inner, columns), lambda i: [*i[:n], i[n], i[n + 2], i[n + 1]])
        return writer.reduce(swapped, [n + 1], shape, SUM)
    return writer.reduce(products, [n + 2], shape, SUM)


def _last_axis_in_order(writer: Writer, value: Value) -> bool:
    """Whether neighbours along the last axis lie next to each other in memory, or are the same."""
    along = [*[ZERO] * (len(value.shape) - 1), counter("i")]
    steps = [position.factor("i") for _, position in writer.reads_of(value, along)]
    return not value.lanes and all(step in (0, 1) for step in steps)


def _mm(writer: Writer, call: Call) -> Value:
    return product(writer, call["self"], call["mat2"], call.shape, call.dtype)


def _addmm(writer: Writer, call: Call) -> Value:
    names = {aten.addmm: ("mat1", "mat2"), aten.baddbmm: ("batch1", "batch2"), aten.addmv: ("mat", "vec")}
    a, b = (call[name] for name in names[call.op])
    result = (_matrix_vector if call.op is aten.addmv else product)(writer, a, b, call.shape, call.dtype)
    alpha, beta = call["alpha"], call["beta"]
    if alpha == beta == 1:
        return elementwise(writer, "({0} + {1})", [result, call["self"]], call.shape, call.dtype)
    if beta == 0:
        return elementwise(writer, "({0} * {1})", [result, alpha], call.shape, call.dtype)
    terms = [result, alpha, call["self"], beta]
    return elementwise(writer, "({0} * {1} + {2} * {3})", terms, call.shape, call.dtype, 3)


def _matrix_vector(writer: Writer, a: Value, b: Value, shape: tuple[int, ...], dtype: torch.dtype) -> Value:
    column = b.viewed((*b.shape, 1), lambda i: i[:1])
    return view(writer, product(writer, a, column, (*shape, 1), dtype), shape)


def _mv(writer: Writer, call: Call) -> Value:
    return _matrix_vector(writer, call["self"], call["vec"], call.shape, call.dtype)


def _dot(writer: Writer, call: Call) -> Value:
    a, b = call["self"], call["tensor" if call.op is aten.dot else "other"]
    products = elementwise(writer, "({0} * {1})", [a, b], a.shape, call.dtype)
    return folded(writer, products, [0], call.shape, call.dtype, SUM)


REDUCTIONS: dict[Any, Callable[[Writer, Call], Any]] = {
    **dict.fromkeys(FOLDED, _fold),
    **dict.fromkeys(EXTREMES, _extreme),
    aten.mean: _mean,
    aten.var: _var,
    aten.var_mean: _var_mean,
    aten.cumsum: _cumsum,
    **dict.fromkeys((aten.mm, aten.bmm), _mm),
    **dict.fromkeys((aten.addmm, aten.baddbmm, aten.addmv), _addmm),
    aten.mv: _mv,
    **dict.fromkeys((aten.dot, aten.vdot), _dot),
}
