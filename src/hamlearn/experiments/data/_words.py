"""From the text of a review to the words that GloVe knows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch

from hamlearn.errors import DataError
from hamlearn.experiments.data._dataset import Raw
from hamlearn.experiments.data._glove import read_vectors
from hamlearn.experiments.data._reviews import Review

_TAG = re.compile(r"<br\s*/?>", re.IGNORECASE)
_TOKEN = re.compile(
    r"""
    [^\W_]+(?=n't\b)                      # do + n't
    | n't\b
    | '(?:s|re|ve|ll|d|m)\b               # it + 's
    | \d+(?:[.,:/]\d+)*[^\W\d_]*          # 1,000  3.5  7/10  1980s
    | [^\W\d_]\.(?:[^\W\d_]\.)+           # u.s.
    | [^\W_]+
    | \.\.\.+ | --+ | \S
    """,
    re.VERBOSE,
)


def tokens(text: str) -> list[str]:
    """Lower-case words, numbers and punctuation marks of a review, cut as GloVe's own corpus was.

    Example:
        >>> tokens("I don't think it's <br /><br />well-made...")
        ['i', 'do', "n't", 'think', 'it', "'s", 'well', '-', 'made', '...']
    """
    return _TOKEN.findall(_TAG.sub(" ", text).replace("’", "'").lower())


def embed(description: str, reviews: Sequence[Review], vectors: Path) -> Raw:
    """Reviews as the GloVe vectors of their words; a word that GloVe does not have is passed over."""
    cut = [tokens(text) for text, _ in reviews]
    known = read_vectors(vectors, {word for words in cut for word in words})
    values = []
    for number, words in enumerate(cut):
        found = [known[word] for word in words if word in known]
        if not found:
            raise DataError(
                f"{vectors} has none of the {len(words)} words of review {number}: leave that review out, or take "
                "vectors of its language"
            )
        values.append(torch.stack(found))
    return Raw(description, values, [label for _, label in reviews], 2)
