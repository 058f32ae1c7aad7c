"""Random numbers of a compiled step: made of uniform ones, which are inputs of the loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import distributions, nn

from hamlearn.loops import UnsupportedError, scan
from hamlearn.loops.draws import Draws, GivenDraws

drop = nn.functional.dropout
STEPS = {
    "rand": lambda x: torch.rand(3, dtype=torch.float64),
    "rand_like": torch.rand_like,
    "randn": lambda x: torch.randn(5),
    "randint": lambda x: torch.randint(-3, 7, (2,)),
    "randint_like": lambda x: torch.randint_like(x, 2, 5),
    "bernoulli": lambda x: torch.bernoulli(0.3 * x),
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(),
    "dropout": lambda x: drop(x, 0.3),
    "dropout2d": lambda x: nn.functional.dropout2d(x.view(1, 2, 2, 1), training=True),
    "normal": lambda x: torch.normal(x, 3 * x),
    "normal of numbers": lambda x: torch.normal(2.0, 0.5, (3,)),
    "normal_": lambda x: torch.empty(3).normal_(1, 2),
    "uniform_": lambda x: torch.empty(3).uniform_(-1, 3),
    "exponential_": lambda x: torch.empty(3).exponential_(2.0),
    "multinomial": lambda x: torch.multinomial(torch.arange(1.0, 5.0), 3, replacement=True),
    "categorical": lambda x: distributions.Categorical(torch.arange(1.0, 4.0), validate_args=False).sample(),
    "gumbel": lambda x: nn.functional.gumbel_softmax(x),
    "twice": lambda x: torch.rand(1) - torch.rand(1),
}


def drawn(draw: Any, steps: int, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    _, found = scan(lambda c, x: (c, draw(x)), torch.zeros(1), torch.ones(steps, 4))
    return found


@pytest.mark.parametrize("name", STEPS)
def test_random_operations_have_the_distribution_of_pytorch(name: str) -> None:
    found = drawn(STEPS[name], 4000)
    torch.manual_seed(1)
    expected = torch.stack([STEPS[name](torch.ones(4)) for _ in range(4000)])
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    scale = expected.double().std()
    # Five deviations of the difference of two means, and the same of two deviations.
    torch.testing.assert_close(found.double().mean(), expected.double().mean(), rtol=0.0, atol=0.12 * scale)
    torch.testing.assert_close(found.double().std(), scale, rtol=0.1, atol=0.0)


def test_a_scan_draws_one_number_and_repeats_by_seed() -> None:
    one = drawn(STEPS["randn"], 50)
    assert torch.equal(one, drawn(STEPS["randn"], 50))
    assert not torch.equal(one, drawn(STEPS["randn"], 50, seed=1))
    torch.manual_seed(0)
    torch.randint(2**62, ())
    expected = torch.rand(1)
    drawn(STEPS["randn"], 50)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_the_same_one_by_one_and_all_at_once(dtype: torch.dtype) -> None:
    draws = Draws()
    draws.like += [torch.zeros(3, dtype=dtype), torch.zeros(2, 4), torch.zeros(())]
    whole = draws.rows(5, 0, 7)
    for step in range(7):
        for one, all_of_them in zip(draws.rows(5, step * draws.width, 1), whole, strict=True):
            assert torch.equal(one[0], all_of_them[step])
    assert [row.dtype for row in whole] == [dtype, torch.float32, torch.float32]


OWN = torch.Generator()
REFUSED = {
    "randperm": (lambda x: torch.randperm(4), "randperm"),
    "rrelu": (lambda x: nn.functional.rrelu(-x, training=True), "rrelu"),
    "generator": (lambda x: torch.rand(3, generator=OWN), "a generator of its own"),
    "without replacement": (lambda x: torch.multinomial(x, 2), "without replacement"),
    "up to a tensor": (lambda x: torch.randint_like(x, x[0].int()), "up to one that is a tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_made_of_uniform_numbers_is_named(name: str) -> None:
    draw, message = REFUSED[name]
    with pytest.raises(UnsupportedError, match=message):
        scan(lambda c, x: (c, draw(x)), torch.zeros(1), torch.ones(3, 4))


def test_numbers_that_are_given_are_taken_in_order() -> None:
    first, second = torch.tensor([0.1, 0.9]), torch.tensor([0.7])
    with GivenDraws([first, second]):
        assert torch.equal(torch.rand(2), first)
        assert torch.equal(drop(torch.ones(1), 0.5), torch.zeros(1))
        with pytest.raises(UnsupportedError, match="in another order"):
            torch.rand(1)
