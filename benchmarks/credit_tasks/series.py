"""Chaotic series, to be foretold by one step: Hénon, Mackey-Glass, Lorenz."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.credit_tasks.task import LANES, Task

DROPPED = 64
RESET = 200
"""Steps after which all lanes start again."""


def henon(steps: int, seed: int = 0, lanes: int = LANES) -> Task:
    """x⁺ = 1 − 1.4x² + y, y⁺ = 0.3x, lane b from x = 0.1 + 0.01b; the series itself has no seed.

    Example:
        >>> henon(300).u.shape
        torch.Size([300, 8, 1])
    """
    x = 0.1 + 0.01 * torch.arange(lanes, dtype=torch.float64)
    y, seen = torch.zeros_like(x), []
    for _ in range(steps + 1 + DROPPED):
        seen.append(x)
        x, y = 1 - 1.4 * x * x + y, 0.3 * x
    return _foretold("Hénon", torch.stack(seen))


def mackey_glass(steps: int, seed: int = 0, lanes: int = LANES) -> Task:
    """x⁺ = x + 0.2q/(1 + q¹⁰) − 0.1x with q = x(t − 16), from a history uniform in (1.2, 1.4)."""
    generator = torch.Generator().manual_seed(seed)
    past = list(1.2 + 0.2 * torch.rand(17, lanes, generator=generator, dtype=torch.float64))
    for _ in range(steps + DROPPED):
        x, q = past[-1], past[-17]
        past.append(x + 0.2 * q / (1 + q**10) - 0.1 * x)
    return _foretold("Mackey-Glass", torch.stack(past[16:]))


def lorenz(steps: int, seed: int = 0, lanes: int = LANES) -> Task:
    """Euler's method with dt = 0.01, from (1, 1, 1) + 0.1 N(0, 1); 100 steps dropped, every second one kept."""
    generator = torch.Generator().manual_seed(seed)
    x, y, z = 1 + 0.1 * torch.randn(3, lanes, generator=generator, dtype=torch.float64)
    seen = []
    for _ in range(100 + 2 * (steps + 1 + DROPPED)):
        seen.append(x)
        dx, dy, dz = 10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z
        x, y, z = x + 0.01 * dx, y + 0.01 * dy, z + 0.01 * dz
    return _foretold("Lorenz", torch.stack(seen[100::2]))


def _foretold(name: str, series: Tensor) -> Task:
    """Each value from those before it, normalised lane by lane, in float32."""
    series = series[DROPPED:]
    series = (series - series.mean(0)) / series.std(0, correction=0)
    values = series.unsqueeze(-1).float()
    steps, lanes = len(values) - 1, series.shape[1]
    restart = (torch.arange(steps) % RESET == 0).unsqueeze(-1).expand(steps, lanes)
    has = torch.ones(steps, dtype=torch.bool)
    return Task(name, values[:-1], values[1:], has, 1, nn.functional.mse_loss, "NMSE", 0.2, restart)
