"""The paper's six models, as plain modules (Appendix D)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

Implementation = Literal["output", "state", "state/output"]
"""How Hamiltonian Learning takes a module: as f_y, as f_h, or split over both."""
EPOCHS = {"Iris": 40, "MNIST": 40, "IMDb": 80}
"""Passes over each data set in the paper."""


class Residual(nn.Module):
    """x + two convolutions of x, then ReLU; a 1×1 convolution is the shortcut where the shape changes.

    Batches hold one sample, so the normalization is over the sample's own values: group norm with one group.

    Args:
        channels: Of the input.
        out: Channels of the output.
        stride: 2 halves the image.
    """

    def __init__(self, channels: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, padding=1),
            nn.GroupNorm(1, out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, padding=1),
            nn.GroupNorm(1, out),
        )
        same = channels == out and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels, out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """ReLU(shortcut(x) + body(x))."""
        return torch.relu(self.shortcut(x) + self.body(x))


class ViT(nn.Module):
    """A vision transformer: patches of 7×7, one encoder layer of width 30 with one head, mean over patches.

    The one layer norm stands before the feed-forward part (30 to 30, ReLU); there is no dropout.

    Args:
        classes: Number of outputs.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 30, kernel_size=7, stride=7)
        self.place = nn.Parameter(0.02 * torch.randn(1, 16, 30))
        self.attention = nn.MultiheadAttention(30, num_heads=1, batch_first=True)
        self.norm = nn.LayerNorm(30)
        self.feedforward = nn.Sequential(nn.Linear(30, 30), nn.ReLU())
        self.readout = nn.Linear(30, classes)

    def forward(self, u: Tensor) -> Tensor:
        """Class scores of images [batch, 1, 28, 28]."""
        x = self.patches(u).flatten(2).transpose(1, 2) + self.place
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = x + self.feedforward(self.norm(x))
        return self.readout(x.mean(1))


class Last(nn.Module):
    """What a recurrent layer puts out at the last token of a sequence: the unfolded net as one function of it.

    Args:
        layer: `nn.RNN` or `nn.LSTM`, batch first.
    """

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, u: Tensor) -> Tensor:
        """The last output for sequences [batch, T, 50]."""
        return self.layer(u)[0][:, -1]


def linear(classes: int = 3) -> nn.Module:
    """A single layer for Iris."""
    return nn.Linear(4, classes)


def mlp(classes: int = 3) -> nn.Module:
    """One hidden layer of 30 tanh neurons for Iris."""
    return nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, classes))


def resnet(classes: int = 10) -> nn.Module:
    """Four residual blocks of 8, 16, 16 and 32 channels between a convolution and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        Residual(8, 8),
        Residual(8, 16, stride=2),
        Residual(16, 16),
        Residual(16, 32, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )


def rnn(classes: int = 2) -> nn.Module:
    """30 recurrent tanh neurons over a whole sequence, and a linear layer on the last output."""
    return nn.Sequential(Last(nn.RNN(50, 30, batch_first=True)), nn.Linear(30, classes))


def lstm(classes: int = 2) -> nn.Module:
    """30 LSTM units over a whole sequence, and a linear layer on the last output."""
    return nn.Sequential(Last(nn.LSTM(50, 30, batch_first=True)), nn.Linear(30, classes))


@dataclass(frozen=True)
class Model:
    """A model of the experiments: what makes it, what it learns, and how Hamiltonian Learning takes it.

    Example:
        >>> MODELS["LSTM"].data, MODELS["LSTM"].implementations
        ('IMDb', ('output', 'state', 'state/output'))
    """

    name: str
    data: Literal["Iris", "MNIST", "IMDb"]
    make: Callable[[int], nn.Module]
    implementations: tuple[Implementation, ...] = ("output", "state")


_SPLIT: tuple[Implementation, ...] = ("output", "state", "state/output")
MODELS = {
    model.name: model
    for model in (
        Model("Linear", "Iris", linear),
        Model("MLP", "Iris", mlp),
        Model("ResNet", "MNIST", resnet),
        Model("ViT", "MNIST", ViT),
        Model("RNN", "IMDb", rnn, _SPLIT),
        Model("LSTM", "IMDb", lstm, _SPLIT),
    )
}
"""The paper's six, in its order."""
