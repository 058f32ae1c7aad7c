"""Any pure step of PyTorch as a compiled loop over time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.replay import devices_of
from hamlearn.errors import ConfigError
from hamlearn.loops.backends import make_loop
from hamlearn.loops.comparison import audit, outputs, require_alike
from hamlearn.loops.draws import Draws, GivenDraws
from hamlearn.loops.guards import Guards
from hamlearn.loops.index_checks import counted
from hamlearn.loops.program import Kind
from hamlearn.loops.recording import held_by, pure_graph
from hamlearn.loops.step_cache import CompiledStep, StepCache
from hamlearn.loops.tracing_lock import tracing_lock
from hamlearn.loops.values import C_TYPES, UnsupportedError

Carry = TypeVar("Carry")
Step = Callable[[Any, Any], tuple[Any, Any]]


def scan(step: Callable[[Carry, Any], tuple[Carry, Any]], carry: Carry, xs: Any) -> tuple[Carry, Any]:
    """Call `carry, y = step(carry, x)` for each x of `xs`, in one compiled loop, as `lax.scan` of JAX does.

    The step is recorded once for tensors of these shapes and types, with whatever derivatives it takes inside, and
    becomes one C function, or one CUDA kernel, that runs over all of time. It is recorded again if a number or a
    mode that it reads has changed; all else is fixed, as with `jax.jit`. The arguments are not changed.

    Args:
        step: A pure function of tensors, from (carry, x) to (carry, y). What it does must not depend on the
            values of tensors, as in `if x > 0`: use `torch.where`. Random numbers that it draws follow from one
            number of PyTorch's generator, and are others than those of a plain loop.
        carry: What goes from step to step: a tensor or a pytree of tensors, which keeps its shapes and types.
        xs: Inputs of the steps: a tensor or a pytree of tensors, with time as the first axis of each.

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
    steps_of = _steps_of(step)
    made = steps_of.get(key, lambda: _make(step, inputs, len(given), carry_spec, x_spec))
    recorded: _Recorded = made.recorded
    if torch.is_grad_enabled():
        _require_no_gradients(recorded.held, "the step reads")
    samples = [row.detach().contiguous() for row in rows]
    random = recorded.drawn(steps, inputs[0].device)
    if steps_of.audit_is_due(made):
        first = [row[0] for row in random]
        audit(made, lambda: recorded.eagerly(inputs, first), lambda: recorded.by_loop(made, inputs, first))
    work = _copies(given)
    results = made.loop(steps, work, [*samples, *random], [])
    if recorded.counts:
        _require_no_faults(results.pop())
    y = None if recorded.y_spec is _NOTHING else trees.unflatten(results, recorded.y_spec)
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
def _kept(step: Step) -> StepCache:
    return StepCache()


def _steps_of(step: Step) -> StepCache:
    """The compiled versions of a step; those of the last steps are kept."""
    if not callable(step):
        raise ConfigError(f"step={step!r} cannot be called: give a function from (carry, x) to (carry, y)")
    try:
        return _kept(step)
    except TypeError:  # it has no hash
        return StepCache()


@dataclass
class _Recorded:
    """A recorded step of a scan.

    Attributes:
        step: The step itself, from flat lists of tensors to flat lists of tensors.
        count: Number of tensors in the carry.
        held: Tensors that the step reads beside its arguments.
        y_spec: Structure of y.
        counts: Whether the last result counts indices that are out of range.
        draws: Random numbers of a step.
    """

    step: Callable[[list[Tensor]], list[Tensor]]
    count: int
    held: list[Tensor] = field(default_factory=list)
    y_spec: Any = None
    counts: bool = False
    draws: Draws = field(default_factory=Draws)

    def drawn(self, steps: int, device: torch.device) -> list[Tensor]:
        """Random numbers of some steps, one row each; one number of PyTorch's generator is drawn for all."""
        if not self.draws.like:
            return []
        seed = int(torch.randint(2**62, ()))
        return [row.to(device) for row in self.draws.rows(seed, 0, steps)]

    def eagerly(self, inputs: list[Tensor], random: list[Tensor]) -> dict[str, list[Tensor]]:
        """One step as PyTorch takes it, with these random numbers."""
        with GivenDraws(random) if random else nullcontext():
            return self.named(self.step(_copies(inputs)))

    def named(self, flat: list[Tensor]) -> dict[str, list[Tensor]]:
        """What a step returns, by name."""
        return {"carry": flat[: self.count], "y": flat[self.count :]}

    def by_loop(self, made: CompiledStep, inputs: list[Tensor], random: list[Tensor]) -> dict[str, list[Tensor]]:
        """One step of the compiled loop, with these random numbers."""
        work, xs = _copies(inputs[: self.count]), [*inputs[self.count :], *random]
        rows = made.loop(1, work, [x.detach()[None].contiguous() for x in xs], [])
        return self.named([*work, *(row[0] for row in rows)])


def _copies(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors]


def _make(
    step: Step, inputs: list[Tensor], count: int, carry_spec: trees.Spec, x_spec: trees.Spec
) -> CompiledStep:
    def once(flat: list[Tensor]) -> list[Tensor]:
        with counted() as faults:
            found = step(trees.unflatten(flat[:count], carry_spec), trees.unflatten(flat[count:], x_spec))
        new, y, recorded.y_spec = _parts(found, flat[:count], carry_spec)
        total = [sum(fault.to(torch.float32) for fault in faults)] if faults else []
        recorded.counts = bool(total)
        return [tensor.detach() for tensor in (*new, *y, *total)]  # type: ignore[union-attr]

    recorded = _Recorded(once, count)
    made = CompiledStep(Guards({"the step": step}, {}), recorded)
    try:
        made.guards.require_recordable()
        with tracing_lock:
            # As PyTorch takes it first, so that what is wrong with the step itself is said by the step.
            with torch.random.fork_rng(devices_of(inputs)):
                tried = recorded.named(once(_copies(inputs)))
            made.guards.require_unchanged_by_step()
            graph = pure_graph(lambda *flat: once(list(flat)), inputs, recorded.draws)
            made.guards.require_unchanged_by_step()
        recorded.held = held_by(graph)
        random = [row[0].to(inputs[0].device) for row in recorded.draws.rows(0, 0, 1)]
        tried = recorded.eagerly(inputs, random) if random else tried
        require_alike(tried, recorded.named(outputs(graph, [*inputs, *random])))
        kinds: list[Kind] = ["carry" for _ in range(count)]
        kinds += ["sample" for _ in range(len(inputs) - count + len(random))]
        made.loop = make_loop(graph, kinds, [False] * len(kinds), 1, inputs[0].device)
    except UnsupportedError as error:
        made.failure = error
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


def _require_no_faults(counts: Tensor) -> None:
    bad = counts.nonzero()
    if len(bad):
        step, count = int(bad[0]), int(counts[bad[0]])
        raise IndexError(
            f"step {step} of {len(counts)} used {count} indices that are out of range: nothing is returned. Look "
            "at the indices among xs and carry"
        )
