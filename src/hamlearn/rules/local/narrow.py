"""Weights that are stored in fewer bits than everything is computed in.

Where a weight is used it is widened, which is exact; where it moves, the new value is rounded to its own type,
once. States, costates and ω are never narrow.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hamlearn.errors import ConfigError


def check_compute_dtype(
    wide: object, parameters: Sequence[tuple[str, Tensor]], buffers: Sequence[tuple[str, Tensor]]
) -> None:
    """Raise unless all weights can be widened to `wide`, and nothing else needs to be."""
    if wide not in (torch.float32, torch.float64):
        raise ConfigError(f"compute_dtype={wide!r} must be torch.float32 or torch.float64, or None")
    assert isinstance(wide, torch.dtype)
    for name, weight in parameters:
        if not weight.is_floating_point() or weight.dtype.itemsize > wide.itemsize:
            raise ConfigError(
                f"{name} is {weight.dtype}, which {wide} cannot hold: choose a wider compute_dtype, or convert "
                "the module"
            )
    for name, buffer in buffers:
        if buffer.is_floating_point() and buffer.dtype is not wide:
            raise ConfigError(
                f"buffer {name} is {buffer.dtype}, and compute_dtype={wide} keeps weights alone in fewer bits: "
                f"convert it, as by module.{name} = module.{name}.to({wide})"
            )


def widened(module: nn.Module, wide: torch.dtype, theta: Sequence[Tensor] | None = None) -> dict[str, Tensor]:
    """The weights of a module as it is to be called with, by name.

    Args:
        module: Owns the weights.
        wide: The type to compute in.
        theta: Its learnable weights, widened already.

    Example:
        >>> layer = nn.Linear(2, 1, dtype=torch.bfloat16)
        >>> {name: weight.dtype for name, weight in widened(layer, torch.float32).items()}
        {'weight': torch.float32, 'bias': torch.float32}
    """
    given = iter(theta or ())
    return {
        name: next(given) if theta is not None and weight.requires_grad else weight.detach().to(wide)
        for name, weight in module.named_parameters()
    }
