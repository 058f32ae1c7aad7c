"""Weight decay and the moments of an adaptive β, for all steps of a block at once."""

from __future__ import annotations

import numpy as np

from hamlearn.adaptive import Adaptive
from hamlearn.hyper import Hyper


def drive_rows(
    hyper: Hyper, order: str, updates: int | np.ndarray, learned: np.ndarray, enters: np.ndarray
) -> np.ndarray:
    """λ, and where β adapts its `Moments`, one row per step; members of a population along a second axis.

    Args:
        hyper: The hyper-parameters.
        order: In sequential order β is that after the step, in parallel order that before it.
        updates: How many updates a loss has entered before the block.
        learned: Whether each step has a target.
        enters: Whether a loss enters ω there: v stays where φ is 0.

    Example:
        >>> yes = np.array([True, True])
        >>> drive_rows(Hyper.from_adam(betas=(0.5, 0.75)), "sequential", 0, yes, yes)[:, 3]
        array([0.5 , 0.75])
    """
    rows = np.empty((*learned.shape, 7))
    rows[..., 0] = hyper.weight_decay
    beta = hyper.beta
    if not isinstance(beta, Adaptive):
        return rows[..., :1]
    rows[..., 1] = np.where(enters, beta.keep, 1.0)
    rows[..., 2] = np.where(enters, 1 - beta.keep, 0.0)
    rows[..., 3:5] = 1.0
    if beta.momentum is not None:
        k = updates + np.cumsum(learned, 0)
        if order == "parallel":
            k -= learned
        k = np.maximum(k, 1)
        rows[..., 3] = 1 - beta.momentum**k
        rows[..., 4] = np.sqrt(1 - beta.keep**k)
    rows[..., 5], rows[..., 6] = beta.eps, beta.shrink
    return rows
