"""Tasks that ask for a memory."""

from __future__ import annotations

import torch
from torch import Tensor

from hamlearn.errors import ConfigError
from hamlearn.streams.base import Stream
from hamlearn.streams.signals.base import BLOCK, SignalStream
from hamlearn.streams.values import mix_seed


def delayed_add(
    t1: int = 5,
    t2: int = 11,
    tau: float | None = None,
    seed: int = 0,
    dtype: torch.dtype | None = None,
) -> Stream:
    """Coin tosses x(t) in {0, 1}, and the target 0.5 + 0.5·x(t − t1) − 0.25·x(t − t2).

    A learner without memory can do no better than the mean, 0.625 (mean squared error 5/64); one that
    remembers `t1` steps gets to 1/64, and one that remembers both is exact. Before the first sample x is 0.

    Args:
        t1: First delay, in samples.
        t2: Second delay, in samples.
        tau: Of the samples; `None` takes `Hyper.tau`.
        seed: Of the tosses.
        dtype: `None` is torch's default.

    Example:
        >>> samples = iter(delayed_add(t1=1, t2=2))
        >>> x0, x1, x2 = next(samples), next(samples), next(samples)
        >>> bool(x2.target == 0.5 + 0.5 * x1.u - 0.25 * x0.u)
        True
    """
    for name, delay in (("t1", t1), ("t2", t2)):
        if delay < 0:
            raise ConfigError(
                f"{name}={delay} is negative: a target cannot depend on what is to come. Give 0 or more."
            )

    def tosses(start: int, stop: int) -> Tensor:
        # Each block has a generator of its own, so that the past can be made again from its place alone.
        first, last = start // BLOCK, -(-stop // BLOCK)
        drawn = [_toss(seed, b) for b in range(first, last)]
        return torch.cat(drawn)[start - first * BLOCK : stop - first * BLOCK]

    def block(start: int) -> tuple[Tensor, Tensor, int]:
        x = tosses(start - max(t1, t2), start + BLOCK)

        def late(t: int) -> Tensor:
            end = len(x) - t
            return x[end - BLOCK : end]

        target = 0.5 + 0.5 * late(t1) - 0.25 * late(t2)
        return late(0).unsqueeze(1), target.unsqueeze(1), start + BLOCK

    config = {"signal": "delayed_add", "t1": t1, "t2": t2, "seed": seed}
    return SignalStream(block, 0, (1, 1), tau, dtype, config)


def _toss(seed: int, block: int) -> Tensor:
    if block < 0:
        return torch.zeros(BLOCK, dtype=torch.float64)
    generator = torch.Generator().manual_seed(mix_seed(seed, block))
    return torch.randint(2, (BLOCK,), generator=generator).double()
