"""Arrays in, arrays out: whole tensors as one block of samples, and what came of it as one trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn.errors import SampleError, shown
from hamlearn.sample import StepReport, Trace
from hamlearn.streams.blocks import Block, is_dense

if TYPE_CHECKING:
    from hamlearn.engine.blocks.runner import PendingBlock


def whole_block(u: Any, target: Any, tau: Any, boundary: Any, known: Any) -> Block:
    """All steps as one block.

    Args:
        u: Inputs; time is the first axis of every tensor.
        target: Targets likewise, or `None`.
        tau: One number, or one per step, or `None`.
        boundary: Whether each step ends its sequence, or `None`.
        known: Whether each step has a target; `None`: all have, or none has.

    Raises:
        SampleError: If these do not belong together.
    """
    leaves, u_spec = _rows(u, "u")
    steps = len(leaves[0])
    if steps == 0:
        raise SampleError("u has no steps: give tensors whose first axis is time, of length 1 or more")
    targets, target_spec = ([], None) if target is None else _rows(target, "target")
    for leaf in (*leaves[1:], *targets):
        if len(leaf) != steps:
            raise SampleError(
                f"a tensor of {trees.describe(leaf)} has {len(leaf)} steps where u has {steps}: let time be the "
                "first axis of all of them"
            )
    has, ends = _flags(known, "known", steps), _flags(boundary, "boundary", steps)
    if has is not None:
        if target is None:
            raise SampleError(
                "known says which steps have a target, and no target was given: give target, or no known"
            )
        # The values at steps without a target may be anything: a class that does not exist, or NaN.
        places = torch.arange(steps).where(has, has.int().argmax())
        targets = [leaf[places.to(leaf.device)] for leaf in targets] if bool(has.any()) else []
    return Block(
        steps,
        leaves,
        u_spec,
        targets,
        target_spec if targets else None,
        has.tolist() if has is not None and targets and not bool(has.all()) else None,
        None if tau is None else _numbers(tau, steps),
        ends.tolist() if ends is not None and bool(ends.any()) else None,
    )


def _rows(tree: Any, what: str) -> tuple[list[Tensor], trees.Spec]:
    leaves, spec = trees.flatten(tree)
    _refuse_nested(leaves, what)
    if not leaves or not all(isinstance(leaf, Tensor) and leaf.dim() for leaf in leaves):
        raise SampleError(
            f"{what} is {trees.describe(tree)}: give tensors, alone or in a tree, each with time as its first axis"
        )
    if not all(map(is_dense, leaves)):
        raise SampleError(f"{what} is sparse, or on the device meta: give dense tensors that hold numbers")
    return [leaf.detach() for leaf in leaves], spec


def _refuse_nested(leaves: Sequence[Any], what: str) -> None:
    if any(isinstance(leaf, Tensor) and leaf.is_nested for leaf in leaves):
        raise SampleError(
            f"{what} is a nested tensor, whose rows may differ in length: give dense tensors, padded, or use "
            "learner.run() with a Sample for each step"
        )


def _flags(given: Any, what: str, steps: int) -> Tensor | None:
    if given is None:
        return None
    wanted = f"{steps} truth values, one per step"
    flags = _tensor(given, what, wanted)
    if flags.dtype is not torch.bool or flags.shape != (steps,):
        raise SampleError(f"{what} is {trees.describe(flags)}: give {wanted}")
    return flags


def _numbers(given: Any, steps: int) -> list[float | None]:
    wanted = f"a number, or {steps} of them, one per step"
    numbers = _tensor(given, "tau", wanted)
    if numbers.dtype is torch.bool or numbers.is_complex() or numbers.shape not in ((), (steps,)):
        raise SampleError(f"tau is {trees.describe(numbers)}: give {wanted}")
    found: list[float | None] = numbers.double().expand(steps).tolist()
    return found


def _tensor(given: Any, what: str, wanted: str) -> Tensor:
    _refuse_nested([given], what)
    try:
        # NumPy takes Python's numbers as they are, PyTorch would shorten them to its default type.
        return torch.as_tensor(given if isinstance(given, Tensor) else np.asarray(given)).detach().cpu()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise SampleError(f"{what}={shown(given)} cannot be read ({error}): give {wanted}") from error


def trace_of(taken: Sequence[PendingBlock | StepReport], like: Tensor) -> Trace:
    """What blocks and single steps led to, in order; H of steps without a loss is 0, of the type of `like`.

    Raises:
        SampleError: If the outputs are not of one shape.
    """
    parts = [_of_report(x, like) if isinstance(x, StepReport) else _of_block(x, like) for x in taken]
    if len(parts) == 1:
        return parts[0]
    loss = next((part.loss for part in parts if part.loss is not None), None)
    return Trace(
        torch.cat([part.t for part in parts]),
        _joined([part.y for part in parts]),
        None if loss is None else torch.cat([_nans(p, loss) if p.loss is None else p.loss for p in parts]),
        torch.cat([part.hamiltonian for part in parts]),
        torch.cat([part.skipped for part in parts]),
    )


def _of_report(report: StepReport, like: Tensor) -> Trace:
    leaves, spec = trees.flatten(report.y)
    H = report.hamiltonian
    return Trace(
        torch.tensor([report.t], dtype=torch.float64),
        trees.unflatten([leaf.unsqueeze(0) for leaf in leaves], spec),
        None if report.loss is None else report.loss.unsqueeze(0),
        H.unsqueeze(0) if isinstance(H, Tensor) else like.new_full((1,), H),
        torch.tensor([report.skipped]),
    )


def _of_block(ahead: PendingBlock, like: Tensor) -> Trace:
    ran, block, count = ahead.ran, ahead.block, ahead.count
    loss, H = ran.loss if block.target else None, like.new_zeros(count)
    if loss is not None:
        H = _scaled(ahead.plan.phis, loss)
        if block.known is not None:
            known = torch.tensor(block.known, device=loss.device)
            H, loss = H.where(known, 0.0), loss.where(known, torch.nan)
    if ran.coupling is not None:
        H = ran.coupling if loss is None else H + ran.coupling
    t = torch.tensor(ahead.plan.times[:count], dtype=torch.float64)
    return Trace(t, trees.unflatten(ran.y, ran.y_spec), loss, H, torch.zeros(count, dtype=torch.bool))


def _scaled(phis: np.ndarray, loss: Tensor) -> Tensor:
    """φ·L as single steps compute it: in the type of the loss, or in float32 where that is shorter."""
    if len(phis) == 1:
        return float(phis[0]) * loss
    wide = loss.dtype if loss.dtype.itemsize >= 4 else torch.float32
    return (torch.from_numpy(phis).to(loss.device, wide) * loss).to(loss.dtype)


def _joined(outputs: Sequence[Any]) -> Any:
    flat = [trees.flatten(tree) for tree in outputs]
    shapes = {(str(spec), *((leaf.shape[1:], leaf.dtype) for leaf in leaves)) for leaves, spec in flat}
    if len(shapes) > 1:
        raise SampleError(
            "the outputs of the steps differ in shape, type or structure, and cannot be stacked: use learner.run()"
        )
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    return trees.unflatten([torch.cat(column) for column in columns], flat[0][1])


def _nans(part: Trace, like: Tensor) -> Tensor:
    return like.new_full((len(part.t),), torch.nan)


def joined_rows(parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Rows of all steps; not a number at skipped steps that left nothing behind.

    Raises:
        SampleError: If they are not of one shape.
    """
    like = next((part for part in parts if part), [])
    filled = [part or [row.new_full((1, *row.shape[1:]), torch.nan) for row in like] for part in parts]
    columns = list(zip(*filled, strict=True))
    if any(len({row.shape[1:] for row in column}) > 1 for column in columns):
        raise SampleError("the states of the steps differ in shape, and cannot be stacked: use learner.run()")
    return [torch.cat(column) for column in columns]
