"""Where an element is, as a sum of multiples of the loops' counters: positions that can be compared and asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Affine:
    """start + Σ factor·variable, a whole number in C.

    Attributes:
        terms: Variables and their factors, none of them 0. A variable is a loop's counter, or any other C
            expression, which is taken as it is.
        start: The constant term.

    Example:
        >>> i, j = counter("i0"), counter("i1")
        >>> str(i * 5 + j + 2), str(i * 5 + j * 0), str(ZERO + 4)
        ('(i0)*5 + (i1) + 2', '(i0)*5', '4')
        >>> i * 5 + j == j + i * 5, (i * 5 + j).factor("i0"), (i * 5 + j).factor("i7")
        (True, 5, 0)
    """

    terms: tuple[tuple[str, int], ...] = ()
    start: int = 0

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.start + other)
        factors = dict(self.terms)
        for variable, factor in other.terms:
            factors[variable] = factors.get(variable, 0) + factor
        kept = tuple((variable, factor) for variable, factor in factors.items() if factor)
        return Affine(kept, self.start + other.start)

    def __mul__(self, by: int) -> Affine:
        terms = tuple((variable, factor * by) for variable, factor in self.terms) if by else ()
        return Affine(terms, self.start * by)

    def factor(self, variable: str) -> int:
        """How far the element moves with each step of a variable; 0 if it does not."""
        return dict(self.terms).get(variable, 0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Affine) and self._content() == other._content()

    def __hash__(self) -> int:
        return hash(self._content())

    def _content(self) -> tuple[frozenset[tuple[str, int]], int]:
        return frozenset(self.terms), self.start

    def __str__(self) -> str:
        parts = [f"({name})" if factor == 1 else f"({name})*{factor}" for name, factor in self.terms]
        return " + ".join([*parts, *([str(self.start)] if self.start or not parts else [])])


Index = Sequence[Affine]
"""One place for each dimension."""
ZERO = Affine()


def counter(name: str) -> Affine:
    """The counter of a loop, or any other C expression of a whole number, taken as it is."""
    return Affine(((name, 1),))


def linear(shape: Sequence[int], index: Index) -> Affine:
    """Row-major position of `index`.

    Example:
        >>> str(linear((3, 1, 5), [counter("i"), ZERO, counter("j")]))
        '(i)*5 + (j)'
    """
    position, stride = ZERO, 1
    for length, i in zip(reversed(shape), reversed(index), strict=True):
        if length > 1:
            position = i * stride + position
        stride *= length
    return position


def own_index(shape: Sequence[int]) -> list[Affine]:
    """The loops' own counters, one for each axis that is longer than one element."""
    index, depth = [], 0
    for length in shape:
        index.append(counter(f"i{depth}") if length > 1 else ZERO)
        depth += length > 1
    return index


def replaced(index: Index, axis: int, place: Affine) -> Index:
    """An index with another place along one axis."""
    return [*index[:axis], place, *index[axis + 1 :]]
