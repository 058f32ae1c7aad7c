"""The paper's models, as plain modules."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


def linear() -> nn.Module:
    """A single layer for Iris: 4 features, 3 classes."""
    return nn.Linear(4, 3)


def mlp() -> nn.Module:
    """One hidden layer of 30 tanh neurons for Iris."""
    return nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 3))


IRIS_MODELS: dict[str, Callable[[], nn.Module]] = {"Linear": linear, "MLP": mlp}
