"""Tensors where a loop can read them: on its device, without gaps; a copy is made once and kept while it holds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Bring:
    """Brings rates, β and samples to a device, block after block.

    Most of them are the same tensors in every block: on a GPU each copy would cost as much as several steps.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], tuple[Tensor, int, Tensor]] = {}

    def __call__(self, parts: Sequence[Sequence[Tensor]], device: torch.device) -> list[list[Tensor]]:
        """The same lists of tensors on `device`."""
        return [
            [self._one((number, place), tensor, device) for place, tensor in enumerate(part)]
            for number, part in enumerate(parts)
        ]

    def _one(self, key: tuple[int, int], tensor: Tensor, device: torch.device) -> Tensor:
        if tensor.device == device:
            return tensor.contiguous()
        source, version, copy = self._kept.get(key, (None, -1, tensor))
        # A tensor that was changed in place has another version.
        if source is not tensor or version != tensor._version or copy.device != device:
            copy = tensor.to(device).contiguous()
            self._kept[key] = (tensor, tensor._version, copy)
        return copy
