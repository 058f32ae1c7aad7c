"""A linear layer whose errors go back through random weights: feedback alignment."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hamlearn.errors import ConfigError


class FeedbackLinear(nn.Linear):
    """Linear layer whose derivative by u is taken to be a fixed random B, not W (Lillicrap et al. 2016).

    W and b follow their own gradients; errors reach the layers below through B. A net with such layers above the
    first one learns by feedback alignment. The forward pass computes B u too.

    Args:
        in_features: Size of u.
        out_features: Size of y.
        bias: Whether there is a b.
        seed: Of B, which is a buffer and uniform as the weights are at first.
        **factory: `device` and `dtype`.

    Example:
        >>> import torch
        >>> layer, u = FeedbackLinear(3, 2), torch.ones(3, requires_grad=True)
        >>> layer(u).sum().backward()
        >>> torch.allclose(u.grad, layer.feedback.sum(0)), layer.weight.grad.tolist()
        (True, [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    """

    feedback: Tensor

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, seed: int = 0, **factory: Any
    ) -> None:
        super().__init__(in_features, out_features, bias, **factory)
        if not in_features:
            raise ConfigError("in_features=0: a layer without inputs has nothing to lead errors back to")
        draw, bound = torch.Generator().manual_seed(seed), in_features**-0.5
        B = torch.empty(self.weight.shape).uniform_(-bound, bound, generator=draw)
        self.register_buffer("feedback", B.to(self.weight))

    def forward(self, u: Tensor) -> Tensor:
        """The value of W u + b, with the derivative B by u."""
        by_feedback = nn.functional.linear(u, self.feedback)
        return super().forward(u.detach()) + (by_feedback - by_feedback.detach())
