"""Gather and scatter: elements at computed indices, read and written.

Eager PyTorch raises for an index that is out of range. A loop cannot: values that are read there are NaN, and
values that are written there go to the nearest place in range, so that memory is safe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from hamlearn.loops.call import Call, require
from hamlearn.loops.indices import ZERO, Index, counter, replaced
from hamlearn.loops.pointwise import elementwise
from hamlearn.loops.values import Value, broadcast, cast, choice, computed, constant
from hamlearn.loops.writer import Writer

aten = torch.ops.aten


@dataclass
class Places:
    """Where in a tensor each element of another one comes from, or goes to.

    Attributes:
        shape: Sizes of the other one.
        lengths: Sizes of the tensor.
        by: For each axis of the tensor: an axis of the other one, or a value of its shape that holds the index.
        end: C function that brings an index into range.
    """

    shape: tuple[int, ...]
    lengths: tuple[int, ...]
    by: list[int | Value]
    end: str = "clip"

    @property
    def values(self) -> list[Value]:
        """The indices that are values."""
        return [by for by in self.by if isinstance(by, Value)]

    def at(self, i: Index) -> Index:
        """The place of element `i`."""
        return [
            counter(f"{self.end}({by.at(i)}, {length})") if isinstance(by, Value) else i[by]
            for by, length in zip(self.by, self.lengths, strict=True)
        ]

    def inside(self, i: Index) -> str:
        """Whether all indices of element `i` are in range."""
        return " & ".join(
            f"within({by.at(i)}, {-length if self.end == 'wrapped' else 0}, {length})"
            for by, length in zip(self.by, self.lengths, strict=True)
            if isinstance(by, Value)
        )


def _along(writer: Writer, tensor: Value, axis: int, where: Value, shape: tuple[int, ...]) -> Places:
    """Places that differ from an element's own along one axis alone."""
    _require_numbers(where)
    by: list[int | Value] = list(range(len(tensor.shape)))
    by[axis] = broadcast(writer.remember(where), shape)
    return Places(shape, tensor.shape, by)


def _require_numbers(where: Value) -> None:
    require(where.dtype in (torch.int64, torch.int32), f"an index of {where.dtype}")


def _read(writer: Writer, source: Value, places: Places, call: Call) -> Value:
    if not source.numel:
        return constant(0, call.dtype, call.shape)
    source = writer.remember(source)

    def at(i: Index) -> str:
        found = source.at(places.at(i))
        if not call.dtype.is_floating_point or not places.values:
            return found
        # A place without an element is not a number, so that it cannot be mistaken for a value.
        return choice(call.dtype, places.inside(i), found, "NAN")

    return computed(call.shape, call.dtype, at, [source, *places.values], 1)


def _write(writer: Writer, base: Value, source: Any, places: Places, adds: bool) -> Value:
    value = source if isinstance(source, Value) else constant(source, base.dtype)
    value = broadcast(writer.remember(value), places.shape)
    apart = [by for by in places.by if isinstance(by, int)]
    return writer.scatter(base, value, places.at, places.values, "+=" if adds else "=", apart)


def _gather(writer: Writer, call: Call) -> Value:
    source, where = call["self"], call["index"]
    if not source.shape:
        return broadcast(source, call.shape)
    return _read(writer, source, _along(writer, source, call.axis(), where, call.shape), call)


def _line(where: Value, axis: int, shape: tuple[int, ...]) -> Value:
    """An index with one entry per position along `axis`, under the indices of `shape`."""
    return where.viewed(shape, lambda i: [i[axis]] if where.shape else [])


def _index_select(writer: Writer, call: Call) -> Value:
    source, axis = call["self"], call.axis()
    require(bool(source.shape), "a choice from a number")
    where = _line(writer.remember(call["index"]), axis, call.shape)
    return _read(writer, source, _along(writer, source, axis, where, call.shape), call)


def _index_add(writer: Writer, call: Call) -> Value:
    base, source, axis = call["self"], call["source"], call.axis()
    require(bool(base.shape), "an addition to a number by index")
    where = _line(writer.remember(call["index"]), axis, source.shape)
    scaled = elementwise(writer, "({0} * {1})", [source, call["alpha"]], source.shape, call.dtype)
    return _write(writer, base, scaled, _along(writer, base, axis, where, source.shape), True)


