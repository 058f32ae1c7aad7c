"""What a step changes, prepared whole before anything is touched, so that it happens entirely or not at all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from hamlearn._base import trees
from hamlearn._base.finite import Part, all_finite, what_is_not
from hamlearn._base.slots import Place, Slots, write_back
from hamlearn._base.torch_private import foreach_copy_, set_grad
from hamlearn.engines.eager.moves import Moved
from hamlearn.engines.eager.parts import LearnerParts
from hamlearn.orders.system import Outcome, System
from hamlearn.sample import Sample
from hamlearn.state.learner_state import LearnerState
from hamlearn.state.replay import set_generators
from hamlearn.streams.reader import Progress

if TYPE_CHECKING:
    from hamlearn.engines.eager.stepping import Stepper


F = TypeVar("F", bound=Callable[..., Any])


class Ungraded:
    """Gradients are off within. Entered at every step, it takes a fifth of the time of `torch.no_grad()`.

    Example:
        >>> with Ungraded():
        ...     torch.is_grad_enabled()
        False
    """

    __slots__ = ("before",)

    def __enter__(self) -> None:
        self.before = torch.is_grad_enabled()
        set_grad(False)

    def __exit__(self, *raised: object) -> None:
        set_grad(self.before)


def keeps_mode(function: F) -> F:
    """Leaves PyTorch's gradient mode as it was, also where an interrupt strikes while a `with` block is left."""

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        mode = torch.is_grad_enabled()
        try:
            return function(*args, **given)
        finally:
            if torch.is_grad_enabled() is not mode:
                torch.set_grad_enabled(mode)

    return call  # type: ignore[return-value]


@dataclass(slots=True)
class Commit:
    """The learner after a step. Calling it makes it so; called again after an interrupt, it finishes the rest.

    It is called with gradients off.

    Attributes:
        stepper: Whose step it is.
        state: All that moves from sample to sample, as it is after the step.
        moves: What moves the weights, as far as they have not moved yet; done twice, it is done once.
        buffers: Old and new tensors of the buffers, by place.
        memory: What becomes of the order's own memory: what the step adds to it is `"accepted"`, or it is `"kept"`
            as it is, or `"dropped"`.
        progress: Place in the stream; `None` for a sample from elsewhere.
    """

    stepper: Stepper
    state: LearnerState
    moves: Iterable[Callable[[], None]] = ()
    buffers: Sequence[tuple[Place, Tensor | None, Tensor | None]] = ()
    memory: Literal["accepted", "kept", "dropped"] = "accepted"
    progress: Progress | None = None

    def __call__(self) -> None:
        """Make the change; interrupted, it is made whole when it is called again."""
        stepper, parts = self.stepper, self.stepper.parts
        for move in self.moves:
            move()
        if self.buffers:
            write_back(self.buffers)
        parts.system.slots.settle()
        stepper.state = self.state
        if self.memory == "accepted":
            parts.order.accept()
        elif self.memory == "dropped":
            parts.order.forget()
        if self.progress is not None:
            stepper.reader.progress = self.progress


@dataclass(slots=True)
class Withdrawal:
    """Puts back what a step borrows or changes before it is accepted: weights, buffers and generators.

    Attributes:
        parts: Of the learner whose step it is.
        random: Generators as they were.
        training: Modules that were in training mode, where the step changes modes.
        weights: Weights that may have moved, and copies of what they were.
    """

    parts: LearnerParts
    random: list[Tensor]
    training: list[nn.Module] = field(default_factory=list)
    weights: tuple[list[Tensor], list[Tensor]] | None = None

    def __call__(self) -> None:
        """Put everything back, as often as it is called."""
        for module in self.training:
            module.training = True
        if self.weights is not None and self.weights[0]:
            foreach_copy_(*self.weights)
        self.parts.system.slots.put_back()
        set_generators(self.parts.devices, self.random)


