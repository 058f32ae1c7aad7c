"""A recording held against what it was recorded from: both are given the same values, once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, fx

from hamlearn.loops.recording import on_device
from hamlearn.loops.values import UnsupportedError

Groups = Mapping[str, Sequence[Tensor]]
"""Tensors by what they are."""


@torch.no_grad()
def outputs(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> list[Tensor]:
    """What a recorded graph makes of some inputs, operation by operation, in PyTorch."""
    device = inputs[0].device
    if device.type != "cpu":
        graph = on_device(graph, device)
    with torch.autocast(device.type, enabled=False):
        # Some that have no loops still write to their inputs.
        return list(graph(*(tensor.detach().clone() for tensor in inputs)))


def require_alike(eager: Groups, recorded: Groups) -> None:
    """Raise where a group comes out otherwise from a recording.

    Each group has one scale, the largest number in it, as a tensor may hold nothing but rounding. Half of the
    digits of its type have to agree.

    Raises:
        UnsupportedError: With the name of the group.

    Examples:
        >>> require_alike({"y": [torch.tensor([1.0, 2.0])]}, {"y": [torch.tensor([1.0, 2.00001])]})
        >>> require_alike({"y": [torch.tensor([1.0, 2.0])]}, {"y": [torch.tensor([1.0, 2.1])]})
        Traceback (most recent call last):
        hamlearn.loops.values.UnsupportedError: recorded, the step gives another y than it does ...
    """
    name = _differing(eager, recorded)
    if name is not None:
        raise UnsupportedError(
            f"recorded, the step gives another {name} than it does by itself: it goes by something that a "
            "recording does not see"
        )


def _differing(eager: Groups, recorded: Groups) -> str | None:
    for name, expected in eager.items():
        found = recorded[name]
        if [x.shape for x in expected] != [x.shape for x in found]:
            return name
        pairs = [(a, b) for a, b in zip(expected, found, strict=True) if a.numel() and _compared(a)]
        scale = max((float(_finite(a).abs().max()) for a, _ in pairs), default=0.0)
        if not all(_alike(a, b, scale) for a, b in pairs):
            return name
    return None


def _compared(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _finite(tensor: Tensor) -> Tensor:
    return torch.where(tensor.isfinite(), tensor, torch.zeros_like(tensor))


def _alike(a: Tensor, b: Tensor, scale: float) -> bool:
    near = torch.finfo(a.dtype).eps ** 0.5 * scale
    return torch.allclose(a, b.to(a.dtype), rtol=0.0, atol=near, equal_nan=True)
