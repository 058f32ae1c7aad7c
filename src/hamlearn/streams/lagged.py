"""Past targets as inputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn.errors import ConfigError, SampleError
from hamlearn.sample import Label
from hamlearn.streams.base import Stream
from hamlearn.streams.blocks import Block
from hamlearn.streams.iterables import from_iterable
from hamlearn.streams.values import Spec, TensorSpec
from hamlearn.streams.wrapped import Transform


def autoregress(stream: Iterable[Any], lags: int, relative: bool = False, size: int | None = None) -> Stream:
    """The last `lags` targets as further entries of the input, the newest first.

    A target is known to the learner by the time of the next input; before there is one, the entries are 0. A
    missing target repeats the one before.

    Args:
        stream: Samples whose inputs and targets are vectors.
        lags: How many past targets.
        relative: Whether past targets and the target itself are given as differences from the newest past
            target. An output of 0 is then the prediction that nothing changes, and absolute errors are
            those of the target itself. The first sample, which has no past, loses its target.
        size: Entries of a target. `None` takes them from the stream's `spec`, or from the first sample, which must
            then have a target.

    Example:
        >>> pairs = [([0.0], [5.0]), ([0.0], [6.0]), ([0.0], [8.0])]
        >>> [(s.u.tolist(), None if s.target is None else s.target.item()) for s in autoregress(pairs, 2, True)]
        [([0.0, 0.0, 0.0], None), ([0.0, 0.0, 0.0], 1.0), ([0.0, 0.0, -1.0], 2.0)]
    """
    if lags < 1:
        raise ConfigError(f"lags={lags} looks at no past target. Give 1 or more.")
    return AutoregressiveStream(from_iterable(stream), lags, relative, size)


class AutoregressiveStream(Transform):
    """What `autoregress` returns."""

    _past: list[list[float]]
    _size: int | None
    _fixed = ("_lags", "_relative")

    def __init__(self, inner: Stream, lags: int, relative: bool, size: int | None) -> None:
        super().__init__(inner)
        self._lags, self._relative, self._entries = lags, relative, size
        self._rewind()

    @property
    def spec(self) -> Spec:
        """The input of the stream inside, longer by the past targets."""
        spec = self.inner.spec
        if not all(isinstance(part, TensorSpec) and len(part.shape) == 1 for part in (spec.u, spec.target)):
            return Spec(None, spec.target, spec.length)
        more = self._lags * (spec.target.shape[0] or 0)
        return Spec(TensorSpec(((spec.u.shape[0] or 0) + more,), spec.u.dtype), spec.target, spec.length)

    def _fresh(self) -> dict[str, Any]:
        # The last targets, the newest first, and the entries of one: samples may have come before any target.
        return {"_past": [], "_size": self._entries}

    @property
    def numbers(self) -> list[bool] | None:
        """As in the stream inside; past targets are measured."""
        inner, spec = self.inner.numbers, self.inner.spec.target
        if inner is None or not isinstance(spec, TensorSpec) or len(spec.shape) != 1:
            return None
        return inner + [True] * (self._lags * (spec.shape[0] or 0))

    def encode(self, row: Any) -> Tensor:
        """As the stream inside, longer by the targets so far."""
        u, size = self.inner.encode(row), self._known_size()
        if size is None:
            raise SampleError("the size of a target is not known yet. Give autoregress(..., size=1).")
        past = torch.zeros(self._lags, size, dtype=torch.float64)
        known = torch.tensor(self._past, dtype=torch.float64).reshape(-1, size)
        past[: len(known)] = known - known[:1] if self._relative else known
        return torch.cat([u, past.reshape(-1).to(u).expand(*u.shape[:-1], -1)], -1)

    def change(self, block: Block) -> Block | None:
        """A block with the past targets as inputs; it becomes the past itself."""
        problem = self._problem(block)
        if problem is not None:
            if block.count > 1:
                return None
            raise SampleError(problem)
        assert block.u is not None
        n, target = block.count, block.target[0] if block.target else None
        size: int = (self._known_size() or 0) if target is None else target.shape[1]
        self._size = size
        known = np.array([target is not None] * n if block.known is None else block.known)
        values = np.zeros((n, size)) if target is None else target.detach().cpu().double().numpy()
        before = np.array(self._past[::-1], dtype=np.float64).reshape(-1, size)
        p = len(before)
        # A missing target repeats the one before, if there is any.
        last = np.maximum.accumulate(np.where(known, np.arange(p, p + n), p - 1))
        series = np.concatenate([before, values])[last]
        first = int((last < 0).sum())
        past = np.concatenate([np.zeros((self._lags, size)), before, series[first:]])
        self._past = past[self._lags :][::-1][: self._lags].tolist()
        # How many targets there were before each sample: the past of one ends with the newest of them.
        count, lag = p + np.maximum(np.arange(n) - first, 0), np.arange(self._lags)
        shown = past[self._lags + count[:, None] - 1 - lag]
        if self._relative:
            newest = shown[:, 0]
            shown = np.where((count[:, None] > lag)[..., None], shown - newest[:, None], 0.0)
            known = known & (count > 0)
            target = None if target is None or not known.any() else target - torch.from_numpy(newest).to(target)
        more = torch.from_numpy(shown.reshape(n, -1)).to(block.u[0])
        return replace(
            block,
            u=[torch.cat([block.u[0], more], 1)],
            target=[] if target is None else [target],
            known=None if target is None or known.all() else known.tolist(),
            samples=None,
        )

    def label(self, label: Label) -> Label:
        """It passes by, where targets are not relative."""
        if self._relative:
            raise SampleError(
                f"the label of id={label.id!r} comes later than its sample, and autoregress(relative=True) takes "
                "differences from the target before: use relative=False, or give samples their targets"
            )
        return label

    def _problem(self, block: Block) -> str | None:
        """Why a block cannot be extended, or the first sample of it."""
        plain = block.u is not None and (block.u_spec, block.target_spec) == (None, None)
        if not plain or any(leaf.dim() != 2 for leaf in (*(block.u or ()), *block.target)):
            return (
                "autoregress takes inputs and targets that are vectors, without a batch dimension. "
                "Shape them in a streams.map before."
            )
        if self._relative and block.scale is not None:
            return (
                "autoregress(relative=True) takes differences of targets, and these have been scaled by a scale "
                "that moves. Standardise around it: standardize(autoregress(...), scale_target=True)."
            )
        size = self._known_size()
        if self._past and block.target and block.target[0].shape[1] != size:
            return (
                f"autoregress has seen targets of {size} entries, and now one of {block.target[0].shape[1]}. Give "
                "all targets one size."
            )
        # Read one by one, a size that a later sample of the block has is not known at the first one.
        if size is None and not block.has_target(0):
            return (
                "the first sample has no target, so that the size of a target is not known. Give "
                "autoregress(..., size=1), or begin with a sample that has one."
            )
        return None

    def _known_size(self) -> int | None:
        """Entries of a target, as far as they are known before one has come."""
        if self._past:
            return len(self._past[0])
        if self._size is not None:
            return self._size
        spec = self.inner.spec.target
        return spec.shape[0] if isinstance(spec, TensorSpec) and len(spec.shape) == 1 else None
