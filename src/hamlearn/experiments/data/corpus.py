"""A small corpus of reviews, made up by a grammar of our own, with word vectors of its own.

Reviews mix what they think with what they merely tell, praise a little where they blame, and blame a little
where they praise: a network has to weigh the words, and cannot go by one of them.
"""

from __future__ import annotations

import itertools
import string
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
_PER_CLASS = 50
_SHORTEST, _LONGEST = 15, 60
_CONTRARY = 0.25
"""Share of opinions, up to the closing one, that go against the review."""
_LEAN = 0.4
"""How far a word of praise or blame is moved along the common direction."""

_GRAMMAR: dict[str, dict[str, Any]] = tomllib.loads(
    resources.files(__package__).joinpath("corpus.toml").read_text("utf-8")
)
_WORDS = {slot: words.split() for slot, words in _GRAMMAR["words"].items()}
_SENTENCES = _GRAMMAR["sentences"]


def _sentence(template: str, positive: bool, random: Random) -> list[str]:
    if not positive:
        template = template.replace("{praise}", "{blame}").replace("{loved}", "{hated}")
    filled = "".join(
        text + (random.choice(_WORDS[slot]) if slot else "")
        for text, slot, _, _ in string.Formatter().parse(template)
    )
    return filled.split()


def _review(positive: bool, random: Random) -> list[str]:
    closing = _sentence(random.choice(_SENTENCES["closings"]), positive, random)
    if random.random() < 0.3:
        closing += _sentence(random.choice(_SENTENCES["telling"]), positive, random)
    wanted = random.randint(_SHORTEST, _LONGEST) - len(closing)
    words: list[str] = []
    while True:
        if random.random() < 0.5:
            more = _sentence(random.choice(_SENTENCES["telling"]), positive, random)
        else:
            more = _sentence(
                random.choice(_SENTENCES["opinions"]), positive ^ (random.random() < _CONTRARY), random
            )
        if len(words) + len(more) > wanted and len(words) + len(closing) >= _SHORTEST:
            return words + closing
        words += more


@cache
def reviews() -> tuple[tuple[tuple[str, ...], int], ...]:
    """100 reviews as (words, label), 50 of praise (1) and 50 of blame (0) by turns, always the same.

    Example:
        >>> words, label = reviews()[1]
        >>> label, " ".join(words[-6:])
        (1, 'all , a fresh cast .')
    """
    random = Random(_SEED)
    return tuple((tuple(_review(label == 1, random)), label) for _ in range(_PER_CLASS) for label in (0, 1))


@cache
def word_vectors() -> dict[str, Tensor]:
    """A vector of 50 numbers (float64) for each word of the grammar.

    Numbers are uniform in [-1, 1]; words of praise lean along one common direction, words of blame against it.

    Example:
        >>> vectors = word_vectors()
        >>> vectors["superb"].shape, float(vectors["superb"] @ vectors["dreadful"]) < 0
        (torch.Size([50]), True)
    """
    random = Random(_SEED)
    direction = torch.tensor([random.choice((-_LEAN, _LEAN)) for _ in range(SIZE)], dtype=torch.float64)
    lean = {word: 1 for key in ("praise", "loved") for word in _WORDS[key]}
    lean |= {word: -1 for key in ("blame", "hated") for word in _WORDS[key]}
    templates = " ".join(itertools.chain(*_SENTENCES.values())).split()
    known = {word for word in templates if "{" not in word} | set(itertools.chain(*_WORDS.values()))
    return {
        word: torch.tensor([random.uniform(-1, 1) for _ in range(SIZE)], dtype=torch.float64)
        + lean.get(word, 0) * direction
        for word in sorted(known)
    }
