"""Data that need no download: Iris, and stand-ins for MNIST and IMDb."""

from __future__ import annotations

import tomllib
from importlib import resources
from random import Random

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from hamlearn.experiments.data.readers import Raw, first_of_each

SIZE = 50
"""Numbers per word, as in the GloVe vectors of the paper."""
_SEED = 1936
_LEAN = 0.4
"""How far a word of praise or blame is moved along the common direction."""


def iris() -> Raw:
    """All 150 samples of Iris, in centimetres, as scikit-learn has them."""
    from sklearn.datasets import load_iris

    features, labels = load_iris(return_X_y=True)
    return Raw("Iris, 150 samples, from scikit-learn", list(torch.tensor(features)), labels.tolist(), 3)


def digits() -> Raw:
    """Ten of each of scikit-learn's digits, 8×8, scaled to MNIST's 28×28 pixels of 0 to 1."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    # Neighbours are often by the same hand.
    images, labels = bunch.images[::11], bunch.target[::11].tolist()
    chosen = first_of_each(labels, classes=10, count=10)
    small = torch.tensor(images[chosen], dtype=torch.float64)[:, None]
    large = interpolate(small, size=(28, 28), mode="bilinear")
    # Bilinear weights from 8 to 28 pixels are 14ths and pixels are integers to 16: rounded in units of
    # 1/14², the values are the same bits on every machine.
    values = (large * 196).round() / (196 * 16)
    description = "scikit-learn's digits brought to 28×28, 10 per class (embedded stand-in for MNIST)"
    return Raw(description, list(values), [labels[i] for i in chosen], 10)


def reviews() -> Raw:
    """The small made-up corpus: blame (0) and praise (1) by turns, each review as the vectors of its words."""
    corpus = tomllib.loads(resources.files(__package__).joinpath("corpus.toml").read_text("utf-8"))
    vectors = word_vectors({kind: corpus[kind].split() for kind in ("praise", "blame", "other")})
    values = [torch.stack([vectors[word] for word in text.split()]) for text in corpus["reviews"]]
    description = "100 made-up short reviews with made-up word vectors (embedded stand-in for IMDb and GloVe)"
    return Raw(description, values, [number % 2 for number in range(len(values))], 2)


def word_vectors(words: dict[str, list[str]]) -> dict[str, Tensor]:
    """A vector of 50 numbers (float64) for each word of `praise`, `blame` and `other`.

    Numbers are uniform in [-1, 1]; words of praise lean along one common direction, words of blame against it.
    """
    random = Random(_SEED)
    direction = torch.tensor([random.choice((-_LEAN, _LEAN)) for _ in range(SIZE)], dtype=torch.float64)
    lean = {word: {"praise": 1, "blame": -1, "other": 0}[kind] for kind, known in words.items() for word in known}
    return {
        word: torch.tensor([random.uniform(-1, 1) for _ in range(SIZE)], dtype=torch.float64)
        + lean[word] * direction
        for word in sorted(lean)
    }