def keep_apart(outcome: Outcome, sample: Sample, slots: Slots) -> None:
    """Give the new state, costates, output and loss memory of their own, where they are views of something else.

    Whoever handed in the sample may use its memory again, weights and buffers change in place, and a report's y
    belongs to whoever reads it.
    """
    given = [sample.u] if isinstance(sample.u, Tensor) else trees.flatten(sample.u)[0]
    lent = [_region(leaf) for leaf in (*given, *slots.values()) if isinstance(leaf, Tensor)]
    if outcome.h:
        outcome.h = [leaf.clone() if _within(leaf, lent, slots) else leaf for leaf in outcome.h]
        lent += map(_region, outcome.h)
    # Where nothing is learned yet, the costates are those from before the step.
    if outcome.h and outcome.moves:
        outcome.z = [leaf.clone() if _within(leaf, lent, slots) else leaf for leaf in outcome.z]
    if outcome.moves and not outcome.own:
        # A gradient is what a function of the user's returned, perhaps a weight that moves before it is added.
        outcome.omega = [leaf.clone() if _within(leaf, lent, slots) else leaf for leaf in outcome.omega]
    if outcome.loss is not None and _within(outcome.loss, lent, slots):
        outcome.loss = outcome.loss.clone()
    shown = [outcome.y] if isinstance(outcome.y, Tensor) else trees.flatten(outcome.y)[0]
    for leaf in shown:
        if isinstance(leaf, Tensor) and _within(leaf, lent, slots):
            outcome.y = trees.copied(outcome.y)
            return


def _region(tensor: Tensor) -> tuple[int, int]:
    """Where the tensor's memory begins and ends; that of the whole it is a part of, if it is laid out oddly."""
    if tensor.layout is not torch.strided:
        # No output is a view of a sparse input.
        return 0, 0
    if tensor.is_contiguous():
        start = tensor.data_ptr()
        return start, start + tensor.nbytes
    memory = tensor.untyped_storage()
    start = memory.data_ptr()
    return start, start + memory.nbytes()


def _within(tensor: Tensor, lent: list[tuple[int, int]], slots: Slots) -> bool:
    place = tensor.data_ptr()
    for start, end in lent:
        if start <= place < end:
            return True
    return slots.holds(place)


def nonfinite(outcome: Outcome, system: System, moved: Moved, still: Collection[int]) -> bool:
    """Whether anything that the step would leave behind is infinite or not a number.

    Args:
        outcome: What the step proposes.
        system: The network.
        moved: θ⁺, and which weights have been looked at already.
        still: Which weights stay where they are.
    """
    values = [*outcome.h, *outcome.E, *outcome.v]
    if outcome.moves:
        omega, theta, late = outcome.omega, moved.theta, moved.late
        if outcome.dtheta is not None:
            values += [*omega, *theta]
        elif still or late:
            values += [omega[i] if i in still else theta[i] for i in range(len(omega)) if i not in late]
        else:
            # A weight that moves by a costate that is not finite is not finite itself: one look serves both.
            values += theta
        values += outcome.z
    values += [buffer for buffer in system.slots.values() if buffer.is_floating_point()]
    if outcome.loss is not None:
        values.append(outcome.loss)
    return not all_finite(values)


def nonfinite_message(outcome: Outcome, system: System, moved: Moved, t: float) -> str:
    """What is not finite, and what to do about it."""

    def parts() -> Iterator[Part]:
        slots, names = system.slots, system.names
        if outcome.loss is not None:
            yield f"the loss is {outcome.loss.item()}", [outcome.loss]
        yield "the costate is not finite (omega of {})", dict(zip(names, outcome.omega, strict=True))
        yield "the costate is not finite (z)", outcome.z
        yield "the state h is not finite", outcome.h
        yield "the sensitivity E of the state is not finite", outcome.E
        yield "what beta follows is not finite (v of {})", dict(zip(names, outcome.v, strict=False))
        yield "the weights would overflow ({})", dict(zip(names, moved.theta, strict=True))
        yield "the network's buffers are not finite ({})", dict(zip(slots.buffers, slots.present(), strict=True))

    what = what_is_not(parts(), "a buffer of the network is not finite")
    return (
        f"{what} at t={t:g}: this sample was not learned and the last good state is kept. "
        "Lower beta or tau, raise eta, look at the sample, or pass on_nonfinite='skip'"
    )