def _scatter(writer: Writer, call: Call) -> Value:
    base, axis, where = call["self"], call.axis(), call["index"]
    source = call.given.get("src", call.given.get("value"))
    require("reduce" not in call.given and bool(base.shape), "such a scatter")
    if isinstance(source, Value):
        source = source.viewed(where.shape, lambda i: i)
    adds = call.op is aten.scatter_add
    if adds or where.shape != tuple(1 if k == axis else n for k, n in enumerate(base.shape)):
        return _write(writer, base, source, _along(writer, base, axis, where, where.shape), adds)
    # One entry in each row: the row is computed whole, with a question, and joins other loops.
    _require_numbers(where)
    entry = source if isinstance(source, Value) else constant(source or 0, call.dtype, where.shape)
    written = cast(entry, call.dtype)

    def at(i: Index) -> str:
        first = replaced(i, axis, ZERO)
        return choice(call.dtype, f"{where.at(first)} == {i[axis]}", written(first), base.at(i))

    return computed(call.shape, call.dtype, at, [base, where, entry], 2)


def _embedding(writer: Writer, call: Call) -> Value:
    weight, where = call["weight"], writer.remember(call["indices"])
    rows = where.viewed(call.shape, lambda i: i[:-1])
    _require_numbers(where)
    return _read(writer, weight, Places(call.shape, weight.shape, [rows, len(call.shape) - 1]), call)


def _embedding_backward(writer: Writer, call: Call) -> Value:
    require(not call["scale_grad_by_freq"], "a gradient scaled by frequency")
    source, where, padding = call["grad_output"], writer.remember(call["indices"]), call["padding_idx"]
    rows = where.viewed(source.shape, lambda i: i[:-1])
    kept = computed(
        source.shape,
        call.dtype,
        lambda i: choice(call.dtype, f"{rows.at(i)} == {padding}", "0", source.at(i)),
        [rows, source],
        1,
    )
    places = Places(source.shape, call.shape, [rows, len(source.shape) - 1])
    return _write(writer, constant(0, call.dtype, call.shape), kept, places, True)


def _by_all(writer: Writer, tensor: Value, indices: list[Value | None]) -> Places:
    """Places named by one index per axis, or none for all of an axis; an index may count from the end."""
    chosen = {axis: writer.remember(where) for axis, where in enumerate(indices) if where is not None}
    for where in chosen.values():
        _require_numbers(where)
    block = torch.broadcast_shapes(*(where.shape for where in chosen.values()))
    first, last = min(chosen), max(chosen)
    start = first if last - first + 1 == len(chosen) else 0
    rest = [axis for axis in range(len(tensor.shape)) if axis not in chosen]
    before = [axis for axis in rest if axis < first] if start else []
    after = rest[len(before) :]
    shape = (*(tensor.shape[a] for a in before), *block, *(tensor.shape[a] for a in after))
    own = {axis: k for k, axis in enumerate(before)}
    own |= {axis: len(before) + len(block) + k for k, axis in enumerate(after)}
    stop = len(before) + len(block)

    def spread(where: Value) -> Value:
        return broadcast(where, block).viewed(shape, lambda i: i[len(before) : stop])

    by = [spread(chosen[axis]) if axis in chosen else own[axis] for axis in range(len(tensor.shape))]
    return Places(shape, tensor.shape, by, "wrapped")


def _index(writer: Writer, call: Call) -> Value:
    return _read(writer, call["self"], _by_all(writer, call["self"], call["indices"]), call)


def _index_put(writer: Writer, call: Call) -> Value:
    places = _by_all(writer, call["self"], call["indices"])
    return _write(writer, call["self"], call["values"], places, bool(call["accumulate"]))


GATHER_SCATTER: dict[Any, Callable[[Writer, Call], Value]] = {
    aten.gather: _gather,
    aten.index_select: _index_select,
    aten.index_add: _index_add,
    aten.scatter: _scatter,
    aten.scatter_add: _scatter,
    aten.embedding: _embedding,
    aten.embedding_dense_backward: _embedding_backward,
    aten.index: _index,
    aten.index_put: _index_put,
}
