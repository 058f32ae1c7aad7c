"""Tensors where a loop can read them: on its device, without gaps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

SMALL = 4096
"""Elements up to which it is cheaper to look whether numbers are still the same than to copy them to a GPU."""


class Bring:
    """Brings rates, β and samples to a device, block after block.

    Rates and β are mostly the same numbers in every block, and on a GPU each copy costs as much as several steps.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def __call__(self, parts: Sequence[Sequence[Tensor]], device: torch.device) -> list[list[Tensor]]:
        """The same lists of tensors on `device`."""
        return [
            [self._one((number, place), tensor, device) for place, tensor in enumerate(part)]
            for number, part in enumerate(parts)
        ]

    def _one(self, key: tuple[int, int], tensor: Tensor, device: torch.device) -> Tensor:
        if tensor.device == device or tensor.numel() > SMALL:
            return tensor.to(device).contiguous()
        kept = self._kept.get(key)
        if kept is not None:
            numbers, copy = kept
            alike = (numbers.dtype, copy.device) == (tensor.dtype, device)
            if alike and torch.equal(numbers, tensor):
                return copy
        copy = tensor.to(device).contiguous()
        self._kept[key] = (tensor.clone(), copy)
        return copy
