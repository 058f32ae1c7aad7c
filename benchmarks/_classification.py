"""Classification tasks to stream, and a chain of layers to learn them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from hamlearn.experiments.data.official import mnist_split
from hamlearn.sample import Sample


@dataclass(frozen=True)
class Data:
    """A classification task: samples to stream, and samples to test on."""

    name: str
    u: Tensor
    target: Tensor
    test_u: Tensor
    test_target: Tensor

    def stream(self, count: int, passes: int, seed: int = 0) -> Iterator[Sample]:
        """The first `count` samples, one at a time, in a new order for each pass after the first."""
        generator = torch.Generator().manual_seed(seed)
        for number in range(passes):
            order = torch.randperm(count, generator=generator) if number else torch.arange(count)
            for i in order.tolist():
                yield Sample(self.u[i : i + 1], self.target[i : i + 1])


def digits(seed: int = 0) -> Data:
    """scikit-learn's handwritten digits in random order, a fifth kept for the test."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    u = torch.tensor(bunch.data, dtype=torch.float32) / 16
    u, target = (u - u.mean()) / u.std(), torch.tensor(bunch.target)
    order = torch.randperm(len(u), generator=torch.Generator().manual_seed(seed))
    test, train = order[:359], order[359:]
    return Data("digits", u[train], target[train], u[test], target[test])


def mnist_data(folder: str | Path) -> Data:
    """MNIST from a folder that holds `mnist/` with the official files."""
    (u, target), (test_u, test_target) = mnist_split(folder, "train"), mnist_split(folder, "t10k")
    return Data("mnist", _scaled(u), target, _scaled(test_u), test_target)


def _scaled(images: Tensor) -> Tensor:
    # Mean and deviation of the training images.
    return (images.flatten(1).float() / 255 - 0.1307) / 0.3081


def chain(inputs: int, width: int, depth: int, outputs: int = 10, seed: int = 0) -> nn.Sequential:
    """A chain of `depth` layers with tanh between them, one child per layer, in Glorot's initialisation."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [inputs, *[width] * (depth - 1), outputs]
    layers = []
    for a, b in pairwise(sizes):
        linear = nn.Linear(a, b)
        nn.init.xavier_normal_(linear.weight, generator=generator)
        nn.init.zeros_(linear.bias)
        layers.append(nn.Sequential(linear, nn.Tanh()))
    return nn.Sequential(*layers[:-1], layers[-1][0])
