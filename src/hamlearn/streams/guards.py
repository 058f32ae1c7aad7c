"""Streams made safe: inputs that are not finite, and time steps that are too long."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from hamlearn._base.finite import is_finite
from hamlearn.errors import ConfigError, SampleError
from hamlearn.sample import Label, Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.blocks import Block
from hamlearn.streams.iterables import from_iterable
from hamlearn.streams.values import Spec
from hamlearn.streams.wrapped import Transform


def finite(stream: Iterable[Any], policy: Literal["raise", "skip"] = "raise") -> Stream:
    """A guard against inputs that hold NaN or infinity; a target that does is taken as missing.

    Args:
        stream: The samples.
        policy: `"raise"` an error; or `"skip"` the sample, whose `tau` is added to the next one's, so that
            time stays true.

    `skipped` counts what was left out.

    Example:
        >>> guarded = finite([[1.0], [float("nan")], [3.0]], policy="skip")
        >>> [sample.u.item() for sample in guarded]
        [1.0, 3.0]
    """
    if policy not in ("raise", "skip"):
        raise ConfigError(f'policy={policy!r} is not known. Give "raise" or "skip".')
    return FiniteStream(from_iterable(stream), policy)


def clip_tau(stream: Iterable[Any], longest: float) -> Stream:
    """Time steps of at most `longest`: the rest of a gap in a feed is not integrated.

    Euler's rule forgets by the factor 1 − τη, which overshoots where τη is above 1, and moves the weights in
    proportion to τ: one long gap can undo much.

    Args:
        stream: The samples.
        longest: The longest time step that is let through; longer ones become this.

    Example:
        >>> import torch
        >>> [sample.tau for sample in clip_tau([Sample(torch.zeros(1), tau=t) for t in (0.5, 9.0)], 1.0)]
        [0.5, 1.0]
    """
    if not longest > 0:
        raise ConfigError(f"longest={longest} must be a positive number.")
    return ClippedTauStream(from_iterable(stream), longest)


class FiniteStream(Transform):
    """What `finite` returns. `skipped` counts what it left out."""

    passes_inputs = True
    _n = skipped = 0
    _waited = 0.0
    _moves = ("_n", "skipped", "_waited")

    def __init__(self, inner: Stream, policy: str) -> None:
        super().__init__(inner)
        self._policy = policy

    @property
    def spec(self) -> Spec:
        """As the stream inside; how many samples are left out cannot be known before."""
        spec = self.inner.spec
        known = self._policy == "raise" or spec.length == math.inf
        return Spec(spec.u, spec.target, spec.length if known else None)

    def change(self, block: Block) -> Block | None:
        """The block itself, where all of it is finite and no time is owed."""
        assert block.u is not None
        if self._waited or not is_finite([*block.u, *block.target]):
            return None
        self._n += block.count
        return block

    def label(self, label: Label) -> Label:
        """It passes by, and counts."""
        self._n += 1
        return label

    def sample(self, sample: Sample) -> Sample | None:
        """A sample that is finite; `None` where it is left out."""
        self._n += 1
        if sample.target is not None and not is_finite(sample.target):
            sample = replace(sample, target=None)
        if not is_finite(sample.u):
            self._leave_out(sample)
            return None
        if self._waited and sample.tau is not None:
            sample, self._waited = replace(sample, tau=sample.tau + self._waited), 0.0
        return sample

    def _leave_out(self, sample: Sample) -> None:
        if self._policy == "raise":
            raise SampleError(
                f"the input of sample {self._n - 1} is not finite: {sample.u}. "
                'Correct the source, or use finite(stream, policy="skip").'
            )
        if sample.boundary:
            raise SampleError(
                f"the input of sample {self._n - 1} is not finite, and it ends a sequence, so that leaving it out "
                "would join two sequences. Correct the source."
            )
        self.skipped += 1
        self._waited += sample.tau or 0.0


class ClippedTauStream(Transform):
    """What `clip_tau` returns. `clipped` counts the steps that were longer."""

    passes_inputs = True
    clipped = 0
    _moves, _fixed = ("clipped",), ("_longest",)

    def __init__(self, inner: Stream, longest: float) -> None:
        super().__init__(inner)
        self._longest = longest

    def change(self, block: Block) -> Block:
        """A block whose time steps are cut."""
        if block.tau is None:
            return block
        self.clipped += sum(tau is not None and tau > self._longest for tau in block.tau)
        taus = [None if tau is None else min(tau, self._longest) for tau in block.tau]
        samples = None if block.samples is None else list(map(self._cut, block.samples))
        return replace(block, tau=taus, samples=samples)

    def _cut(self, sample: Sample) -> Sample:
        return sample if sample.tau is None else replace(sample, tau=min(sample.tau, self._longest))
