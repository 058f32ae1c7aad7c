"""A small corpus of reviews, made up by a grammar of our own, with word vectors of its own.

Reviews mix what they think with what they merely tell, praise a little where they blame, and blame a little
where they praise: a network has to weigh the words, and cannot go by one of them.
"""

from __future__ import annotations

import string
from functools import cache
from random import Random

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

_WORDS = {
    "praise": "good great splendid wonderful superb brilliant charming delightful moving funny fresh gripping "
    "clever warm beautiful memorable touching thrilling graceful witty sincere lovely perfect stunning",
    "blame": "bad dreadful terrible dull boring weak stupid flat tedious clumsy silly lifeless tiresome "
    "predictable shallow horrid messy bland pointless crude painful lazy stale hopeless",
    "loved": "loved enjoyed admired adored liked recommend",
    "hated": "hated regretted disliked endured loathed avoided",
    "thing": "film movie story plot script acting cast ending dialogue music pacing direction camera humour",
    "who": "director lead singer writer hero villain sister detective teacher stranger",
    "very": "very really truly quite rather so",
    "place": "castle village harbour desert city school hotel station garden",
    "day": "monday friday sunday tuesday holiday",
    "number": "two three four ten twenty ninety",
}
# {praise} and {loved} become {blame} and {hated} where the opinion is a bad one.
_OPINIONS = (
    "the {thing} is {very} {praise} .",
    "i {loved} the {thing} and the {thing} .",
    "what a {praise} {thing} !",
    "the {who} is {praise} and the {thing} {very} {praise} .",
    "it has a {praise} {thing} , with a {praise} {who} .",
)
_TELLING = (
    "the {who} comes to the {place} with a {who} .",
    "we saw it on a {day} with {number} friends .",
    "it was made in a {place} in {number} weeks .",
    "the {who} and the {who} meet at the {place} .",
    "it runs for {number} minutes .",
    "then the {who} leaves the {place} , and the {thing} goes on .",
)
_CLOSINGS = (
    "all in all , a {praise} {thing} .",
    "{very} {praise} from start to end .",
    "{praise} , and i {loved} it .",
)


def _sentence(template: str, positive: bool, random: Random) -> list[str]:
    if not positive:
        template = template.replace("{praise}", "{blame}").replace("{loved}", "{hated}")
    filled = "".join(
        text + (random.choice(_WORDS[slot].split()) if slot else "")
        for text, slot, _, _ in string.Formatter().parse(template)
    )
    return filled.split()


def _review(positive: bool, random: Random) -> list[str]:
    closing = _sentence(random.choice(_CLOSINGS), positive, random)
    if random.random() < 0.3:
        closing += _sentence(random.choice(_TELLING), positive, random)
    wanted = random.randint(_SHORTEST, _LONGEST) - len(closing)
    words: list[str] = []
    while True:
        if random.random() < 0.5:
            more = _sentence(random.choice(_TELLING), positive, random)
        else:
            more = _sentence(random.choice(_OPINIONS), positive ^ (random.random() < _CONTRARY), random)
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
    """A vector of 50 numbers (float64) for each word that the grammar knows.

    Numbers are uniform in [-1, 1]; words of praise lean along one common direction, words of blame against it.

    Example:
        >>> vectors = word_vectors()
        >>> vectors["superb"].shape, float(vectors["superb"] @ vectors["dreadful"]) < 0
        (torch.Size([50]), True)
    """
    random = Random(_SEED)
    direction = torch.tensor([random.choice((-_LEAN, _LEAN)) for _ in range(SIZE)], dtype=torch.float64)
    lean = {word: 1 for key in ("praise", "loved") for word in _WORDS[key].split()}
    lean |= {word: -1 for key in ("blame", "hated") for word in _WORDS[key].split()}
    templates = " ".join((*_OPINIONS, *_TELLING, *_CLOSINGS)).split()
    known = {word for word in templates if "{" not in word} | set(" ".join(_WORDS.values()).split())
    return {
        word: torch.tensor([random.uniform(-1, 1) for _ in range(SIZE)], dtype=torch.float64)
        + lean.get(word, 0) * direction
        for word in sorted(known)
    }
