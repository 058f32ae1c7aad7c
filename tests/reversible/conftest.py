from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

Gradients = dict[str, Tensor]


class TwoLayers(nn.Module):
    """Any field: not symmetric, driven by u, h used once."""

    def __init__(self, width: int = 6, inputs: int = 3) -> None:
        super().__init__()
        self.a = nn.Linear(width, 9)
        self.b = nn.Linear(9, width)
        self.v = nn.Linear(inputs, 9)

    def forward(self, u: Any, h: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(h) + self.v(u)))


@pytest.fixture
def two_layers() -> type[TwoLayers]:
    return TwoLayers


@pytest.fixture
def run() -> Callable[..., Gradients]:
    """Forward and backward from fixed data: the output and all gradients, by name."""

    def run(net: nn.Module, width: int = 6, dtype: torch.dtype = torch.float64, batch: int = 5) -> Gradients:
        data = torch.Generator().manual_seed(7)
        h = torch.randn(batch, width, generator=data, dtype=dtype).requires_grad_()
        u = torch.randn(batch, 3, generator=data, dtype=dtype).requires_grad_()
        weight = torch.randn(batch, width, generator=data, dtype=dtype)
        net.zero_grad()
        out = net(h, u)
        (out * weight).sum().backward()
        found = {"out": out.detach(), "h": h.grad, "u": u.grad}
        found |= {name: p.grad for name, p in net.named_parameters()}
        return {name: x.clone() for name, x in found.items() if x is not None}

    return run
