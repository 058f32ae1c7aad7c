"""A small corpus of made-up reviews, with word vectors of its own."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from random import Random
from typing import Any

import torch
from torch import Tensor

SIZE = 50
"""Numbers per word, as in the GloVe vectors of the paper."""

_SEED = 1936
_LEAN = 0.4
"""How far a word of praise or blame is moved along the common direction."""


@cache
def _corpus() -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("corpus.toml").read_text("utf-8"))


@cache
def reviews() -> tuple[tuple[tuple[str, ...], int], ...]:
    """100 reviews as (words, label), 50 of praise (1) and 50 of blame (0) by turns.

    Example:
        >>> words, label = reviews()[1]
        >>> label, " ".join(words[-6:])
        (1, 'all , a fresh cast .')
    """
    return tuple((tuple(text.split()), number % 2) for number, text in enumerate(_corpus()["reviews"]))


@cache
def word_vectors() -> dict[str, Tensor]:
    """A vector of 50 numbers (float64) for each word.

    Numbers are uniform in [-1, 1]; words of praise lean along one common direction, words of blame against it.

    Example:
        >>> vectors = word_vectors()
        >>> vectors["superb"].shape, float(vectors["superb"] @ vectors["dreadful"]) < 0
        (torch.Size([50]), True)
    """
    random = Random(_SEED)
    direction = torch.tensor([random.choice((-_LEAN, _LEAN)) for _ in range(SIZE)], dtype=torch.float64)
    leans = {"praise": 1, "blame": -1, "other": 0}
    lean = {word: leans[kind] for kind in leans for word in _corpus()[kind].split()}
    return {
        word: torch.tensor([random.uniform(-1, 1) for _ in range(SIZE)], dtype=torch.float64)
        + lean[word] * direction
        for word in sorted(lean)
    }
