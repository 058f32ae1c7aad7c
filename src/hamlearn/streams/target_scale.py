"""The target in units of its own deviation, by what was known before it came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn.sample import Id, Label, Scale
from hamlearn.streams.moments import Array, Moments, in_deviations

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
        self._moments = Moments("targets")
        # Mean and deviation for samples that wait for their labels.
        self._waiting: dict[Id, tuple[list[float], list[float]]] = {}

    def state(self) -> dict[str, Any]:
        """Everything, in values that JSON keeps exactly."""
        return {"moments": self._moments.state(), "waiting": [[id, *both] for id, both in self._waiting.items()]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken."""
        self._moments.load(state["moments"])
        self._waiting = {id: (mean, spread) for id, mean, spread in state["waiting"]}

    def now(self, n: int | None = None) -> Scale | None:
        """What the next target will be scaled by, or the next `n`; `None` as long as there was none."""
        if self._moments.shape is None:
            return None
        mean, spread = (torch.from_numpy(part).reshape(self._moments.shape) for part in self._moments.now())
        return (
            Scale(mean, spread) if n is None else Scale(mean.expand(n, *mean.shape), spread.expand(n, *mean.shape))
        )

    def apply(self, target: Tensor, known: Sequence[bool] | None) -> tuple[Tensor, Scale]:
        """Targets, time first, scaled one after the other, and by what.

        Args:
            target: The targets.
            known: Which of them are targets; `None`: all.
        """
        rows, before = self._moments.rows(target), self._moments.now()
        mask = np.ones(len(rows), dtype=bool) if known is None else np.array(known)
        after = self._moments.extend(rows[mask])
        # How many targets of this block come before each row.
        earlier = np.cumsum(mask) - mask
        mean, spread = (np.vstack(both)[earlier] for both in zip(before, after, strict=True))
        return self._by(target, rows, mean, spread)

    def note(self, id: Id) -> None:
        """Remember the scale of a sample whose label comes later."""
        if self._moments.shape is not None:
            mean, spread = self._moments.now()
            self._waiting[id] = mean.tolist(), spread.tolist()
            if len(self._waiting) > LATE:
                del self._waiting[next(iter(self._waiting))]

    def label(self, label: Label) -> Label:
        """A label, scaled as its sample was."""
        target = label.target[None]
        scaled, scale = self.apply(target, None)
        if label.id in self._waiting:
            mean, spread = (np.array([values]) for values in self._waiting.pop(label.id))
            scaled, scale = self._by(target, self._moments.rows(target), mean, spread)
        return Label(label.id, scaled[0], scale.row(0))

    def _by(self, target: Tensor, rows: Array, mean: Array, spread: Array) -> tuple[Tensor, Scale]:
        scaled = torch.from_numpy(in_deviations(rows, mean, spread, self._clip)).reshape(target.shape)
        scale = Scale(*(torch.from_numpy(part).reshape(target.shape) for part in (mean, spread)))
        return scaled.to(target.device, target.dtype), scale._replace(target=target)
