"""Sums of sinusoids."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hamlearn.errors import ConfigError
from hamlearn.streams.base import Stream
from hamlearn.streams.signals.base import forecast
from hamlearn.streams.values import mix_seed


def sinusoids(
    frequencies: Sequence[float] = (0.05, 0.013),
    amplitudes: Sequence[float] | None = None,
    phases: Sequence[float] | None = None,
    ahead: int = 1,
    tau: float = 1.0,
    seed: int = 0,
    dtype: torch.dtype | None = None,
) -> Stream:
    """A sum of sinusoids, x(t) = Σ a_i sin(2π f_i t + p_i), at t = kτ for k = 0, 1, 2 and on.

    Args:
        frequencies: The f_i, in cycles per unit of time.
        amplitudes: The a_i; `None`: all 1.
        phases: The p_i in radians; `None` draws them from `seed`.
        ahead: Samples between input and target.
        tau: Time between samples.
        seed: Of the phases.
        dtype: `None` is torch's default.

    Example:
        >>> sample = next(iter(sinusoids([0.25], [2.0], phases=[0.0])))
        >>> sample.u, sample.target, sample.tau
        (tensor([0.]), tensor([2.]), 1.0)
    """
    n = len(frequencies)
    amplitudes = [1.0] * n if amplitudes is None else list(amplitudes)
    if phases is None:
        generator = torch.Generator().manual_seed(mix_seed(seed))
        phases = (torch.rand(n, generator=generator, dtype=torch.float64) * 2 * math.pi).tolist()
    if n == 0 or len(amplitudes) != n or len(phases) != n:
        raise ConfigError(
            f"{n} frequencies, {len(amplitudes)} amplitudes and {len(phases)} phases do not go together. "
            "Give one of each for each wave, and at least one wave."
        )
    f = torch.tensor(list(frequencies), dtype=torch.float64)
    a = torch.tensor(amplitudes, dtype=torch.float64)
    p = torch.tensor(list(phases), dtype=torch.float64) / (2 * math.pi)

    def advance(start: int, count: int) -> tuple[Tensor, int]:
        t = torch.arange(start, start + count, dtype=torch.float64) * tau
        # Whole cycles are taken off first: the sine of a large number would lose digits.
        x = (torch.sin(2 * math.pi * (t[:, None] * f + p).remainder(1.0)) * a).sum(1, keepdim=True)
        return x, start + count

    config = {"signal": "sinusoids", "frequencies": f.tolist(), "amplitudes": a.tolist(), "phases": list(phases)}
    return forecast(advance, 0, 1, ahead, tau, dtype, config)
