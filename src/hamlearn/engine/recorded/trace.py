"""One step of a learner as a pure function of tensors: (carry, sample) in, (carry, results) out.

It calls the order that the eager engine calls, so the mathematics is written once. Rates and β enter as tensors
without axes, which makes one recording serve every hyper-parameter, schedule and uneven τ.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hamlearn._base import trees
from hamlearn._base.finite import all_finite
from hamlearn._base.scale import plus
from hamlearn.loops import UnsupportedError
from hamlearn.loops.index_checks import counted
from hamlearn.rates import Rates
from hamlearn.rules.drive import OmegaUpdate
from hamlearn.rules.system import Instant, Order, Outcome, System
from hamlearn.rules.velocity import Velocity
from hamlearn.sample import Sample
from hamlearn.state.carry import Carry

Groups = dict[str, list[Tensor]]
"""Tensors by what they are."""
Watch = Literal["nothing", "state"]
"""What is watched for values that are not finite, step by step: nothing; or h, z, E, and inputs beside buffers."""
Specs = tuple[trees.Spec, trees.Spec, trees.Spec]
"""Structures of h, of an input and of a target."""


NORM = "norm of "
"""Before the name of a carried group, of which each step gives the squared norm."""


@dataclass(frozen=True)
class Variant:
    """What the samples of a block have, and so what a step has to handle.

    Attributes:
        targets: Some have a target; those without one enter with φ = 0.
        fresh: A flag says whether a sample begins a sequence.
        watch: What each step counts the entries of that are not finite.
        keep: Carried groups that each step also gives as results; of `NORM` and a name, its squared norm alone.
    """

    targets: bool
    fresh: bool
    watch: Watch
    keep: tuple[str, ...] = ()


class GivenRates:
    """Stands in for the hyper-parameters within a step: the rates are those of the step, at every stage."""

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self.s = rates.s

    def at(self, t: Any, tau: Any, *, first: bool) -> Rates:
        """The rates of the step."""
        return self.rates


class SubstitutedWeights(TorchFunctionMode):
    """Puts the weight of the recorded step in the place of one that a function holds without the network.

    A penalty keeps a list of the weights, a function closes over one that is tied: these are not exchanged with
    those of the network, and would enter a recording as numbers that never change. Buffers that are held so raise
    `UnsupportedError`: what the eager engine shows there is their value before the step.

    Args:
        pairs: A weight of the network, and what takes its place.
        buffers: Those of the network.
    """

    def __init__(self, pairs: Iterable[tuple[Tensor, Tensor]], buffers: Iterable[Tensor]) -> None:
        super().__init__()
        self._pairs = {id(own): (own, other) for own, other in pairs}
        self._buffers = {id(buffer): buffer for buffer in buffers}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {name: self._substituted(value) for name, value in kwargs.items()} if kwargs else {}
        return func(*map(self._substituted, args), **given)

    def _substituted(self, value: Any) -> Any:
        if isinstance(value, list | tuple) and any(isinstance(each, Tensor) for each in value):
            # Functions of PyTorch take lists of tensors, no deeper trees.
            return type(value)(map(self._substituted, value))
        if id(value) in self._buffers:
            raise UnsupportedError("it reads a buffer of the network that it holds by itself")
        return self._pairs[id(value)][1] if id(value) in self._pairs else value


class Stage:
    """An order that works on given tensors instead of the learner's own."""

    def __init__(
        self, order: Order, given: Groups, s: int, buffer_names: list[str], frozen_names: list[str]
    ) -> None:
        self.theta = [_parameter(weight.detach().clone().requires_grad_()) for weight in given["theta"]]
        self.buffers = [buffer.clone() for buffer in given["buffers"]]
        rates: list[Any] = given["rates"]
        self.rates = Rates._make([*rates[:5], s, rates[5] if len(rates) > 5 else 0.0])
        self.system: System = copy.copy(order.system)
        self.system.theta = self.theta
        self.system.hyper = GivenRates(self.rates)  # type: ignore[assignment]
        self.system.drive, moments = OmegaUpdate.given(given.get("drive", []))
        if given.get("betas"):
            self.system.velocity = Velocity.given(given["betas"], self.theta, moments)
        self.order = copy.copy(order)
        self.order.system = self.system
        self.names = self.system.by_name(self.theta)
        self.names |= dict(zip(buffer_names, self.buffers, strict=True))
        self.names |= dict(zip(frozen_names, given["frozen"], strict=True))

    def run(self, function: Callable[[], Any]) -> Any:
        """Call `function` with the network at these weights."""
        slots = self.system.slots
        if slots.beside():
            raise UnsupportedError(f"a module holds its buffer {slots.beside()[0]!r} in a list or a dict too")
        own = slots.parameters
        pairs = [(own[name], other) for name, other in self.names.items() if name in own]
        with slots.exchanged(self.names), SubstitutedWeights(pairs, slots.buffers.values()):
            result = function()
            for name, buffer in zip(slots.buffers, slots.present(), strict=True):
                if buffer is not self.names[name]:
                    raise UnsupportedError(f"it puts another tensor in the place of its buffer {name!r}")
        return result


