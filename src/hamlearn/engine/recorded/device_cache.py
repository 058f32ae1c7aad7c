"""Tensors where a loop can read them: on its device, without gaps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

SMALL = 4096
"""Elements up to which it is cheaper to look whether numbers are still the same than to copy them to a GPU."""


class DeviceCache:
    """Brings rates, β and samples to a device, block after block.

    Rates and β are mostly the same numbers in every block, and on a GPU each copy costs as much as several steps.
    Small tensors are compared. The first list is made by the caller and never changed by anyone: there it is
    enough that a tensor is the same one.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def __call__(self, parts: Sequence[Sequence[Tensor]], device: torch.device) -> list[list[Tensor]]:
        """The same lists of tensors on `device`; the first one is that of the rates."""
        if device.type == "cpu" and all(tensor.is_cpu for part in parts for tensor in part):
            return [[x if x.is_contiguous() else x.contiguous() for x in part] for part in parts]
        return [
            [self._one((number, place), tensor, device) for place, tensor in enumerate(part)]
            for number, part in enumerate(parts)
        ]

    def _one(self, key: tuple[int, int], tensor: Tensor, device: torch.device) -> Tensor:
        made, small = key[0] == 0, tensor.numel() <= SMALL
        if tensor.device == device or not (made or small):
            return tensor.to(device).contiguous()
        kept = self._kept.get(key)
        if kept is not None and kept[1].device == device:
            numbers, copy = kept
            equal = small and numbers.dtype == tensor.dtype and torch.equal(numbers, tensor)
            if equal or (made and numbers is tensor):
                return copy
        copy = tensor.to(device).contiguous()
        self._kept[key] = (tensor if made else tensor.clone(), copy)
        return copy
