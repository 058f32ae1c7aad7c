"""A recorded step compared with the eager step: on the first sample, and in audits later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, fx

from hamlearn.errors import AuditError
from hamlearn.loops.recording import on_device
from hamlearn.loops.step_cache import CompiledStep
from hamlearn.loops.values import UnsupportedError

Groups = Mapping[str, Sequence[Tensor]]
"""Tensors by what they are."""
_NOISE = 1000
"""Rounding errors, in units of the last place of the largest number, that a step may add up."""


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
    """Raise if a recording gives another value of a group.

    Each group has one scale, the largest number in it, as a tensor may hold nothing but rounding. Half of the
    digits of its type have to agree, except for noise beside the largest number of all groups.

    Raises:
        UnsupportedError: With the name of the group.

    Examples:
        >>> require_alike({"y": [torch.tensor([1.0, 2.0])]}, {"y": [torch.tensor([1.0, 2.00001])]})
        >>> require_alike({"y": [torch.tensor([1.0, 2.0])]}, {"y": [torch.tensor([1.0, 2.1])]})
        Traceback (most recent call last):
        hamlearn.loops.values.UnsupportedError: recorded, the step gives another y than the eager step does: ...
    """
    name = differing(eager, recorded)
    if name is not None:
        raise UnsupportedError(
            f"recorded, the step gives another {name} than the eager step does: it depends on something that a "
            "recording does not see"
        )


def audit(compiled: CompiledStep, eager: Callable[[], Groups], found: Callable[[], Groups]) -> None:
    """Compare a step by the compiled loop with the eager step.

    Args:
        compiled: The step; one difference makes it doubted, a second one in the next block raises. A step that
            compares numbers (as ReLU does) may fall to either side of a tie by rounding, which is not a fault.
        eager: Makes the step eagerly.
        found: Makes it by the loop.

    Raises:
        AuditError: With the names of the groups that differ.
    """
    expected = eager()
    if not all(bool(x.isfinite().all()) for group in expected.values() for x in group if _compared(x)):
        return  # a step that will raise has nothing to compare
    before, compiled.doubted = compiled.doubted, differing(expected, found())
    if before is not None and compiled.doubted is not None:
        raise AuditError(
            f"the compiled step gives another {compiled.doubted} than the eager step: it reads something that "
            "has changed since it was recorded. Call learner.recompile() after such a change, hold the value as a "
            "number in an attribute of the module or as a buffer, or use engine='eager'"
        )


def differing(eager: Groups, recorded: Groups) -> str | None:
    """The name of the first group whose tensors differ by more than rounding."""
    pairs = {name: _pairs(eager[name], recorded[name]) for name in eager if name in recorded}
    scales = {name: max((_largest(a) for a, _ in group or ()), default=0.0) for name, group in pairs.items()}
    overall = max(scales.values(), default=0.0)
    for name, group in pairs.items():
        if group is None or not all(_alike(a, b, scales[name], overall) for a, b in group):
            return name
    return None


def _pairs(expected: Sequence[Tensor], found: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]] | None:
    """The pairs that are compared; `None` if the shapes differ."""
    if [x.shape for x in expected] != [x.shape for x in found]:
        return None
    return [(a, b) for a, b in zip(expected, found, strict=True) if a.numel() and _compared(a)]


def _compared(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _largest(tensor: Tensor) -> float:
    return float(torch.where(tensor.isfinite(), tensor, torch.zeros_like(tensor)).abs().max())


def _alike(a: Tensor, b: Tensor, scale: float, overall: float) -> bool:
    # Half of the digits of the group. The derivative of a saturated unit, 1 - tanh², is all rounding: its error is
    # that of the 1, so a difference that is noise beside the other groups is none.
    eps = torch.finfo(a.dtype).eps
    return torch.allclose(
        a, b.to(a.dtype), rtol=0.0, atol=eps**0.5 * scale + _NOISE * eps * overall, equal_nan=True
    )
