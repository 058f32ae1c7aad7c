"""Data that need no download: Iris, and stand-ins for MNIST and IMDb."""

from __future__ import annotations

import torch
from torch.nn.functional import interpolate

from hamlearn.experiments.data import corpus
from hamlearn.experiments.data.readers import Raw, first_of_each


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
    """The small made-up corpus, each review as the vectors of its words."""
    vectors = corpus.word_vectors()
    found = corpus.reviews()
    values = [torch.stack([vectors[word] for word in words]) for words, _ in found]
    description = "100 made-up short reviews with made-up word vectors (embedded stand-in for IMDb and GloVe)"
    return Raw(description, values, [label for _, label in found], 2)
