"""Values of a step as C expressions: what a tensor's element is, given its index."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from hamlearn.loops.indices import ZERO, Index

C_TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.bool: "uint8_t",
}


class UnsupportedError(Exception):
    """This operation, dtype or shape cannot be turned into loops.

    What to do: use `torch.where` in place of a decision on values, draw random numbers beforehand, or stay with
    the eager engine; the page *Operations of the compiled engine* lists what has loops.

    Example:
        >>> import hamlearn as hl
        >>> def step(h, x):
        ...     return (h if x.sum() > 0 else -h), None
        >>> hl.loops.scan(step, torch.zeros(2), torch.ones(3, 2))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        hamlearn.loops.values.UnsupportedError: ...
    """


@dataclass(eq=False)
class Value:
    """A tensor as a function from index to C expression.

    Attributes:
        shape: Its sizes.
        dtype: Its type.
        lanes: Whether each member of a population has its own.
        at: Expression of the element at an index.
        cost: Rough number of operations that evaluating one element takes; 0 for memory.
        leaves: Names of the memory that an element is computed from.
        memory: Name of the memory that holds it, in row-major order; `None` where it is computed.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    lanes: bool
    at: Callable[[Index], str]
    cost: int = 0
    leaves: frozenset[str] = field(default_factory=frozenset)
    memory: str | None = None

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def viewed(self, shape: tuple[int, ...], remap: Callable[[Index], Index]) -> Value:
        """The same elements under other indices."""
        return Value(shape, self.dtype, self.lanes, lambda i: self.at(remap(i)), self.cost, self.leaves)


def computed(
    shape: Sequence[int],
    dtype: torch.dtype,
    at: Callable[[Index], str],
    inputs: Sequence[Value],
    cost: int,
) -> Value:
    """A value computed from others."""
    return Value(
        tuple(shape),
        dtype,
        any(value.lanes for value in inputs),
        at,
        cost + sum(value.cost for value in inputs),
        frozenset().union(*(value.leaves for value in inputs)),
    )


def constant(number: float | int | bool, dtype: torch.dtype, shape: Sequence[int] = ()) -> Value:
    """The same number everywhere."""
    text = literal(number, dtype)
    return Value(tuple(shape), dtype, False, lambda _: text)


def literal(number: float | int | bool, dtype: torch.dtype) -> str:
    """A number in C.

    Example:
        >>> literal(0.5, torch.float32), literal(float("-inf"), torch.float64), literal(True, torch.bool)
        ('0.5f', '(-INFINITY)', '1')
    """
    if dtype == torch.bool:
        return str(int(number > 0 if math.isinf(number) else bool(number)))
    if dtype.is_floating_point:
        number = torch.tensor(number, dtype=dtype).item()
    elif math.isinf(number):
        limits = torch.iinfo(dtype)
        number = limits.max if number > 0 else limits.min
    else:
        number = int(number)
    if math.isnan(number):
        return "NAN"
    if math.isinf(number):
        return "INFINITY" if number > 0 else "(-INFINITY)"
    if number == -(2**63):
        return "INT64_MIN"
    text = repr(number) + ("f" if dtype == torch.float32 else "")
    return f"({text})" if number < 0 else text


def cast(value: Value, dtype: torch.dtype) -> Callable[[Index], str]:
    """Elements converted to another type."""
    if value.dtype == dtype:
        return value.at
    c_type = C_TYPES[dtype]
    if dtype == torch.bool:
        return lambda i: f"({value.at(i)} != 0)"
    return lambda i: f"({c_type})({value.at(i)})"


def broadcast(value: Value, shape: Sequence[int]) -> Value:
    """A value under the indices of a larger shape."""
    if value.shape == tuple(shape):
        return value
    skipped = len(shape) - len(value.shape)
    ones = [length == 1 for length in value.shape]

    def remap(index: Index) -> Index:
        return [ZERO if one else i for one, i in zip(ones, index[skipped:], strict=True)]

    return value.viewed(tuple(shape), remap)


def choice(dtype: torch.dtype, condition: str, a: str, b: str) -> str:
    """`a` where the condition holds, and otherwise `b`, in C; both are computed."""
    return f"choose_{C_TYPES[dtype]}({condition}, {a}, {b})"
