"""Named tensors of a checkpoint; each is taken once."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch
from torch import Tensor


class Tensors:
    """Named tensors of a checkpoint, taken one by one.

    Example:
        >>> import torch
        >>> tensors = Tensors({"h/0": torch.zeros(2), "z/0": torch.ones(2)})
        >>> tensors.take("h/0", like=torch.ones(2)), tensors.names()
        (tensor([0., 0.]), ['z/0'])
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._left = dict(tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str, like: Tensor | None = None) -> Tensor:
        """The tensor of this name, which must have the shape and dtype of `like`."""
        if name not in self._left:
            raise ValueError(f"the tensor {name!r} is missing")
        tensor = self._left.pop(name)
        if like is not None and (tensor.shape != like.shape or tensor.dtype is not like.dtype):
            raise ValueError(
                f"the tensor {name!r} is {tensor.dtype}{list(tensor.shape)}, expected "
                f"{like.dtype}{list(like.shape)}"
            )
        return tensor

    def keep(self, name: str, device: torch.device, like: Tensor | None = None) -> Tensor:
        """As `take`, in memory of its own on a device."""
        return self.take(name, like).to(device, copy=True)

    def under(self, prefix: str) -> Tensors:
        """Those whose names begin with `prefix`, by the rest of their names."""
        names = [name for name in self._left if name.startswith(prefix)]
        return Tensors({name.removeprefix(prefix): self._left.pop(name) for name in names})

    def names(self) -> list[str]:
        """Names of the tensors that have not been taken."""
        return list(self._left)

    def items(self) -> list[tuple[str, Tensor]]:
        """Names and tensors that have not been taken."""
        return list(self._left.items())

    def counted(self, prefix: str) -> list[str]:
        """Names that are `prefix` followed by 0, 1, 2 and so on."""
        return list(itertools.takewhile(self._left.__contains__, (f"{prefix}{i}" for i in itertools.count())))