@dataclass
class RecordedStep(ABC):
    """One step, from groups of tensors to what they become and to the results of the step.

    Attributes:
        order: The order that the eager engine steps by.
        variant: What the samples may have.
        specs: Structures of h, of u and of the target.
        names: Names of the buffers and of the parameters that are not learned.
        y_spec: Structure of an output, known once the step has been called.
    """

    order: Order
    variant: Variant
    specs: Specs
    names: tuple[list[str], list[str]]
    y_spec: trees.Spec = field(default=None, init=False)

    @abstractmethod
    def __call__(self, given: Groups) -> tuple[Groups, Groups]:
        """The carried groups after the step, and its results."""

    def sample(self, given: Groups) -> Sample:
        """The sample of the step."""
        _, u_spec, target_spec = self.specs
        target = trees.unflatten(given["target"], target_spec) if self.variant.targets else None
        return Sample(trees.unflatten(given["u"], u_spec), target)


class OrderStep(RecordedStep):
    """One step of an order.

    Attributes:
        reset_each: Whether h starts from h0 at every sample.
        carries: Whether z is carried from step to step.
    """

    reset_each = False
    carries = False

    def __call__(self, given: Groups) -> tuple[Groups, Groups]:
        """Weights, state, costates and buffers after the step; output, loss and what is wrong with the step."""
        stage = Stage(self.order, given, self.order.system.hyper.s, *self.names)
        with counted() as faults:
            outcome = stage.run(lambda: self._proposed(stage, given, self.sample(given)))
            if outcome.memory is not None:
                raise UnsupportedError("its order remembers something beside tensors of the carry")
            theta = _moved(stage, outcome)
            if given.get("known"):
                outcome, theta = self._if_known(stage, given, outcome, theta)
        y, self.y_spec = trees.flatten(outcome.y)
        carried = {"theta": theta, "omega": outcome.omega, "h": outcome.h, "z": outcome.z}
        carried |= {"v": outcome.v, "E": outcome.E, "buffers": stage.buffers}
        watched = [*outcome.h, *outcome.z, *outcome.E] if self.variant.watch == "state" else []
        if self.variant.watch == "state" and stage.buffers:
            # Without a target an input shows nowhere but in running statistics.
            watched += given["u"]
        loss, coupling = ([] if x is None else [x] for x in (outcome.loss, outcome.coupling))
        kept = {f"kept_{name}": _kept(carried, name) for name in self.variant.keep}
        return carried, {"y": y, "loss": loss, "coupling": coupling, "mark": mark(watched, faults), **kept}

    def _if_known(
        self, stage: Stage, given: Groups, outcome: Outcome, theta: list[Tensor]
    ) -> tuple[Outcome, list[Tensor]]:
        """The outcome and θ⁺ if there is a target, else those of the step without one."""
        if stage.buffers:
            raise UnsupportedError(
                "some samples have no target, and an order of your own would change buffers twice"
            )
        (known,), sample = given["known"], self.sample(given)
        other = stage.run(lambda: self._proposed(stage, given, Sample(sample.u, None)))

        def chosen(one: list[Tensor], without: list[Tensor]) -> list[Tensor]:
            pairs = zip(one, without, strict=True)
            return [torch.where(known, a.detach(), b.detach()) for a, b in pairs]

        names = ("h", "z", "omega", "v", "E")
        parts: dict[str, Any] = {name: chosen(getattr(outcome, name), getattr(other, name)) for name in names}
        if outcome.coupling is not None:
            zero = torch.zeros_like(outcome.coupling)
            parts["coupling"] = torch.where(
                known, outcome.coupling, other.coupling if other.coupling is not None else zero
            )
        return replace(outcome, **parts), chosen(theta, _moved(stage, other))

    def _proposed(self, stage: Stage, given: Groups, sample: Sample) -> Outcome:
        h_spec = self.specs[0]
        h, z, E = given["h"], given["z"], given["E"]
        if h and (self.reset_each or self.variant.fresh):
            start = stage.order.start(sample.u, h, h_spec)
            zero, first = [torch.zeros_like(leaf) for leaf in z], stage.order.first(start, h_spec)
            if self.reset_each:
                h, z, E = start, z if self.carries else zero, first
            if self.variant.fresh:
                (new,) = given["fresh"]
                h, z, E = (
                    [torch.where(new, a, b) for a, b in zip(begun, kept, strict=True)]
                    for begun, kept in ((start, h), (zero, z), (first, E))
                )
        now = Instant(sample, stage.rates.t, stage.rates, False, False)
        return stage.order.propose(Carry(h, z, given["omega"], h_spec, v=given["v"], E=E), now)


