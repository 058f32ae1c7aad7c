"""What can be had offline: Iris, and stand-ins for MNIST and IMDb."""

from __future__ import annotations

import torch
from torch.nn.functional import interpolate

from hamlearn.errors import ConfigError, install
from hamlearn.experiments.data._choice import first_of_each
from hamlearn.experiments.data._corpus import reviews, word_vectors
from hamlearn.experiments.data._dataset import Raw


def iris() -> Raw:
    """All 150 samples of Iris, in centimetres, as scikit-learn has them.

    Example:
        >>> iris().values[0].tolist(), iris().classes
        ([5.1, 3.5, 1.4, 0.2], 3)
    """
    try:
        from sklearn.datasets import load_iris
    except ImportError as error:
        raise ConfigError(f"Iris comes with scikit-learn: {install('experiments')}") from error
    features, labels = load_iris(return_X_y=True)
    return Raw("Iris, 150 samples, from scikit-learn", list(torch.tensor(features)), labels.tolist(), 3)


def digits() -> Raw:
    """Ten of each of scikit-learn's digits, 8×8, brought to MNIST's 28×28 pixels of 0 to 1.

    Example:
        >>> digits().values[0].shape, len(digits().labels)
        (torch.Size([1, 28, 28]), 100)
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigError(f"the digits come with scikit-learn: {install('experiments')}") from error
    bunch = load_digits()
    # Neighbours are often by the same hand.
    images, targets = bunch.images[::11], bunch.target[::11].tolist()
    chosen = first_of_each(targets, 10, 10, "scikit-learn's digits")
    small = torch.tensor(images[chosen], dtype=torch.float64)[:, None]
    large = interpolate(small, size=(28, 28), mode="bilinear")
    # Bilinear weights from 8 to 28 pixels are 14ths and pixels are integers to 16: rounded in units of
    # 1/14², the values are the same bits on every machine.
    values = (large * 196).round() / (196 * 16)
    what = "scikit-learn's digits brought to 28×28, 10 per class (embedded stand-in for MNIST)"
    return Raw(what, list(values), [targets[i] for i in chosen], 10)


def corpus() -> Raw:
    """The small corpus of our own, each review as the vectors of its words.

    Example:
        >>> corpus().values[0].shape[1], sum(corpus().labels)
        (50, 50)
    """
    vectors = word_vectors()
    values, labels = [], []
    for words, label in reviews():
        values.append(torch.stack([vectors[word] for word in words]))
        labels.append(label)
    what = "100 made-up short reviews with made-up word vectors (embedded stand-in for IMDb and GloVe)"
    return Raw(what, values, labels, 2)
