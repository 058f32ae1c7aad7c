"""What is not finite: one look at many tensors of the learner, one at those of the user, and how it is named."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn._base.torch_private import non_finite_

Part = tuple[str, Mapping[str, Tensor] | Sequence[Tensor]]
"""What to say of tensors that are not finite, and the tensors."""


def all_finite(tensors: list[Tensor]) -> bool:
    """Whether every entry of every tensor is finite, in one kernel call where PyTorch has one.

    The tensors are written to, with the values that they have: they must belong to the learner.

    Example:
        >>> import torch
        >>> all_finite([torch.ones(2), torch.zeros(3)]), all_finite([torch.ones(2), torch.tensor([float("nan")])])
        (True, False)
    """
    if not tensors:
        return True
    if len(tensors) == 1 and tensors[0].numel() == 1:
        return math.isfinite(tensors[0].item())
    device = tensors[0].device
    if device not in _scratch.kept:
        _scratch.kept[device] = torch.zeros(1, device=device), torch.ones(1, device=device)
    found, one = _scratch.kept[device]
    try:
        # The check that gradient scalers make: one call for the whole list. It also multiplies by the
        # given scale, 1 here, which leaves every bit as it is.
        non_finite_(tensors, found, one)
    except RuntimeError:
        found.zero_()
        return all(is_finite(tensor) for tensor in tensors)
    finite = not found.item()
    if not finite:
        found.zero_()
    return finite


def is_finite(tree: Any) -> bool:
    """Whether every number of a tree is finite; what the tree holds is read alone.

    Example:
        >>> import torch
        >>> is_finite((torch.ones(2), 3, None)), is_finite({"a": [1.0, float("inf")]})
        (True, False)
    """
    if isinstance(tree, Tensor):
        # A sum is finite only if all that it is made of is; where it overflows, the entries are looked at.
        plain = tree.dtype in (torch.float32, torch.float64)
        return (plain and math.isfinite(tree.sum().item())) or bool(torch.isfinite(tree).all())
    if isinstance(tree, dict):
        return all(map(is_finite, tree.values()))
    if isinstance(tree, tuple | list):
        return all(map(is_finite, tree))
    return not isinstance(tree, float | np.ndarray | np.generic) or is_finite(torch.as_tensor(tree))


def what_is_not(parts: Iterable[Part], rest: str) -> str:
    """Says which part is not finite, the first one that is not.

    Args:
        parts: What to say, and of what. Where tensors have names, `{}` stands for the names of those that are not
            finite.
        rest: What to say where all parts are finite.

    Example:
        >>> import torch
        >>> weights = {"a": torch.ones(1), "b": torch.tensor([float("inf")])}
        >>> what_is_not([("h is not finite", []), ("theta is not finite ({})", weights)], "nothing")
        'theta is not finite (b)'
    """
    for said, tensors in parts:
        if isinstance(tensors, Mapping):
            bad = [name for name, tensor in tensors.items() if not is_finite(tensor)]
            if bad:
                return said.format(", ".join(bad))
        elif not is_finite(list(tensors)):
            return said
    return rest


class _Scratch(threading.local):
    """A zero and a one on each device, kept from call to call; each thread has its own."""

    def __init__(self) -> None:
        self.kept: dict[torch.device, tuple[Tensor, Tensor]] = {}


_scratch = _Scratch()
