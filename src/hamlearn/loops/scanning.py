"""Any pure step of PyTorch as a compiled loop over time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn.errors import ConfigError
from hamlearn.loops.backends import make_loop
from hamlearn.loops.faults import counted
from hamlearn.loops.program import Kind
from hamlearn.loops.reads import Reads
from hamlearn.loops.recording import pure_graph
from hamlearn.loops.steps import Made, Steps
from hamlearn.loops.values import C_TYPES, UnsupportedError
from hamlearn.loops.verified import outputs, require_alike

Carry = TypeVar("Carry")
Step = Callable[[Any, Any], tuple[Any, Any]]


def scan(step: Callable[[Carry, Any], tuple[Carry, Any]], carry: Carry, xs: Any) -> tuple[Carry, Any]:
    """Call `carry, y = step(carry, x)` for each x of `xs`, in one compiled loop, as `lax.scan` of JAX does.

    The step is recorded once for tensors of these shapes and types, with whatever derivatives it takes inside, and
    becomes one C function, or one CUDA kernel, that runs over all of time. It is kept while everything that it has
    read beyond its arguments is as it was, and recorded anew otherwise. What is given is not changed.

    Args:
        step: A pure function of tensors, from (carry, x) to (carry, y). It draws no random numbers, and what it
            does must not depend on the values of tensors, as in `if x > 0`: use `torch.where`.
        carry: What goes from step to step: a tensor or a pytree of tensors, which keeps its shapes and types.
        xs: What is read, a tensor or a pytree of tensors, with time as the first axis of each.

    Returns:
        The last carry, and the y of all steps with time as the first axis. No gradients lead through them.

    Raises:
        ConfigError: If the tensors do not belong together, or gradients are asked for.
        UnsupportedError: If the step cannot be compiled, with the reason; before anything is compiled.
        IndexError: If a step has used an index that is out of range.

    Example:
        >>> import torch, hamlearn as hl
        >>> def average(mean, x):
        ...     mean = 0.9 * mean + 0.1 * x
        ...     return mean, x - mean
        >>> last, away = hl.loops.scan(average, torch.zeros(3), torch.ones(100, 3))
        >>> last.shape, away.shape, bool((last > 0.99).all())
        (torch.Size([3]), torch.Size([100, 3]), True)
    """
    given, carry_spec = trees.flatten(carry)
    rows, x_spec = trees.flatten(xs)
    steps = _checked(given, rows)
    inputs = [*given, *(row[0] for row in rows)]
    shapes = tuple((x.shape, x.dtype, x.device) for x in inputs)
    key = (shapes, str(carry_spec), str(x_spec), torch.is_grad_enabled())
    made = _steps_of(step).get(key, lambda: _make(step, inputs, len(given), carry_spec, x_spec))
    if torch.is_grad_enabled():
        _require_no_gradients([tensor for tensor, *_ in made.reads.tensors], "the step reads")
    work = [leaf.detach().clone(memory_format=torch.contiguous_format) for leaf in given]
    results = made.loop(steps, work, [row.detach().contiguous() for row in rows], [])
    y_spec, counts = made.recorded
    if counts:
        _require_no_faults(results.pop())
    y = None if y_spec is _NOTHING else trees.unflatten(results, y_spec)
    return trees.unflatten(work, carry_spec), y


def _checked(carry: list[Any], rows: list[Any]) -> int:
    """The number of steps; raises where tensors do not belong together."""
    for what, leaves in (("the carry", carry), ("xs", rows)):
        if not leaves:
            raise ConfigError(f"{what} holds no tensors: give at least one")
        for leaf in leaves:
            if not isinstance(leaf, Tensor):
                raise ConfigError(
                    f"{what} holds a {type(leaf).__name__}: give tensors, for example torch.tensor(0.0)"
                )
            if leaf.dtype not in C_TYPES:
                kinds = ", ".join(str(dtype).removeprefix("torch.") for dtype in C_TYPES)
                raise UnsupportedError(f"{what} holds {trees.describe(leaf)}, and there are loops for {kinds}")
    lengths = {len(row) if row.dim() else None for row in rows}
    if len(lengths) > 1 or lengths & {None, 0}:
        raise ConfigError(
            f"xs holds {trees.describe(rows)}: let time be the first axis of each, of one length, 1 or more"
        )
    places = {leaf.device for leaf in (*carry, *rows)}
    if len(places) > 1:
        raise ConfigError(f"the tensors are on {', '.join(sorted(map(str, places)))}: bring them to one device")
    if torch.is_grad_enabled():
        _require_no_gradients([*carry, *rows], "carry and xs hold")
    return len(rows[0])


def _require_no_gradients(tensors: list[Tensor], who: str) -> None:
    for tensor in tensors:
        if tensor.requires_grad:
            raise ConfigError(
                f"{who} a tensor {trees.describe(tensor)} that requires gradients, and none lead through a "
                "compiled loop: call scan within torch.no_grad(), or detach the tensor"
            )


@functools.lru_cache(maxsize=64)
def _kept(step: Step) -> Steps:
    return Steps()


def _steps_of(step: Step) -> Steps:
    """What has been compiled of a step; the last of them are kept."""
    if not callable(step):
        raise ConfigError(f"step={step!r} cannot be called: give a function from (carry, x) to (carry, y)")
    try:
        return _kept(step)
    except TypeError:  # it has no hash
        return Steps()


def _make(step: Step, inputs: list[Tensor], count: int, carry_spec: trees.Spec, x_spec: trees.Spec) -> Made:
    made, described = Made(Reads()), {}

    def once(flat: list[Tensor]) -> list[Tensor]:
        with counted() as faults:
            found = step(trees.unflatten(flat[:count], carry_spec), trees.unflatten(flat[count:], x_spec))
        new, y, described["y"] = _parts(found, flat[:count], carry_spec)
        total = [sum(fault.to(torch.float32) for fault in faults)] if faults else []
        described["counts"] = bool(total)
        return [tensor.detach() for tensor in (*new, *y, *total)]  # type: ignore[union-attr]

    try:
        made.reads.follow("the step", step)
        with made.reads.watching(calls=True):
            # As PyTorch takes it, so that what is wrong with the step itself is said by the step.
            tried = once([leaf.detach().clone() for leaf in inputs])
        with made.reads.watching():
            graph = pure_graph(lambda *flat: once(list(flat)), inputs)
        require_alike(_named(tried, count), _named(outputs(graph, inputs), count))
        kinds: list[Kind] = ["carry"] * count + ["sample"] * (len(inputs) - count)  # type: ignore[assignment]
        made.loop = make_loop(graph, kinds, [False] * len(kinds), 1, inputs[0].device)
    except UnsupportedError as error:
        made.failure = error
    made.recorded = described.get("y"), described.get("counts", False)
    return made


_NOTHING: Any = object()
"""The structure of a y that is `None`."""


def _parts(found: Any, before: list[Tensor], carry_spec: trees.Spec) -> tuple[list[Tensor], list[Tensor], Any]:
    """New carry, y and its structure; raises where a step has returned anything else."""
    if not isinstance(found, tuple) or len(found) != 2:
        raise ConfigError(f"the step returned {trees.describe(found)}: let it return a pair, (carry, y)")
    new = trees.flatten_like(found[0], carry_spec)
    shapes = None if new is None else [(x.shape, x.dtype) if isinstance(x, Tensor) else None for x in new]
    if new is None or shapes != [(x.shape, x.dtype) for x in before]:
        begun = trees.describe(trees.unflatten(before, carry_spec))
        raise ConfigError(
            f"the carry begins as {begun}, and a step makes {trees.describe(found[0])} of it: let a step return a "
            "carry of the same structure, shapes and types"
        )
    if found[1] is None:
        return new, [], _NOTHING
    y, spec = trees.flatten(found[1])
    if not all(isinstance(leaf, Tensor) for leaf in y):
        raise ConfigError(
            f"the step returned y = {trees.describe(found[1])}: let it hold tensors alone, or be None"
        )
    return new, y, spec


def _named(flat: list[Tensor], count: int) -> dict[str, list[Tensor]]:
    return {"carry": flat[:count], "y": flat[count:]}


def _require_no_faults(counts: Tensor) -> None:
    bad = counts.nonzero()
    if len(bad):
        step, count = int(bad[0]), int(counts[bad[0]])
        raise IndexError(
            f"step {step} of {len(counts)} used {count} indices that are out of range: nothing is returned. Look "
            "at the indices among xs and carry"
        )
