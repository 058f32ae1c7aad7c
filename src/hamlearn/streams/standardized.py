"""Inputs and targets in units of their deviation, by what was known before they came."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn.errors import ConfigError, SampleError
from hamlearn.sample import Id, Label, Sample, Scale
from hamlearn.streams.base import Stream
from hamlearn.streams.blocks import Block
from hamlearn.streams.iterables import from_iterable
from hamlearn.streams.moments import Array, RunningMoments, in_deviations
from hamlearn.streams.values import Spec, TensorSpec
from hamlearn.streams.wrapped import Transform

CLIP = 10.0
"""Standard deviations from the mean that are let through, unless another number is given."""
LATE = 10_000
"""Samples that wait for their labels, whose scales are kept; the oldest are forgotten."""


def standardize(stream: Iterable[Any], clip: float = CLIP, scale_target: bool = False) -> Stream:
    """Each entry of the input less its mean, over its standard deviation, both of all inputs so far.

    u ← (u − m_k) / s_k, with m_k and s_k over inputs 1 to k, from running sums; s_k = 0 gives 0. Entries of a
    table that stand for a category or a missing cell are 0 or 1 and stay so. Whole blocks are computed at
    once, with the bits of single rows.

    Args:
        stream: Samples whose inputs are tensors of one shape.
        clip: Largest absolute value that is let through: the first inputs know little of the scale.
        scale_target: Whether targets that are fractions are scaled too, by the mean and the standard deviation of
            the targets before them: y ← (y − m_{k−1}) / s_{k−1}. Each sample then has a `scale`, and
            `sample.scale.unscale(y)` brings the prediction for it back to the unit of the data. Whole numbers are
            classes, and stay.

    Example:
        >>> [round(sample.u.item(), 4) for sample in standardize([[1.0], [3.0], [5.0]])]
        [0.0, 1.0, 1.2247]
        >>> prices = [([1.0], [100.0]), ([2.0], [120.0]), ([3.0], [130.0])]
        >>> *_, last = standardize(prices, scale_target=True)
        >>> last.target, last.scale.target, last.scale.unscale(last.target)
        (tensor([2.]), tensor([130.]), tensor([130.]))
    """
    if not clip > 0:
        raise ConfigError(f"clip={clip} lets nothing through. Give a positive number.")
    return StandardizedStream(from_iterable(stream), clip, scale_target)


class StandardizedStream(Transform):
    """What `standardize` returns."""

    _moments: RunningMoments
    _targets: TargetScale
    _fixed = ("_clip", "_scale_target")

    def __init__(self, inner: Stream, clip: float, scale_target: bool) -> None:
        super().__init__(inner)
        self._clip, self._scale_target = clip, scale_target
        self._rewind()

    @property
    def spec(self) -> Spec:
        """As the stream inside, but whole numbers become fractions."""
        spec = self.inner.spec
        if not isinstance(spec.u, TensorSpec) or spec.u.dtype.is_floating_point:
            return spec
        return Spec(TensorSpec(spec.u.shape, torch.get_default_dtype()), spec.target, spec.length)

    def _fresh(self) -> dict[str, Any]:
        return {"_moments": RunningMoments("inputs"), "_targets": TargetScale(self._clip)}

    def encode(self, row: Any) -> Tensor:
        """As the stream inside, less the mean and over the deviation, in which the row itself counts."""
        u, now = self.inner.encode(row), self._moments.state()
        made = []
        for one in u.reshape(-1, 1, u.shape[-1]):
            # Each row of a frame is taken as if it came next.
            made.append(self._scaled(one))
            self._moments.load(now)
        return torch.cat(made).reshape(u.shape)

    def unscale(self, y: Tensor) -> Tensor:
        """A prediction in the unit of the data, by the targets so far."""
        now = self._targets.now() if self._scale_target else None
        return self.inner.unscale(y if now is None else now.unscale(y))

    def change(self, block: Block) -> Block | None:
        """A block whose inputs, and perhaps targets, are in units of their deviation."""
        alone, scales = block.count == 1, self._scale_target
        if block.u is None or block.u_spec is not None:
            if alone:
                raise SampleError(
                    f"standardize takes inputs that are tensors, not {type(block.sample(0).u).__name__}. "
                    "Put them together in a streams.map before."
                )
            return None
        u, target, scale = block.u[0], block.target, None
        scales = scales and block.target_spec is None and all(map(is_scalable, target))
        parts = [("an input", u), *(("a target", leaf) for leaf in target if scales)]
        for what, value in parts:
            if not bool(value.isfinite().all()):
                if alone:
                    raise _not_finite(what, value[0])
                return None
        if scales and target:
            if not alone and not (block.has_target(0) or self._targets.now()):
                # Before the first target of all, a sample has no scale.
                return None
            scaled, scale = self._targets.apply(target[0], block.known)
            target = [scaled]
        elif scales:
            scale = self._targets.now(block.count)
        return replace(block, u=[self._scaled(u)], target=target, scale=scale, samples=None)

    def sample(self, sample: Sample) -> Sample | None:
        """A sample that comes by itself; its label is scaled as its target would have been."""
        if self._scale_target and sample.target is None and sample.id is not None:
            self._targets.note(sample.id)
        return super().sample(sample)

    def label(self, label: Label) -> Label:
        """A label whose target is scaled as its sample was."""
        return self._targets.label(label) if self._scale_target and is_scalable(label.target) else label

    def _scaled(self, u: Tensor) -> Tensor:
        """Inputs, one after the other along the first axis, each by what is known once it has come."""
        rows = self._moments.rows(u)
        mean, spread = self._moments.extend(rows)
        scaled = in_deviations(rows, mean, spread, self._clip)
        measured = self.inner.numbers
        if measured is not None and len(measured) == rows.shape[1]:
            scaled = np.where(measured, scaled, rows)
        dtype = u.dtype if u.dtype.is_floating_point else torch.get_default_dtype()
        return torch.from_numpy(scaled).reshape(u.shape).to(u.device, dtype)


def _not_finite(what: str, value: Tensor) -> SampleError:
    return SampleError(
        f"{what} of standardize is not finite: {value}. It would be part of every mean to come: correct the "
        'source, or use finite(stream, policy="skip") before.'
    )


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
        self._moments = RunningMoments("targets")
        # Mean and deviation for samples that wait for their labels.
        self._waiting: dict[Id, tuple[list[float], list[float]]] = {}

    def state(self) -> dict[str, Any]:
        """Everything, in values that JSON keeps exactly."""
        return {"moments": self._moments.state(), "waiting": [[id, *both] for id, both in self._waiting.items()]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken."""
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
