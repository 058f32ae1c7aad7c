"""Positions as objects: what can be asked of them, and what loops are made of the answers."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor

from hamlearn.loops import scan
from hamlearn.loops.indices import ZERO, Affine, counter, linear, own_index
from hamlearn.loops.program import Translation
from hamlearn.loops.recording import pure_graph
from hamlearn.loops.threads import sizes_of
from hamlearn.loops.writer import Writer


def value_of(place: Affine, counters: dict[str, int]) -> int:
    """What C makes of the text."""
    return int(eval(str(place), {}, counters))


def test_the_text_of_a_position_is_worth_what_its_arithmetic_says():
    draw = random.Random(0)
    counters = {f"i{n}": draw.randrange(100) for n in range(4)}
    for _ in range(200):
        place, worth = ZERO, 0
        for _ in range(draw.randrange(1, 6)):
            name, by, start = draw.choice(sorted(counters)), draw.randrange(-3, 4), draw.randrange(-5, 6)
            factor = draw.choice([1, 2, -1])
            place, worth = (
                (place + counter(name) * by + start) * factor,
                factor * (worth + by * counters[name] + start),
            )
        assert value_of(place, counters) == worth
        assert value_of(place + place * -1, counters) == 0
        assert place + place * -1 == ZERO


def test_equal_positions_are_equal_however_they_came_about():
    i, j = counter("i0"), counter("i1")
    assert linear((4, 5), [i, j + 2]) == (j + 2) + i * 5 == linear((4, 5), [i, j]) + 2
    assert hash(i * 5 + j) == hash(j + i * 5)
    assert i * 5 + j != i + j * 5
    assert linear((4, 1, 5), own_index((4, 1, 5))) == linear((4, 5), own_index((4, 5)))


def iterations(function, *given: Tensor) -> int:
    """How many terms and elements the loops of a step compute."""
    graph = pure_graph(lambda *tensors: [function(*tensors)], list(given))
    translation = Translation(graph, ["constant"] * len(given), [False] * len(given), Writer())
    translation.walk()
    return sum(math.prod((*sizes, *lengths)) for sizes, lengths in map(sizes_of, translation.writer.nests))


def test_cumulative_sums_take_a_step_for_each_element():
    assert iterations(lambda x: x.cumsum(0), torch.zeros(1000)) <= 2 * 1000
    assert iterations(lambda x: x.cumsum(1), torch.zeros(3, 100, 7)) <= 2 * 2100


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_cumulative_sums_add_up_in_the_order_of_the_elements(axis):
    x = torch.randn(2, 3, 9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(axis))
    _, found = scan(lambda carry, x: (carry, (2 * x).cumsum(axis)), torch.zeros(()), x)
    expected = torch.zeros_like(x)
    total = torch.zeros_like(x.select(axis + 1, 0))
    for k in range(x.shape[axis + 1]):
        total = total + 2 * x.select(axis + 1, k)
        expected.select(axis + 1, k).copy_(total)
    assert torch.equal(found, expected)


def innermost(b: Tensor, turn) -> list[bool]:
    """Whether the last loop of a product with `turn(b)` runs along the elements, and not along what is summed."""
    graph = pure_graph(lambda a, b: [a @ turn(b)], [torch.zeros(5, 6), b])
    translation = Translation(graph, ["constant"] * 2, [False] * 2, Writer())
    translation.walk()
    return [nest.function == "" for nest in translation.writer.nests if nest.folding is not None]


def test_a_product_runs_along_the_rows_of_its_second_matrix_wherever_they_lie_in_order():
    assert innermost(torch.zeros(6, 7), lambda b: b) == [True]
    assert innermost(torch.zeros(7, 6), lambda b: b.t()) == [False]
    assert innermost(torch.zeros(6, 9), lambda b: b[:, 1:8]) == [True]
    assert innermost(torch.zeros(6, 14), lambda b: b[:, ::2]) == [False]
    assert innermost(torch.zeros(6, 7), lambda b: b.flip(1)) == [False]
    assert innermost(torch.zeros(6, 1), lambda b: b.expand(6, 7)) == [True]
    # The stride of one is written out here, which a look at the text took for a step of more than one.
    assert innermost(torch.zeros(6, 7), lambda b: torch.as_strided(b, (6, 6), (7, 1), 1)) == [True]
