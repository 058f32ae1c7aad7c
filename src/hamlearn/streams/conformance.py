"""The contract of sources, as one function that any stream can be put through."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from hamlearn.errors import StreamError
from hamlearn.sample import Label
from hamlearn.streams.blocks import Block
from hamlearn.streams.values import TensorSpec, packed

SIZES = (1, 7, 64)
"""Samples that are asked for at once."""


def check(make: Callable[[], Any], n: int = 600, places: Iterable[int] | None = None) -> None:
    """Raise `StreamError` if a stream breaks the contract of `hamlearn.streams.Stream`; return if it keeps it.

    Equal streams yield equal samples, one by one and in blocks. A second pass is like the first. A state that went
    through JSON resumes exactly, from any place. The spec describes shapes, types and length. A stream need not be
    an `hl.streams.Stream`: what it does not have (`block`, `spec`) is not looked at.

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
    if getattr(stream, "replayable", True):
        _demand(_same(whole, _look(stream, n)), "a second pass differs from the first")
    _demand(_same(whole, _look(make(), n)), "two streams that were built alike differ")
    if hasattr(stream, "spec"):
        _check_spec(stream, whole, n)
    if hasattr(stream, "block"):
        for size in SIZES:
            _demand(_same(whole, _in_blocks(make(), n, size)), f"read in blocks of {size}, it gives other samples")
    if places is None:
        places = sorted({*range(8), *(len(whole) * k // 7 for k in range(8))})
    for place in places:
        if place <= len(whole):
            _check_resumed(make, whole, n, place)


def _check_resumed(make: Callable[[], Any], whole: list[Any], n: int, place: int) -> None:
    stream = make()
    _look(stream, place)
    state = json.loads(json.dumps(stream.state_dict(), allow_nan=False))
    broken = f"resumed after {place} samples, it does not continue where it was"
    for read in (_look, _in_blocks) if hasattr(stream, "block") else (_look,):
        later = make()
        later.load_state_dict(state)
        _demand(_same(read(later, n - place), whole[place:]), broken)


def _check_spec(stream: Any, samples: list[Any], n: int) -> None:
    spec = stream.spec
    for k, sample in enumerate(samples):
        if isinstance(sample, Label):
            continue
        for name, tree, said in (("u", sample.u, spec.u), ("target", sample.target, spec.target)):
            if isinstance(tree, torch.Tensor) and isinstance(said, TensorSpec):
                fits = tree.dtype == said.dtype and len(tree.shape) == len(said.shape)
                fits = fits and all(b in (None, a) for a, b in zip(tree.shape, said.shape, strict=True))
                _demand(fits, f"{name} of sample {k} is {tree.dtype}{list(tree.shape)}, but the spec says {said}")
    if spec.length == math.inf:
        _demand(len(samples) == n, f"it says that it is endless, but ended after {len(samples)} samples")
    elif spec.length is not None:
        expected = min(int(spec.length), n)
        _demand(len(samples) == expected, f"it says that its length is {spec.length}, but gave {len(samples)}")


def _look(stream: Any, n: int) -> list[Any]:
    return list(itertools.islice(stream, n))


def _in_blocks(stream: Any, n: int, size: int = 16) -> list[Any]:
    found: list[Any] = []
    iter(stream)
    while len(found) < n and (block := stream.block(min(size, n - len(found)))) is not None:
        found += block.each() if isinstance(block, Block) else block
    return found


def _demand(kept: bool, broken: str) -> None:
    if not kept:
        raise StreamError(
            f"the stream breaks its contract: {broken}. See hamlearn.streams.Stream for what a source has to do."
        )


def _same(first: list[Any], second: list[Any]) -> bool:
    """Whether events are equal bit-for-bit."""
    return list(map(_as_json, first)) == list(map(_as_json, second))


def _as_json(event: Any) -> list[Any]:
    if isinstance(event, Label):
        return ["label", event.id, packed(event.target)]
    return [packed(part) for part in (event.u, event.target, event.tau, event.boundary, event.id)]
