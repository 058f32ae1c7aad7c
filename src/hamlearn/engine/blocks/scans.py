"""Arrays in, arrays out: whole tensors as one block of samples, and what came of it as one trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn._base import trees as _tree
from hamlearn.engine.blocks.reports import PendingBlock
from hamlearn.errors import SampleError, shown
from hamlearn.sample import StepReport, Trace
from hamlearn.streams.blocks import Block


def whole_block(u: Any, target: Any, tau: Any, boundary: Any, known: Any) -> Block:
    """All steps as one block.

    Args:
        u: Inputs; time is the first axis of every tensor.
        target: Targets likewise, or `None`.
        tau: One number, or one per step, or `None`.
        boundary: Whether each step ends its sequence, or `None`.
        known: Whether each step has a target; `None` where all have, or none has.

    Raises:
        SampleError: If these do not belong together.
    """
    leaves, u_spec = _rows(u, "u")
    steps = len(leaves[0])
    if steps == 0:
        raise SampleError("u has no steps: give tensors whose first axis is time, of length 1 or more")
    targets, target_spec = ([], None) if target is None else _rows(target, "target")
    _require_length([*leaves[1:], *targets], steps)
    has = _flags(known, "known", steps)
    if has is not None and target is None:
        raise SampleError(
            "known says which steps have a target, and no target was given: give target, or no known"
        )
    if has is not None:
        # What stands where there is no target may be anything, a class that does not exist or no number at all.
        places = torch.arange(steps).where(has, has.int().argmax())
        targets = [leaf[places.to(leaf.device)] for leaf in targets] if bool(has.any()) else []
    taus: list[float | None] | None = None
    if tau is not None:
        taus = _numbers(tau, steps)
    ends = _flags(boundary, "boundary", steps)
    some = has is not None and bool(has.any()) and not bool(has.all())
    return Block(
        steps,
        leaves,
        u_spec,
        targets,
        target_spec if targets else None,
        has.tolist() if has is not None and some else None,
        taus,
        ends.tolist() if ends is not None and bool(ends.any()) else None,
    )


def _rows(tree: Any, what: str) -> tuple[list[Tensor], _tree.Spec]:
    leaves, spec = _tree.flatten(tree)
    _require_one_length(leaves, what)
    if not leaves or not all(isinstance(leaf, Tensor) and leaf.dim() for leaf in leaves):
        raise SampleError(
            f"{what} is {_tree.describe(tree)}: give tensors, alone or in a tree, each with time as its first axis"
        )
    if not all(leaf.layout is torch.strided and not leaf.is_meta for leaf in leaves):
        raise SampleError(f"{what} is sparse, or on the device meta: give dense tensors that hold numbers")
    return [leaf.detach() for leaf in leaves], spec


def _require_one_length(leaves: Sequence[Any], what: str) -> None:
    if any(isinstance(leaf, Tensor) and leaf.is_nested for leaf in leaves):
        raise SampleError(
            f"{what} is a nested tensor, whose rows may differ in length: give dense tensors, padded, or use "
            "learner.run() with a Sample for each step"
        )


def _require_length(leaves: Sequence[Tensor], steps: int) -> None:
    for leaf in leaves:
        if len(leaf) != steps:
            raise SampleError(
                f"a tensor of {_tree.describe(leaf)} has {len(leaf)} steps where u has {steps}: let time be the "
                "first axis of all of them"
            )


def _flags(given: Any, what: str, steps: int) -> Tensor | None:
    if given is None:
        return None
    flags = _tensor(given, what, f"{steps} truth values, one per step")
    if flags.dtype is not torch.bool or flags.shape != (steps,):
        raise SampleError(f"{what} is {_tree.describe(flags)}: give {steps} truth values, one per step")
    return flags


def _numbers(given: Any, steps: int) -> list[float | None]:
    numbers = _tensor(given, "tau", f"a number, or {steps} of them, one per step")
    if numbers.dtype is torch.bool or numbers.is_complex() or numbers.shape not in ((), (steps,)):
        raise SampleError(f"tau is {_tree.describe(numbers)}: give a number, or {steps} of them, one per step")
    found: list[float | None] = numbers.double().expand(steps).tolist()
    return found


def _tensor(given: Any, what: str, wanted: str) -> Tensor:
    _require_one_length([given], what)
    try:
        # NumPy takes Python's numbers as they are, PyTorch would shorten them to its default type.
        return torch.as_tensor(given if isinstance(given, Tensor) else np.asarray(given)).detach().cpu()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise SampleError(f"{what}={shown(given)} cannot be read ({error}): give {wanted}") from error


def trace_of(taken: Sequence[PendingBlock | StepReport], dtype: torch.dtype, device: torch.device) -> Trace:
    """What blocks and single steps led to, in order.

    Raises:
        SampleError: If the outputs are not of one shape.
    """
    parts: list[Trace] = []
    alone: list[StepReport] = []
    for piece in taken:
        if isinstance(piece, StepReport):
            alone.append(piece)
            continue
        parts += [_stacked(alone, dtype, device)] if alone else []
        alone = []
        parts.append(_of_block(piece, dtype, device))
    parts += [_stacked(alone, dtype, device)] if alone else []
    if len(parts) == 1:
        return parts[0]
    known = [part.loss for part in parts if part.loss is not None]
    losses = [_nothing(part, known[0]) if part.loss is None else part.loss for part in parts] if known else []
    return Trace(
        torch.cat([part.t for part in parts]),
        _joined([part.y for part in parts], torch.cat),
        torch.cat(losses) if losses else None,
        torch.cat([part.hamiltonian for part in parts]),
        torch.cat([part.skipped for part in parts]),
    )


def _of_block(ahead: PendingBlock, dtype: torch.dtype, device: torch.device) -> Trace:
    ran, block, count = ahead.ran, ahead.block, ahead.count
    loss = ran.loss if block.target else None
    H = torch.zeros(count, dtype=dtype, device=device)
    if loss is not None:
        H = _scaled(ahead.plan.phis, loss)
        if block.known is not None:
            known = torch.tensor(block.known, device=loss.device)
            H, loss = H.where(known, 0.0), loss.where(known, torch.nan)
    if ran.coupling is not None:
        H = ran.coupling if loss is None else H + ran.coupling
    t = torch.tensor(ahead.plan.times[:count], dtype=torch.float64)
    return Trace(t, _tree.unflatten(ran.y, ran.y_spec), loss, H, torch.zeros(count, dtype=torch.bool))


def _scaled(phis: np.ndarray, loss: Tensor) -> Tensor:
    """φ·L as single steps compute it: in the type of the loss, or in float32 where that is shorter."""
    if len(phis) == 1:
        return float(phis[0]) * loss
    wide = loss.dtype if loss.dtype.itemsize >= 4 else torch.float32
    return (torch.from_numpy(phis).to(loss.device, wide) * loss).to(loss.dtype)


def _stacked(reports: Sequence[StepReport], dtype: torch.dtype, device: torch.device) -> Trace:
    losses = [report.loss for report in reports if report.loss is not None]
    values = [report.hamiltonian for report in reports]
    like = next(
        (value for value in values if isinstance(value, Tensor)), torch.zeros((), dtype=dtype, device=device)
    )
    none = losses[0].new_full((), torch.nan) if losses else like
    return Trace(
        torch.tensor([report.t for report in reports], dtype=torch.float64),
        _joined([report.y for report in reports], torch.stack),
        torch.stack([none if report.loss is None else report.loss for report in reports]) if losses else None,
        torch.stack([value if isinstance(value, Tensor) else like.new_full((), value) for value in values]),
        torch.tensor([report.skipped for report in reports]),
    )


def _joined(trees: Sequence[Any], join: Any) -> Any:
    flat = [_tree.flatten(tree) for tree in trees]
    shapes = {
        (str(spec), *((leaf.shape[join is torch.cat :], leaf.dtype) for leaf in leaves)) for leaves, spec in flat
    }
    if len(shapes) > 1:
        raise SampleError(
            "the outputs of the steps differ in shape, type or structure, and cannot be stacked: use learner.run()"
        )
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    return _tree.unflatten([join(column) for column in columns], flat[0][1])


def _nothing(part: Trace, like: Tensor) -> Tensor:
    return like.new_full((len(part.t),), torch.nan)
