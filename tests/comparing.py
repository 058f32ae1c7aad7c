"""What it means that two results are the same."""

from typing import Any

import torch

import hamlearn as hl


def same(one: Any, other: Any) -> bool:
    """Equal to the bit: tensors, other values, and dicts, lists and tuples of them."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def weights(learner: hl.Learner) -> list[torch.Tensor]:
    """Copies of the weights as they are now."""
    return [weight.detach().clone() for weight in learner.network.parameters()]
