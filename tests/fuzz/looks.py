"""What can be seen of a learner from outside, as values, and how two of them compare."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

import hamlearn as hl
from tests.fuzz import trees

Look = dict[str, Any]


class Mismatch(AssertionError):  # noqa: N818
    """Something is not what it must be."""


def look(learner: Any, module: nn.Module | None = None) -> Look:
    """Copies of θ, buffers, ω, h, z, and the numbers beside them."""
    network = learner.network if module is None else module
    state = learner.state
    seen: Look = {"t": state.t}
    if module is None:
        seen |= {"updates": state.updates, "tokens": learner.stored_tokens}
    groups = {
        "theta": dict(network.named_parameters()),
        "buffer": dict(network.named_buffers()),
        "omega": dict(state.omega),
        "v": dict(getattr(state, "v", {})),
        "h": trees.leaves(state.h),
        "z": trees.leaves(state.z),
    }
    for kind, named in groups.items():
        for name, value in named.items():
            if type(value) not in (Tensor, nn.Parameter):
                raise Mismatch(f"{kind} {name} is a {type(value).__name__}, not a plain tensor")
            seen[f"{kind}:{name}"] = value.detach().clone()
    seen["shared"] = sharing(network)
    return seen


def sharing(network: nn.Module) -> list[list[str]]:
    """Which names lead to one and the same parameter or buffer."""
    groups: dict[int, list[str]] = {}
    for name, value in [
        *network.named_parameters(remove_duplicate=False),
        *network.named_buffers(remove_duplicate=False),
    ]:
        groups.setdefault(id(value), []).append(name)
    return sorted(groups.values())


def same(one: Any, other: Any) -> bool:
    """Equality to the bit; NaN equals NaN."""
    if not isinstance(one, Tensor):
        return one == other
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())


def assert_same(got: Look, want: Look, what: str) -> None:
    """Every value equal to the bit."""
    if got.keys() != want.keys():
        raise Mismatch(f"{what}: {sorted(got.keys() ^ want.keys())} are in one and not in the other")
    for name in want:
        if not same(got[name], want[name]):
            raise Mismatch(f"{what}: {name} differs by {distance(got[name], want[name])}, and must not at all")


def distance(got: Any, want: Any) -> str:
    if not isinstance(got, Tensor):
        return f"{got} against {want}"
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{tuple(got.shape)} {got.dtype} against {tuple(want.shape)} {want.dtype}"
    return f"{(got.double() - want.double()).abs().max().item():.3g}" if got.numel() else "nothing"


def assert_close(got: Any, want: Any, tolerance: float, what: str) -> None:
    """Two numbers or tensors, relative to the larger of 1 and the largest entry."""
    a, b = torch.as_tensor(got).detach(), torch.as_tensor(want).detach()
    if a.shape != b.shape:
        raise Mismatch(f"{what} has shape {tuple(a.shape)}, expected {tuple(b.shape)}")
    if not a.numel():
        return
    a, b = a.double(), b.double()
    error = ((a - b).abs().max() / (1 + b.abs().max())).item()
    if not error <= tolerance and not same(a, b):
        raise Mismatch(f"{what} is off by {error:.3g} (relative), more than {tolerance:g}")


def assert_trees_close(got: Any, want: Any, tolerance: float, what: str) -> None:
    one, other = trees.leaves(got), trees.leaves(want)
    if one.keys() != other.keys():
        raise Mismatch(f"{what} has parts {list(one)}, expected {list(other)}")
    for path in other:
        assert_close(one[path], other[path], tolerance, f"{what}{path}")


def assert_finite(seen: Look, what: str) -> None:
    for name, value in seen.items():
        if isinstance(value, Tensor) and value.is_floating_point() and not value.isfinite().all():
            raise Mismatch(f"{what}: {name} is not finite and was kept")
    if not math.isfinite(seen["t"]):
        raise Mismatch(f"{what}: t={seen['t']}")


def read(report: hl.StepReport) -> dict[str, Any]:
    """What a report says, as values."""
    loss = report.loss
    return {
        "t": report.t,
        "y": None if report.y is None else trees.cut(report.y),
        "loss": None if loss is None else loss.detach().clone(),
        "H": torch.as_tensor(report.hamiltonian).detach().clone(),
        "skipped": report.skipped,
    }
