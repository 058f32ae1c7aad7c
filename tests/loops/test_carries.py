"""Loops over steps give, to the bit, what a loop in Python over the same graph gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hamlearn.loops import UnsupportedError, translate
from hamlearn.loops.recording import pure_graph
from tests.loops.graphs import STEPS, Problem, random_problem
from tests.loops.running import assert_population, assert_single, quickly_compiled

Step = Callable[..., list[Tensor]]


@pytest.mark.parametrize("seed", range(10))
def test_random_steps_are_those_of_pytorch(seed: int) -> None:
    assert_single(random_problem(seed))


@pytest.mark.parametrize("seed", range(100, 105))
def test_each_member_of_a_population_is_a_single_run(seed: int) -> None:
    assert_population(seed)


CROSSINGS: dict[str, Step] = {
    "swap": lambda a, b, c, u: [b, a, c, a + b],
    "rotation": lambda a, b, c, u: [b, c, a, u],
    "rotation, computed": lambda a, b, c, u: [b + 1, c + a, a * 2, a - c],
    "own places reversed": lambda a, b, c, u: [a.flip(0), b.roll(1, 0) + b, c.t().contiguous() + c, c.sum(0)],
    "own row": lambda a, b, c, u: [a + a[:1], b - b[1], c + c[:, :1], b[0]],
    "own sum": lambda a, b, c, u: [a - a.sum(), b + b.amax(), c + c.sum(0), a.sum() + 0],
    "unchanged": lambda a, b, c, u: [a, b + a, c, c],
    "sample": lambda a, b, c, u: [u, a, u + 0, u],
    "one for all": lambda a, b, c, u: (lambda x: [x, x, x, x, x.sum()])((a + b * c - u).clamp(-9, 9)),
    "views of each other": lambda a, b, c, u: [b.t().t(), a.view(9).view(3, 3), a.t() + 0, b.t()],
    "chain": lambda a, b, c, u: (lambda x: (lambda y: [x, y, (x @ y).clamp(-9, 9), a, b])(x * 2 - b))(a + u),
    "chain from the back": lambda a, b, c, u: (lambda z: (lambda y: [a - y, y, z, c])(b + z))(c * u),
    "old and new": lambda a, b, c, u: (lambda x: [x, b + a, b + x, a])(a.clamp(-3, 3) - 1),
    "old value of a used one": lambda a, b, c, u: (lambda x: [x, (a * 2)[:, :1] + b, c + (a * 2), x - a])(a + 1),
    "parts": lambda a, b, c, u: (lambda p: [torch.cat([p[1], p[0]]), b + p[1].sum(), c, p[0]])(a.split([1, 2])),
    "index by carry": lambda a, b, c, u: (lambda i: [a.gather(0, i), b.scatter(0, i[:1], 5.0), c[i[0]] + c, u])(
        b.abs().long().clamp(0, 2)
    ),
}


@pytest.mark.parametrize("name", CROSSINGS)
def test_carries_that_cross_are_read_before_they_are_written(name: str) -> None:
    square = torch.arange(9).reshape(3, 3).double()
    samples = torch.stack([square % (k + 2) for k in range(STEPS)])
    with quickly_compiled():
        assert_single(Problem(CROSSINGS[name], [square - 4 * k for k in range(3)], [samples], []))


def test_a_long_chain_is_cut_into_pieces() -> None:
    def step(x: Tensor, u: Tensor) -> list[Tensor]:
        for _ in range(200):
            x = (x + u).clamp(-7, 7)
        return [x]

    def doubled(x: Tensor, u: Tensor) -> list[Tensor]:
        for _ in range(25):
            x = x + x - u * x.amax()
            x = x.clamp(-2, 2)
        return [x]

    for each in (step, doubled):
        with quickly_compiled():
            assert_single(Problem(each, [torch.ones(3).double()], [torch.ones(STEPS, 3).double()], []))


def test_a_carry_that_changes_its_type_or_shape_is_refused() -> None:
    for change in (lambda x: [x.float()], lambda x: [x.sum()], lambda x: [x > 0]):
        graph = pure_graph(change, [torch.ones(3).double()])
        with pytest.raises(UnsupportedError, match="carry"):
            translate(graph, ["carry"], [False])


def test_a_shared_carry_that_changes_is_refused_in_a_population() -> None:
    graph = pure_graph(lambda n, x: [n + 1, x * 2], [torch.ones(()), torch.ones(3)])
    translate(graph, ["carry", "carry"], [True, True], 4)
    with pytest.raises(UnsupportedError, match="share"):
        translate(graph, ["carry", "carry"], [False, True], 4)
    graph = pure_graph(lambda n, x: [x.sum(), x * 2], [torch.ones(()), torch.ones(3)])
    with pytest.raises(UnsupportedError, match="share"):
        translate(graph, ["carry", "carry"], [False, True], 4)
