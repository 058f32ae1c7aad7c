"""What every stream promises, as one function that any stream can be put through, yours too."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from hamlearn.errors import StreamError
from hamlearn.sample import Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.values import TensorSpec


def check(make: Callable[[], Stream], n: int = 600, places: Iterable[int] | None = None) -> None:
    """Raise `StreamError` if a stream breaks a promise; return if it keeps them all.

    Equal streams yield equal samples; a second pass is like the first; a state that went through JSON resumes to
    the bit, from any place; the spec tells shapes, types and length.

    Args:
        make: Builds the stream; called again and again, it must build equal ones.
        n: Samples to look at.
        places: After how many samples to stop and resume; `None` takes the first few, and some on the way to `n`.

    Example:
        >>> from hamlearn.streams import signals
        >>> check(lambda: signals.henon(seed=3))
    """
    stream = make()
    whole = _look(stream, n)
    _demand(_same(whole, _look(stream, n)), "a second pass differs from the first")
    _demand(_same(whole, _look(make(), n)), "two streams that were built alike differ")
    _check_spec(stream, whole, n)
    if places is None:
        places = sorted({*range(8), *(len(whole) * k // 7 for k in range(8))})
    for place in places:
        if place > len(whole):
            continue
        _look(stream, place)
        state = json.loads(json.dumps(stream.state_dict(), allow_nan=False))
        later = make()
        later.load_state_dict(state)
        rest = _look(later, n - place)
        _demand(_same(rest, whole[place:]), f"resumed after {place} samples, it does not go on where it was")


def _check_spec(stream: Stream, samples: list[Sample], n: int) -> None:
    spec = stream.spec
    for k, sample in enumerate(samples):
        for name, tree, said in (("u", sample.u, spec.u), ("target", sample.target, spec.target)):
            if isinstance(tree, torch.Tensor) and isinstance(said, TensorSpec):
                fits = tree.dtype == said.dtype and len(tree.shape) == len(said.shape)
                fits = fits and all(b in (None, a) for a, b in zip(tree.shape, said.shape, strict=True))
                _demand(fits, f"{name} of sample {k} is {tree.dtype}{list(tree.shape)}, but the spec says {said}")
    if stream.length == math.inf:
        _demand(len(samples) == n, f"it says that it is endless, but ended after {len(samples)} samples")
    elif stream.length is not None:
        expected = min(int(stream.length), n)
        _demand(len(samples) == expected, f"it says that its length is {stream.length}, but gave {len(samples)}")


def _look(stream: Stream, n: int) -> list[Sample]:
    return list(itertools.islice(stream, n))


def _demand(kept: bool, broken: str) -> None:
    if not kept:
        raise StreamError(
            f"the stream breaks a promise: {broken}. See hamlearn.streams.Stream for what it promises."
        )


def _same(first: list[Sample], second: list[Sample]) -> bool:
    return len(first) == len(second) and all(
        _equal(a.u, b.u) and _equal(a.target, b.target) and a.tau == b.tau and a.boundary == b.boundary
        for a, b in zip(first, second, strict=True)
    )


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)
