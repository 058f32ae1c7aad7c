"""What a file claims, looked at before it is believed; what cannot be is a `ValueError` that names it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

MOST = 2**63 - 1


def record(value: Any, what: str, *keys: str) -> dict[str, Any]:
    """A mapping with exactly these keys."""
    if not isinstance(value, dict) or set(value) != set(keys):
        found = sorted(value) if isinstance(value, dict) else shown(value)
        raise ValueError(f"{what} is {found} where the entries {sorted(keys)} belong")
    return value


def entries(value: Any, what: str) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise ValueError(f"{what} is {shown(value)} and no list")  # noqa: TRY004 (the file is wrong, not a caller)
    return value


def whole(value: Any, what: str, least: int = 0, most: int = MOST) -> int:
    """A whole number within bounds."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{what} is {shown(value)} and no whole number from {least} to {most}")
    return value


def number(value: Any, what: str, *, positive: bool = False) -> float:
    """A finite number of at least 0, or above it."""
    fits = type(value) in (int, float) and abs(value) < math.inf
    if not fits or value < 0 or (positive and value == 0):
        raise ValueError(f"{what} is {shown(value)} and no finite number {'above' if positive else 'from'} 0")
    return float(value)


def flag(value: Any, what: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{what} is {shown(value)}, neither true nor false")  # noqa: TRY004 (as above)
    return value


def generator_state(state: Tensor, what: str, device: str | None) -> Tensor:
    """A copy of a state that PyTorch's generator on this device takes; `None` for a device that is not here."""
    try:
        if device is not None:
            torch.Generator(device).set_state(state)
        elif state.dtype is not torch.uint8 or state.dim() != 1:
            raise TypeError("it is not a row of bytes")
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{what} is no state of a random number generator ({error})") from error
    return state.clone()


def shown(value: Any, most: int = 80) -> str:
    """A value for a message, cut where it is longer than `most` characters."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # too deep, or an integer of too many digits
        text = type(value).__name__
    return text if len(text) <= most else f"{text[: most - 3]}..."


class Tensors:
    """Named tensors of a file; each is taken once, and none may be left.

    Example:
        >>> import torch
        >>> tensors = Tensors({"h/0": torch.zeros(2)})
        >>> tensors.take("h/0", like=torch.ones(2))
        tensor([0., 0.])
        >>> tensors.done()
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._left = dict(tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str, like: Tensor | None = None) -> Tensor:
        """The tensor of this name, of the shape and dtype of `like`."""
        if name not in self._left:
            raise ValueError(f"the tensor {name!r} is missing")
        tensor = self._left.pop(name)
        if like is not None and (tensor.shape != like.shape or tensor.dtype is not like.dtype):
            raise ValueError(
                f"the tensor {name!r} is {tensor.dtype}{list(tensor.shape)} where "
                f"{like.dtype}{list(like.shape)} belongs"
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
        """What is left."""
        return list(self._left)

    def counted(self, prefix: str) -> list[str]:
        """Names that are `prefix` with 0, 1, 2 and so on behind it."""
        return list(itertools.takewhile(self._left.__contains__, (f"{prefix}{i}" for i in itertools.count())))

    def done(self) -> None:
        """Raise where a tensor is left."""
        if self._left:
            raise ValueError(f"it holds tensors that do not belong: {shown(sorted(self._left))}")
