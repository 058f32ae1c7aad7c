"""Where values are put into memory: one element at a time, folded, or scattered."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from hamlearn.loops.indices import ZERO, Affine, Index, counter, linear, own_index, replaced
from hamlearn.loops.nests import Folding, Nest, join
from hamlearn.loops.values import C_TYPES, Value, cast, choice, literal

ON_STACK = 16384
"""Bytes that a row of sums may take on the stack."""
ALIGNMENT = 64
"""Bytes of the longest vector: all memory of the loops' own begins and ends at a multiple of it."""


@dataclass(frozen=True)
class Fold:
    """How elements are folded into one.

    Attributes:
        update: Statement in `{acc}` and `{x}`.
        start: Value of no elements.
        reorders: Whether the compiler may choose the order, to fold several elements at once.
    """

    update: str
    start: float
    reorders: bool = True


SUM = Fold("{acc} += {x}", 0)
PRODUCT = Fold("{acc} *= {x}", 1)
# NaN wins, and stays.
LARGEST = Fold("{acc} = {x} > {acc} || {x} != {x} ? {x} : {acc}", float("-inf"), False)
SMALLEST = Fold("{acc} = {x} < {acc} || {x} != {x} ? {x} : {acc}", float("inf"), False)


class Writer:
    """Collects loop nests.

    Args:
        lanes: Number of members of a population; 1 for a single network.
        on_cpu: Whether the loops are for a CPU: functions are computed in whole vectors, and wide products by a
            BLAS, where that is faster.

    Attributes:
        replaces: Memory that the present operation may change in place, since its old value is not read again.
    """

    def __init__(self, lanes: int = 1, on_cpu: bool = True) -> None:
        self.lanes, self.on_cpu = lanes, on_cpu
        self.nests: list[Nest] = []
        self.memory: list[tuple[str, torch.dtype, int]] = []
        self.types: dict[str, torch.dtype] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.products: set[str] = set()
        self.replaces: str | None = None
        self._reads: list[tuple[str, Affine]] = []

    @property
    def padded(self) -> set[str]:
        """Names of the loops' own memory."""
        return {name for name, _, _ in self.memory}

    def in_memory(self, name: str, shape: Sequence[int], dtype: torch.dtype, lanes: bool) -> Value:
        """A value that is read from the memory `name`."""
        shape = tuple(shape)
        self.types[name] = dtype
        self.shapes.setdefault(name, shape)

        def at(index: Index) -> str:
            position = linear(shape, index)
            self._reads.append((name, position))
            return f"{name}[{self._laned(position, lanes)}]"

        return Value(shape, dtype, lanes, at, 0, frozenset([name]), name)

    def remember(self, value: Value) -> Value:
        """The value, in memory if computing an element costs anything."""
        return self.store(value) if value.cost else value

    def store(self, value: Value, into: str | None = None) -> Value:
        """Put a value into memory: `into`, or new memory."""
        name = into or self.new_memory(value.shape, value.dtype, value.lanes)
        if value.numel:
            index = own_index(value.shape)
            position = linear(value.shape, index)
            self._reads = []
            statement = f"{name}[{self._laned(position, value.lanes)}] = {value.at(index)};"
            join(self.nests, _loops(value.shape), value.lanes, statement, self._reads, (name, position))
        return self.in_memory(name, value.shape, value.dtype, value.lanes)

    def store_vectors(self, value: Value, text: str) -> Value:
        """Put a function of a value into memory, computed in whole vectors, beyond the last element if need be."""
        stored = value if value.memory in self.padded else self.store(value)
        result = self.in_memory(self.new_memory(value.shape, value.dtype, False), value.shape, value.dtype, False)
        count = -(-value.numel * value.dtype.itemsize // ALIGNMENT) * ALIGNMENT // value.dtype.itemsize
        each = counter("i0")
        statement = f"{result.memory}[{each}] = {text.format(f'{stored.memory}[{each}]')};"
        reads = [(str(stored.memory), each)]
        join(self.nests, (count,), False, statement, reads, (str(result.memory), each))
        return result

    def store_parts(self, pieces: Sequence[Value], axis: int, shape: tuple[int, ...], dtype: torch.dtype) -> Value:
        """Put several values behind each other along an axis."""
        lanes = any(piece.lanes for piece in pieces)
        name = self.new_memory(shape, dtype, lanes)
        start = 0
        for piece in pieces:
            index = own_index(piece.shape)
            position = linear(shape, replaced(index, axis, index[axis] + start))
            self._reads = []
            statement = f"{name}[{self._laned(position, lanes)}] = {cast(piece, dtype)(index)};"
            self.close(Nest(_loops(piece.shape), lanes, [statement], disjoint=name), name, self._reads)
            start += piece.shape[axis]
        return self.in_memory(name, shape, dtype, lanes)

    def scatter(
        self,
        base: Value,
        source: Value,
        places: Callable[[Index], Index],
        by: Sequence[Value] = (),
        how: str = "=",
        apart: Sequence[int] = (),
        meets: bool = False,
    ) -> Value:
        """A copy of `base`, or `base` itself where it may be replaced, changed in some places.

        Args:
            base: What to start from.
            source: What to write.
            places: Where in `base` each element of the source goes.
            by: The values that this depends on; where there are any, two elements may go to the same place.
            how: The assignment: `=` or `+=`.
            apart: Axes of the source along which no two elements go to the same place.
            meets: Whether two elements may go to the same place though it depends on no values.
        """
        lanes = any(value.lanes for value in (base, source, *by))
        copy = base
        if base.memory is None or base.memory != self.replaces or base.lanes is not lanes:
            copy = self.store(Value(base.shape, base.dtype, lanes, base.at, base.cost, base.leaves))
        assert copy.memory is not None
        if source.numel and base.numel:
            index = own_index(source.shape)
            self._reads = []
            position = self._laned(linear(base.shape, places(index)), lanes)
            statement = f"{copy.memory}[{position}] {how} {cast(source, base.dtype)(index)};"
            depths = [axis for axis, length in enumerate(source.shape) if length > 1]
            free = tuple(depth for depth, axis in enumerate(depths) if axis in apart)
            nest = Nest(_loops(source.shape), lanes, [statement], ordered=meets or bool(by), apart=free)
            self.close(nest, copy.memory, self._reads)
        return copy

    def overwrites_itself(self, value: Value, into: str) -> bool:
        """Whether elements of `into` are still read after the loop that stores `value` there has replaced them."""
        index = own_index(value.shape)
        position = linear(value.shape, index)
        return any(name == into and at != position for name, at in self.reads_of(value, index))

    def reads_of(self, value: Value, index: Index) -> list[tuple[str, Affine]]:
        """The memory that an element is computed from, and the positions there."""
        self._reads = []
        value.at(index)
        return self._reads

    def accumulate(self, value: Value, axis: int) -> Value:
        """Each element, and all before it along an axis, added up in their order."""
        result = self.in_memory(
            self.new_memory(value.shape, value.dtype, value.lanes), value.shape, value.dtype, value.lanes
        )
        assert result.memory is not None
        if value.numel:
            index = own_index(value.shape)
            later = f"{index[axis]} > 0"
            self._reads = []
            # The first element has none before it: it reads itself, which is not taken.
            before = result.at(replaced(index, axis, index[axis] + counter(later) * -1))
            total = f"{choice(value.dtype, later, before, '0')} + {value.at(index)}"
            position = self._laned(linear(value.shape, index), value.lanes)
            depths = [k for k, length in enumerate(value.shape) if length > 1]
            free = tuple(depth for depth, k in enumerate(depths) if k != axis)
            statement = f"{result.memory}[{position}] = {total};"
            nest = Nest(_loops(value.shape), value.lanes, [statement], ordered=True, apart=free)
            self.close(nest, result.memory, self._reads)
        return result

    def reduce(self, value: Value, axes: Sequence[int], shape: tuple[int, ...], fold: Fold) -> Value:
        """Fold a value over some of its axes."""
        result = self.in_memory(self.new_memory(shape, value.dtype, value.lanes), shape, value.dtype, value.lanes)
        assert result.memory is not None
        if not result.numel:
            return result
        axes = [axis for axis in axes if value.shape[axis] != 1]
        kept = [axis for axis in range(len(value.shape)) if value.shape[axis] > 1 and axis not in axes]
        index = [ZERO] * len(value.shape)
        for letter, chosen in (("i", kept), ("r", axes)):
            for depth, axis in enumerate(chosen):
                index[axis] = counter(f"{letter}{depth}")
        sizes = tuple(value.shape[axis] for axis in kept)
        position = linear(sizes, [counter(f"i{depth}") for depth in range(len(sizes))])
        self._reads = []
        loops = [f"for (int64_t r{d} = 0; r{d} < {value.shape[axis]}; ++r{d}) " for d, axis in enumerate(axes)]
        c_type, target = C_TYPES[value.dtype], f"{result.memory}[{self._laned(position, value.lanes)}]"
        start, expression = literal(fold.start, value.dtype), value.at(index)
        lengths = tuple(value.shape[axis] for axis in axes)
        folding = Folding(sizes, lengths, c_type, start, fold.update, expression, result.memory, position)
        update = lambda acc: fold.update.format(acc=acc, x=expression) + ";"  # noqa: E731
        # Where the last axis is kept, the innermost loop runs over it and sums rows: memory is read in order.
        rows = not value.lanes and bool(kept) and (not axes or kept[-1] > axes[-1])
        if rows or value.lanes:
            letter, length = ("l", self.lanes) if value.lanes else (f"i{len(sizes) - 1}", sizes[-1])
            simd = '_Pragma("omp simd") ' if value.lanes else ""
            each = f"{simd}for (int64_t {letter} = 0; {letter} < {length}; ++{letter}) "
            if length * value.dtype.itemsize <= ON_STACK:
                acc, declared = f"acc[{letter}]", f"{c_type} acc[{length}]; "
                written = f"{each}{target} = {acc};"
            else:
                acc, declared, written = target, "", ""
            body = f"{{ {declared}{each}{acc} = {start};\n{''.join(loops)}{each}{update(acc)}\n{written} }}"
            sizes = sizes[:-1] if rows else sizes
        else:
            body = f"{{ {c_type} acc = {start};\n{''.join(loops)}{update('acc')}\n{target} = acc; }}"
        apart = f"fold_{result.memory}" if fold.reorders and not rows and not value.lanes else ""
        self.close(Nest(sizes, False, [body], function=apart, folding=folding), result.memory, self._reads)
        return result

    def functions(self) -> str:
        """The loops that are functions of their own, in C."""
        texts = []
        for nest in self.nests:
            if nest.function:
                given = ", ".join(f"{C_TYPES[self.types[name]]}* __restrict {name}" for name in nest.touched)
                body = f"#pragma clang fp reassociate(on)\n{nest.text(self.lanes)}"
                texts.append(f"REORDERED static void {nest.function}({given}) {{\n{body}\n}}\n")
        return "".join(texts)

    def text(self) -> str:
        """The loops in C, in their order."""
        return "\n".join(
            f"{nest.function}({', '.join(nest.touched)});" if nest.function else nest.text(self.lanes)
            for nest in self.nests
        )

    def close(self, nest: Nest, name: str, reads: Sequence[tuple[str, Affine]]) -> None:
        """Add a nest that writes `name`, and that no statement may join."""
        nest.reads, nest.exact = [(read, None) for read, _ in reads], [*reads]
        nest.writes, nest.open = {name: None}, False
        self.nests.append(nest)

    def _laned(self, position: Affine, lanes: bool) -> str:
        return f"({position})*{self.lanes} + l" if lanes else str(position)

    def new_memory(self, shape: Sequence[int], dtype: torch.dtype, lanes: bool) -> str:
        """Name of new memory for elements of this shape."""
        name = f"m{len(self.memory)}"
        self.memory.append((name, dtype, math.prod(shape) * (self.lanes if lanes else 1)))
        return name


def _loops(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(length for length in shape if length > 1)
