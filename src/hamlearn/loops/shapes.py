"""The same elements under other indices, pieces put together, and values made from nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hamlearn._base.torch_private import aten as private_aten
from hamlearn.loops.call import Call, require
from hamlearn.loops.indices import ZERO, Affine, Index, counter, replaced
from hamlearn.loops.pointwise import elementwise
from hamlearn.loops.values import C_TYPES, Value, broadcast, computed, constant
from hamlearn.loops.writer import Writer

aten = torch.ops.aten
EMPTY = (aten.empty, aten.empty_like, aten.new_empty, aten.empty_strided, aten.empty_permuted)


def view(writer: Writer, source: Value, shape: tuple[int, ...]) -> Value:
    """The same elements, in the same order, in another shape."""
    if not source.memory and [n for n in source.shape if n != 1] == [n for n in shape if n != 1]:
        old = source.shape

        def remap(index: Index) -> Index:
            kept = iter([i for i, n in zip(index, shape, strict=True) if n != 1])
            return [next(kept) if n != 1 else ZERO for n in old]

        return source.viewed(shape, remap)
    stored = source if source.memory else writer.store(source)
    assert stored.memory is not None
    return writer.in_memory(stored.memory, shape, stored.dtype, stored.lanes)


def _view(writer: Writer, call: Call) -> Value:
    require(call["self"].dtype == call.dtype, "a view of numbers as bits of another type")
    return view(writer, call["self"], call.shape)


def _as_strided(writer: Writer, call: Call) -> Value:
    require(call.plain, "a view of a tensor with gaps")
    flat, first = view(writer, call["self"], (call["self"].numel,)), call["storage_offset"] or 0

    def remap(index: Index) -> Index:
        return [sum((i * stride for i, stride in zip(index, call["stride"], strict=True)), Affine(start=first))]

    return flat.viewed(call.shape, remap)


def _permuted(source: Value, order: list[int]) -> Value:
    back = [order.index(axis) for axis in range(len(order))]
    shape = tuple(source.shape[axis] for axis in order)
    return source.viewed(shape, lambda i: [i[axis] for axis in back])


def _permute(writer: Writer, call: Call) -> Value:
    return _permuted(call["self"], [axis % len(call.shape) for axis in call["dims"]])


def _t(writer: Writer, call: Call) -> Value:
    return _permuted(call["self"], list(range(len(call.shape)))[::-1])


def _transpose(writer: Writer, call: Call) -> Value:
    order = list(range(len(call.shape)))
    a, b = call.axis("dim0"), call.axis("dim1")
    if order:
        order[a], order[b] = order[b], order[a]
    return _permuted(call["self"], order)


def _expand(writer: Writer, call: Call) -> Value:
    return broadcast(writer.remember(call["self"]), call.shape)


def _flip(writer: Writer, call: Call) -> Value:
    flipped = {axis % max(len(call.shape), 1) for axis in call["dims"]}
    n = call.shape
    return call["self"].viewed(n, lambda i: [x * -1 + (n[k] - 1) if k in flipped else x for k, x in enumerate(i)])


def _roll(writer: Writer, call: Call) -> Value:
    require(len(call["dims"]) == len(call["shifts"]), "a roll over all axes at once")
    value = call["self"]
    for axis, shift in zip(call["dims"], call["shifts"], strict=True):
        value = _rolled(value, axis % len(call.shape), shift)
    return value


def _rolled(source: Value, axis: int, shift: int) -> Value:
    length = source.shape[axis]
    if length < 2:
        return source
    start = -shift % length
    return source.viewed(source.shape, lambda i: replaced(i, axis, counter(f"({i[axis] + start}) % {length}")))


def part(source: Value, axis: int, start: int, step: int, shape: tuple[int, ...]) -> Value:
    """Some elements along an axis."""
    return source.viewed(shape, lambda i: replaced(i, axis, i[axis] * step + start))


def _begin(call: Call, size: int) -> int:
    start = call["start"] or 0
    return max(start + size, 0) if start < 0 else min(start, size)


def _slice(writer: Writer, call: Call) -> Value:
    source, axis = call["self"], call.axis()
    return part(source, axis, _begin(call, source.shape[axis]), call["step"], call.shape)


def _selected(source: Value, axis: int, at: int) -> Value:
    axis %= len(source.shape)
    place = Affine(start=at % source.shape[axis])
    shape = (*source.shape[:axis], *source.shape[axis + 1 :])
    return source.viewed(shape, lambda i: [*i[:axis], place, *i[axis:]])


def _select(writer: Writer, call: Call) -> Value:
    return _selected(call["self"], call["dim"], call["index"])


def _split(writer: Writer, call: Call) -> list[Value]:
    axis, start, parts = call.axis(), 0, []
    for shape in call.shapes:
        parts.append(part(call["self"], axis, start, 1, shape))
        start += shape[axis]
    return parts


def _unbind(writer: Writer, call: Call) -> list[Value]:
    return [_selected(call["self"], call["dim"], at) for at in range(len(call.shapes))]


def _cat(writer: Writer, call: Call) -> Value:
    pieces = [piece for piece in call["tensors"] if piece.numel]
    return writer.store_parts(pieces, call["dim"] % len(call.shape), call.shape, call.dtype)


def _slice_scatter(writer: Writer, call: Call) -> Value:
    axis, step = call.axis(), call["step"]
    start = _begin(call, call.shape[axis])
    return writer.scatter(call["self"], call["src"], lambda i: replaced(i, axis, i[axis] * step + start))


def _select_scatter(writer: Writer, call: Call) -> Value:
    axis = call.axis()
    place = Affine(start=call["index"] % call.shape[axis])
    return writer.scatter(call["self"], call["src"], lambda i: [*i[:axis], place, *i[axis:]])


def _pad(writer: Writer, call: Call) -> Value:
    source, pad, rank = call["self"], call["pad"], len(call.shape)
    before = [0] * (rank - len(pad) // 2) + pad[::2][::-1]
    after = [0] * (rank - len(pad) // 2) + pad[1::2][::-1]
    kept = tuple(max(n + min(b, 0) + min(a, 0), 0) for n, b, a in zip(source.shape, before, after, strict=True))
    inner = source.viewed(kept, lambda i: [x + max(-b, 0) for x, b in zip(i, before, strict=True)])
    base = constant(call["value"], call.dtype, call.shape)
    return writer.scatter(base, inner, lambda i: [x + max(b, 0) for x, b in zip(i, before, strict=True)])


def _full(writer: Writer, call: Call) -> Value:
    number = call["s"] if call.op is aten.scalar_tensor else call["fill_value"]
    if isinstance(number, Value):
        return elementwise(writer, "{0}", [number], call.shape, call.dtype, 0)
    return constant(number, call.dtype, call.shape)


def _zeros(writer: Writer, call: Call) -> Value:
    return constant(0, call.dtype, call.shape)


def _ones(writer: Writer, call: Call) -> Value:
    return constant(1, call.dtype, call.shape)


def _eye(writer: Writer, call: Call) -> Value:
    return computed(call.shape, call.dtype, lambda i: f"({i[0]} == {i[1]})", [], 1)


def _arange(writer: Writer, call: Call) -> Value:
    start, step = call.given.get("start", 0), call.given.get("step", 1)
    first, by = (constant(x, call.dtype).at([]) for x in (start, step))
    require(all(x == int(x) for x in (start, step)) or call.dtype.is_floating_point, "such a range of integers")
    return computed(call.shape, call.dtype, lambda i: f"({first} + {by} * ({C_TYPES[call.dtype]})({i[0]}))", [], 1)


SHAPES: dict[Any, Callable[[Writer, Call], Any]] = {
    **dict.fromkeys((aten.view, private_aten("_unsafe_view"), aten.reshape, aten.unsqueeze, aten.squeeze), _view),
    aten.as_strided: _as_strided,
    aten.permute: _permute,
    aten.t: _t,
    aten.transpose: _transpose,
    aten.expand: _expand,
    aten.flip: _flip,
    aten.roll: _roll,
    aten.slice: _slice,
    aten.select: _select,
    **dict.fromkeys((aten.split, aten.unsafe_split, aten.split_with_sizes), _split),
    aten.unbind: _unbind,
    aten.cat: _cat,
    aten.slice_scatter: _slice_scatter,
    aten.select_scatter: _select_scatter,
    aten.constant_pad_nd: _pad,
    **dict.fromkeys((aten.full, aten.full_like, aten.new_full, aten.scalar_tensor), _full),
    **dict.fromkeys((aten.zeros, aten.zeros_like, aten.new_zeros, *EMPTY), _zeros),
    **dict.fromkeys((aten.ones, aten.ones_like, aten.new_ones), _ones),
    aten.eye: _eye,
    aten.arange: _arange,
}
