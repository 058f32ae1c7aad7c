"""Cells of independent units, random streams for them, and the gradient by going back."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import hamlearn as hl


class Gated(nn.Module):
    """Two gates in one weight, no derivatives in closed form; next state, or a rate."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.units = self.hidden_size = units
        self.w = nn.Parameter(torch.randn(2 * units, inputs))
        self.a = nn.Parameter(torch.randn(units))
        self.b = nn.Parameter(torch.randn(units))

    def forward(self, u: Tensor, h: Tensor) -> Tensor:
        gate, new = (u @ self.w.T).chunk(2, -1)
        gate = torch.sigmoid(gate + self.a * h)
        return gate * h + (1 - gate) * torch.tanh(new + self.b * h)


class Spiral(nn.Module):
    """Two slots in a dict, a rate, no derivatives in closed form."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.units = units
        self.w = nn.Parameter(torch.randn(units, inputs))
        self.turn = nn.Parameter(torch.randn(units))

    def initial_state(self, u: Tensor) -> dict[str, Tensor]:
        zeros = u.new_zeros(*u.shape[:-1], self.units)
        return {"x": zeros, "v": zeros}

    def visible(self, h: dict[str, Tensor]) -> Tensor:
        return torch.cat([h["x"], h["v"]], -1)

    def forward(self, u: Tensor, h: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"v": u @ self.w.T - torch.sin(self.turn * h["x"]) - h["v"], "x": torch.tanh(h["v"]) - 0.5 * h["x"]}


CELLS = {
    "gated": lambda i, n: (Gated(i, n), "next", n),
    "gated rate": lambda i, n: (Gated(i, n), "rate", n),
    "spiral": lambda i, n: (Spiral(i, n), "rate", 2 * n),
    "columnar": lambda i, n: (hl.cells.ColumnarGRU(i, n), "next", n),
    "rtu": lambda i, n: (hl.cells.RTU(i, n), "next", 2 * n),
    "lru": lambda i, n: (hl.cells.LRU(i, n), "next", 2 * n),
    "diagonal": lambda i, n: (hl.cells.Diagonal(i, n), "rate", n),
}


def network_of(kind: str, inputs: int = 2, units: int = 5, h0: str = "zeros") -> hl.Network:
    cell, transition, shown = CELLS[kind](inputs, units)
    start = nn.Parameter(torch.randn(units)) if h0 == "learned" else None
    return hl.Network.recurrent(cell, nn.Linear(shown, 1), transition=transition, h0=start).double()


def stream(steps: int, lanes: int | None, inputs: int = 2, seed: int = 0, uneven: bool = False) -> list[hl.Sample]:
    draw = torch.Generator().manual_seed(seed)
    batch = () if lanes is None else (lanes,)
    samples = []
    for index in range(steps):
        u, target = (torch.randn(*batch, n, generator=draw, dtype=torch.float64) for n in (inputs, 1))
        chance = torch.rand(3, generator=draw)
        samples.append(
            hl.Sample(
                u,
                target if chance[0] > 0.4 else None,
                tau=0.1 + chance[1].item() if uneven else None,
                boundary=bool(chance[2] < 0.15) or index == steps - 1,
            )
        )
    return samples


def bptt(network: hl.Network, samples: list[hl.Sample], tau: float) -> dict[str, Tensor]:
    """The gradient of the summed loss, by PyTorch."""
    total, h = torch.zeros(()), None
    for sample in samples:
        before = network.start(sample.u) if h is None else h
        h = network.state_net(sample.u, before)
        if network.transition == "rate":
            step = tau if sample.tau is None else sample.tau
            h = torch.utils._pytree.tree_map(lambda a, b: a + step * b, before, _in_order(h, before))  # noqa: B023
        if sample.target is not None:
            total = total + nn.functional.mse_loss(network.output_net(sample.u, h), sample.target)
        if sample.boundary:
            h = None
    names, weights = zip(*network.named_parameters(), strict=True)
    grads = torch.autograd.grad(total, weights, materialize_grads=True)
    return dict(zip(names, grads, strict=True))


def _in_order(h: object, like: object) -> object:
    return {key: h[key] for key in like} if isinstance(h, dict) else h  # type: ignore[attr-defined]
