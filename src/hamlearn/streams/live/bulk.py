"""Many arrivals at once: each has few numbers, and making tensors of them one by one takes longest."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn.streams.blocks import Block
from hamlearn.streams.live.buffer import Arrival

_EXACT = 2**53
"""Up to here every whole number is a float."""


def in_one_block(
    arrivals: Sequence[Arrival], dtype: torch.dtype, target_dtype: torch.dtype | None
) -> Block | None:
    """Samples of one form and shape as a block without times; `None` where they are to be looked at one by one.

    Args:
        arrivals: What has arrived.
        dtype: Of inputs in messages.
        target_dtype: Of targets in messages; `None` keeps whole numbers whole.

    Example:
        >>> first = Arrival("message", [1, 0.5], 2, None, "line 1", 0.0)
        >>> second = Arrival("message", [3, 4], None, None, "line 2", 0.0)
        >>> block = in_one_block([first, second], torch.float32, None)
        >>> block.u[0].tolist(), block.target[0].tolist(), block.known
        ([[1.0, 0.5], [3.0, 4.0]], [2, 2], [True, False])
        >>> second.u = ["three", "four"]
        >>> in_one_block([first, second], torch.float32, None) is None
        True
    """
    form = arrivals[0].form
    # Lists, here and below: a generator takes twice as long for each.
    odd = [one.form != form or one.label or one.id is not None for one in arrivals]
    if form in ("item", "bad") or any(odd):
        return None
    u = _arrays([one.u for one in arrivals]) if form == "arrays" else _numbers([one.u for one in arrivals], dtype)
    if u is None:
        return None
    targets = [one.target for one in arrivals]
    known = [target is not None for target in targets]
    if not any(known):
        return Block(len(arrivals), [u], None, [], None)
    if not all(known):
        example = targets[known.index(True)]
        targets = [example if target is None else target for target in targets]
    target = _arrays(targets) if form == "arrays" else _numbers(targets, target_dtype)
    if target is None:
        return None
    return Block(len(arrivals), [u], None, [target], None, None if all(known) else known)


def _arrays(values: list[Any]) -> Tensor | None:
    """Arrays of one shape and type as one tensor."""
    first = values[0]
    shape, dtype = first.shape, first.dtype
    odd = [value.shape != shape or value.dtype != dtype for value in values]
    if any(odd):
        return None
    return torch.from_numpy(np.array(values))


def _numbers(values: list[Any], dtype: torch.dtype | None) -> Tensor | None:
    """Numbers, or lists of equally many, as one tensor of finite ones, to the bit as one by one; else `None`."""
    kinds = set(map(type, values))
    if kinds == {list}:
        if len(set(map(len, values))) > 1 or not values[0]:
            return None
        kinds = set(map(type, itertools.chain.from_iterable(values)))
    if not kinds <= {int, float}:
        return None
    if dtype is None and len(kinds) == 1:
        dtype = torch.int64 if int in kinds else torch.get_default_dtype()
    whole = dtype == torch.int64 and kinds == {int}
    if not whole and dtype not in (torch.float32, torch.float64):
        return None
    try:
        array = np.array(values, dtype=np.int64 if whole else np.float64)
    except OverflowError:
        return None
    if not whole and int in kinds and bool((np.abs(array) > _EXACT).any()):
        return None
    tensor = torch.from_numpy(array).to(dtype)
    return tensor if whole or bool(tensor.isfinite().all()) else None
