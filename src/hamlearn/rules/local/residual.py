"""Layers that add to what they are given: depth without the loss of signal that makes delays hurt."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """x + f(x): one node, with the skip edge inside it, so that nothing has to wait in a delay register.

    A costate z passes as z + z·∂f/∂x. Where the branch f is an `nn.Linear`, or one followed by elementwise
    functions, equal layers in a row are stacked like any others.

    Args:
        branch: f; its output has the shape of its input.
        scale: What the branch's weights are multiplied by when the layer is made. Small branches make a deep net
            begin near the identity, where late gradients are nearly the present ones.

    Example:
        >>> import torch
        >>> layer = Residual(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), scale=0.0)
        >>> layer(torch.tensor([1.0, 2.0, 3.0])).tolist()
        [1.0, 2.0, 3.0]
    """

    def __init__(self, branch: nn.Module, scale: float = 0.1) -> None:
        super().__init__()
        self.branch = branch
        with torch.no_grad():
            for weight in branch.parameters():
                weight.mul_(scale)

    def forward(self, x: Tensor) -> Tensor:
        """X and the branch's output, which must have its shape."""
        change = self.branch(x)
        if change.shape != x.shape:
            raise ValueError(
                f"the branch of a residual layer gave {list(change.shape)} for {list(x.shape)}: it must keep the "
                "shape"
            )
        return x + change