@torch.no_grad()
def _moved(stage: Stage, outcome: Outcome) -> list[Tensor]:
    """θ⁺."""
    if not outcome.moves:
        return stage.theta
    stride, velocity = stage.rates.stride, stage.system.velocity
    if outcome.theta is not None:
        return outcome.theta
    if outcome.dtheta is not None:
        return plus(stage.theta, outcome.dtheta, stride)
    return velocity.moved(stage.theta, outcome.omega, 0.0, stride, outcome.v)


def _parameter(weight: Tensor) -> Tensor:
    """The same tensor, which says of itself that it is a parameter, as the user's code may ask."""
    weight._is_param = True
    return weight


def mark(watched: Sequence[Tensor], faults: Sequence[Tensor]) -> list[Tensor]:
    """How many entries of the tensors are not finite, and how many indices are out of range; empty for neither."""
    watched = [x for x in watched if x.is_floating_point()]
    # Counted by comparison: a compiler that may reorder sums takes a sum of zeros times anything for zero.
    marks = [(1 - (x.abs() <= torch.finfo(x.dtype).max).to(x.dtype)).sum() for x in watched]
    marks += [count.to(marks[0].dtype if marks else torch.float32) for count in faults]
    if not marks:
        return []
    total = marks[0]
    for count in marks[1:]:
        total = total + count
    return [total]


def _kept(carried: Groups, name: str) -> list[Tensor]:
    """A carried group, or the sum of its squares; nothing of one that is empty."""
    leaves = carried[name.removeprefix(NORM)]
    return [torch.stack([(x * x).sum() for x in leaves]).sum()] if name.startswith(NORM) and leaves else leaves


class EagerReference(NamedTuple):
    """The start and the results of an eager step.

    Attributes:
        start: The tensors that it started from.
        led_to: Its results, copied. Weights and v are left out: they follow from ω, and Adam divides the rounding
            of tiny gradients by their size.
    """

    start: Groups
    led_to: Groups

    @classmethod
    def of(cls, theta: Sequence[Tensor], start: Carry, outcome: Outcome) -> EagerReference:
        """A step that proposes `outcome`."""
        met = {"theta": list(theta), "omega": start.omega, "h": start.h, "z": start.z, "E": start.E}
        led_to = {
            "omega": outcome.omega,
            "h": outcome.h,
            "z": outcome.z,
            "E": outcome.E,
            "y": trees.flatten(outcome.y)[0],
            "loss": [] if outcome.loss is None else [outcome.loss],
        }
        return cls(met, {name: [trees.copied(x) for x in group] for name, group in led_to.items() if group})

    def comparable(self, first: Groups) -> bool:
        """Whether it started where the compiled step starts, and led to finite values."""
        pairs = [(self.start[name], first.get(name)) for name in self.start]
        # A group that one of the two steps does without is empty or absent.
        same = all(_equal(a, b) for one, other in pairs if one and other for a, b in zip(one, other, strict=True))
        return same and all_finite([x for group in self.led_to.values() for x in group if x.is_floating_point()])


class ReferenceStep(NamedTuple):
    """Makes the eager step of a block's first sample, and raises what that step raises.

    Attributes:
        run: Makes the step, and leaves everything as it was; `None`: there is nothing to compare.
        network: The network whose step it is: the one that is recorded, or that of another member.
        member: Its place among the members of a population.
    """

    run: Callable[[], EagerReference | None]
    network: nn.Module
    member: int = 0


def _equal(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.dtype == other.dtype and torch.equal(one.detach(), other.detach()))


@contextmanager
def weights_kept(network: nn.Module) -> Iterator[None]:
    """Within, a step may write to weights and buffers, as an embedding with `max_norm` does; they are put back."""
    before = [(own, own.detach().clone()) for own in (*network.parameters(), *network.buffers())]
    try:
        yield
    finally:
        with torch.no_grad():
            for own, copy in before:
                if not torch.equal(own, copy):
                    own.copy_(copy)
