"""The target in units of its own deviation, by what was known before it came."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn.errors import SampleError
from hamlearn.sample import Id, Label, Scale
from hamlearn.streams.moments import Array, Moments

LATE = 10_000
"""Samples that wait for their labels, whose scales are kept; the oldest are forgotten."""


def is_scalable(target: Any) -> bool:
    """Whether a target is one tensor of fractions: whole numbers are classes, and stay.

    Example:
        >>> is_scalable(torch.tensor([0.5])), is_scalable(torch.tensor(2)), is_scalable(None)
        (True, False, False)
    """
    return isinstance(target, Tensor) and target.is_floating_point()


class TargetScale:
    """Mean and deviation of each entry of the targets so far, and targets scaled by them.

    ỹ_k = (y_k − m_{k−1}) / s_{k−1}, clipped, with m and s over targets 1 to k − 1; s = 0 gives 0. So the scale of
    a sample is known before its target, and the prediction for it can be brought back to the unit of the data.

    Args:
        clip: Largest absolute value that is let through.

    Example:
        >>> scale = TargetScale(10.0)
        >>> scaled, by = scale.apply(torch.tensor([[1.0], [3.0], [5.0]]), None)
        >>> scaled.ravel().tolist(), by.mean.ravel().tolist(), by.spread.ravel().tolist()
        ([0.0, 0.0, 3.0], [0.0, 1.0, 2.0], [0.0, 0.0, 1.0])
    """

    def __init__(self, clip: float) -> None:
        self._clip = clip
        self.forget()

    def forget(self) -> None:
        """Be as at the beginning."""
        self._shape: list[int] | None = None
        self._moments = Moments(0)
        self._waiting: dict[Id, tuple[list[float], list[float]]] = {}

    def state(self) -> dict[str, Any]:
        """Everything, in values that JSON keeps exactly."""
        waiting = [[id, mean, spread] for id, (mean, spread) in self._waiting.items()]
        return {"shape": self._shape, "moments": self._moments.state(), "waiting": waiting}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken."""
        self._shape, self._moments = state["shape"], Moments.of(state["moments"])
        self._waiting = {id: (mean, spread) for id, mean, spread in state["waiting"]}

    def now(self) -> Scale | None:
        """What the next target will be scaled by; `None` as long as there was none."""
        if self._shape is None:
            return None
        mean, spread = self._moments.now()
        return self._scale(mean[None], spread[None], None).row(0)

    def many(self, n: int) -> Scale | None:
        """The scale of now, for `n` samples without targets."""
        now = self.now()
        return (
            None
            if now is None
            else Scale(now.mean.expand(n, *now.mean.shape), now.spread.expand(n, *now.mean.shape))
        )

    def apply(self, target: Tensor, known: Sequence[bool] | None) -> tuple[Tensor, Scale]:
        """Targets, time first, scaled one after the other, and by what.

        Args:
            target: The targets.
            known: Which of them are targets; `None`: all.
        """
        self._require_shape(list(target.shape[1:]))
        n = len(target)
        rows = target.detach().cpu().reshape(n, -1).double().numpy()
        mask = np.ones(n, dtype=bool) if known is None else np.array(known)
        first_mean, first_spread = self._moments.now() if self._moments.n else np.zeros((2, rows.shape[1]))
        mean, spread = self._moments.extend(rows[mask])
        # How many targets of this block come before each row.
        earlier = np.cumsum(mask) - mask
        mean = np.vstack([first_mean, mean])[earlier]
        spread = np.vstack([first_spread, spread])[earlier]
        return self._scaled(rows, mean, spread, target), self._scale(mean, spread, target)

    def note(self, id: Id) -> None:
        """Remember the scale of a sample whose label comes later."""
        if self._shape is None:
            return
        mean, spread = self._moments.now()
        self._waiting[id] = mean.tolist(), spread.tolist()
        if len(self._waiting) > LATE:
            del self._waiting[next(iter(self._waiting))]

    def label(self, label: Label) -> Label:
        """A label, scaled as its sample was."""
        target = label.target[None]
        before = self._waiting.pop(label.id, None)
        scaled, scale = self.apply(target, None)
        if before is not None:
            mean, spread = (np.array([values]) for values in before)
            rows = target.detach().cpu().reshape(1, -1).double().numpy()
            scaled, scale = self._scaled(rows, mean, spread, target), self._scale(mean, spread, target)
        return Label(label.id, scaled[0], scale.row(0))

    def _require_shape(self, shape: list[int]) -> None:
        if self._shape is None:
            self._shape, self._moments = shape, Moments(math.prod(shape))
        if self._shape != shape:
            raise SampleError(
                f"standardize has seen targets of shape {self._shape}, and now one of {shape}: each entry has a "
                "mean of its own. Give all targets one shape."
            )

    def _scaled(self, rows: Array, mean: Array, spread: Array, like: Tensor) -> Tensor:
        scaled = np.divide(rows - mean, spread, out=np.zeros_like(rows), where=spread > 0)
        np.clip(scaled, -self._clip, self._clip, out=scaled)
        return torch.from_numpy(scaled).reshape(like.shape).to(like.device, like.dtype)

    def _scale(self, mean: Array, spread: Array, target: Tensor | None) -> Scale:
        assert self._shape is not None
        shape = (len(mean), *self._shape)
        return Scale(torch.from_numpy(mean).reshape(shape), torch.from_numpy(spread).reshape(shape), target)
