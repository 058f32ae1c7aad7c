"""One step of a learner as a pure graph of tensor operations: (carry, sample) in, (carry, results) out.

The graph is recorded from the order that the eager engine calls, so the mathematics is written once. Rates and β
enter as tensors without axes, which makes one graph serve every hyper-parameter, schedule and uneven τ.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from hamlearn._base import trees
from hamlearn._base.scale import plus
from hamlearn.engine.recorded.member_control import OnTrouble, controlled
from hamlearn.loops import Kind, UnsupportedError
from hamlearn.loops.index_checks import counted
from hamlearn.loops.recording import pure_graph
from hamlearn.rates import Rates
from hamlearn.rules.drive import Drive
from hamlearn.rules.system import Instant, Order, System
from hamlearn.rules.velocity import Velocity
from hamlearn.sample import Sample
from hamlearn.state.carry import Carry

Watch = Literal["nothing", "state", "all"]
"""What is watched for values that are not finite, step by step: nothing; h, z and buffers; or ω and θ too."""


@dataclass(frozen=True)
class Variant:
    """What the samples of a chunk have, and so what a step has to handle.

    Attributes:
        targets: Some have a target; those without one enter with φ = 0.
        fresh: A flag says whether a sample begins a sequence.
        watch: What each step counts the entries of that are not finite.
        on_trouble: What a member does at a step that goes wrong; `None` if the caller reads the marks instead.
    """

    targets: bool
    fresh: bool
    watch: Watch
    on_trouble: OnTrouble | None = None


@dataclass(frozen=True)
class Inputs:
    """All that a step reads, as flat lists of tensors, in the order of the graph's inputs."""

    theta: list[Tensor]
    omega: list[Tensor]
    h: list[Tensor]
    z: list[Tensor]
    v: list[Tensor]
    E: list[Tensor]
    buffers: list[Tensor]
    frozen: list[Tensor]
    rates: list[Tensor]
    betas: list[Tensor]
    drive: list[Tensor]
    u: list[Tensor]
    target: list[Tensor]
    fresh: list[Tensor]
    flow: list[Tensor] = field(default_factory=list)
    control: list[Tensor] = field(default_factory=list)
    active: list[Tensor] = field(default_factory=list)

    def flat(self) -> list[Tensor]:
        """One list."""
        return [tensor for group in vars(self).values() for tensor in group]

    def kinds(self, carry: set[str], sample: set[str]) -> list[Kind]:
        """What each tensor is to the loop over steps, by the names of the groups; all others are constant."""
        kinds: list[Kind] = []
        for name, group in vars(self).items():
            kind: Kind = "carry" if name in carry else "sample" if name in sample else "constant"
            kinds += [kind] * len(group)
        return kinds

    def laned(self, own: bool) -> list[bool]:
        """Which tensors each member of a population has for itself; `own`: inputs and targets too."""
        shared = set() if own else {"u", "target"}
        return [name not in shared for name, group in vars(self).items() for _ in group]

    def emptied(self) -> Inputs:
        """The same groups of as many tensors, which hold nothing: what a step that is kept knows its inputs by."""
        return self.like([torch.empty(0)] * len(self.flat()))

    def like(self, flat: Sequence[Tensor]) -> Inputs:
        """The same groups, made of other tensors."""
        rest = iter(flat)
        return Inputs(*([next(rest) for _ in group] for group in vars(self).values()))


@dataclass
class Recorded:
    """The graph of a step, and how its results are to be read.

    Attributes:
        graph: Pure tensor operations.
        step: The step itself, from the same tensors to the same results, by which the graph is audited.
        y_spec: Structure of y.
        y_count: Number of tensors in y.
        loss: Whether the loss is among the results.
        coupling: Whether ⟨z, f_h⟩ is.
        mark: Whether a count of what is wrong is: entries that are not finite, indices out of range.
        verdict: Whether what became of the step is, as `member_control` says.
        carried: How many tensors of each kind it returns first, in their order.
    """

    graph: fx.GraphModule
    step: Callable[..., list[Tensor]]
    y_spec: trees.Spec
    y_count: int
    loss: bool
    coupling: bool
    mark: bool
    verdict: bool = False
    carried: dict[str, int] = field(default_factory=dict)

    def read(self, found: list[Tensor]) -> dict[str, list[Tensor]]:
        """What a call of the graph has returned, by name, as far as an eager step returns it too."""
        rest = iter(found)
        groups = {name: [next(rest) for _ in range(count)] for name, count in self.carried.items()}
        results = self.y_count + self.loss + self.coupling + self.mark + self.verdict
        last = found[len(found) - results :]
        return groups | {"y": last[: self.y_count], "loss": last[self.y_count :][: self.loss]}


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
            return type(value)(
                map(self._substituted, value)
            )  # functions of PyTorch take lists of tensors, no deeper trees
        if id(value) in self._buffers:
            raise UnsupportedError("it reads a buffer of the network that it holds by itself")
        return self._pairs[id(value)][1] if id(value) in self._pairs else value


class Stage:
    """An order that works on given tensors instead of the learner's own."""

    def __init__(
        self, order: Order, given: Inputs, s: int, buffer_names: list[str], frozen_names: list[str]
    ) -> None:
        self.theta = [_parameter(weight.detach().clone().requires_grad_()) for weight in given.theta]
        self.buffers = [buffer.clone() for buffer in given.buffers]
        self.rates = Rates._make([*given.rates, s])
        self.system: System = copy.copy(order.system)
        self.system.theta = self.theta
        self.system.hyper = GivenRates(self.rates)  # type: ignore[assignment]
        self.system.drive, moments = Drive.given(given.drive)
        if given.betas:
            self.system.velocity = Velocity.given(given.betas, self.theta, moments)
        self.order = copy.copy(order)
        self.order.system = self.system
        self.names = self.system.by_name(self.theta)
        self.names |= dict(zip(buffer_names, self.buffers, strict=True))
        self.names |= dict(zip(frozen_names, given.frozen, strict=True))

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


def record(
    order: Order,
    inputs: Inputs,
    variant: Variant,
    specs: tuple[trees.Spec, trees.Spec, trees.Spec],
    names: tuple[list[str], list[str]],
    reset_each: bool,
    carries: bool,
) -> Recorded:
    """The graph of one step of `order`.

    Args:
        order: What the eager engine steps by.
        inputs: Tensors of the shapes and types to expect.
        variant: What the samples may have.
        specs: Structures of h, of u and of the target.
        names: Names of the buffers and of the parameters that are not learned.
        reset_each: Whether h starts from h0 at every sample.
        carries: Whether z is carried from step to step.
    """
    described: dict[str, Any] = {}
    h_spec, u_spec, target_spec = specs

    def step(*flat: Tensor) -> list[Tensor]:
        given = inputs.like(flat)
        stage = Stage(order, given, order.system.hyper.s, *names)
        system = stage.system
        u = trees.unflatten(given.u, u_spec)
        target = trees.unflatten(given.target, target_spec) if variant.targets else None
        now = Instant(Sample(u, target), 0.0, stage.rates, False, False)

        def propose() -> Any:
            h, z, E = given.h, given.z, given.E
            if h and (reset_each or variant.fresh):
                start = stage.order.start(u, h, h_spec)
                again = [torch.zeros_like(leaf) for leaf in z]
                first = stage.order.first(start, h_spec)
                if reset_each:
                    h, z, E = start, z if carries else again, first
                if variant.fresh:
                    new = given.fresh[0] | given.control[1] if given.control else given.fresh[0]
                    h, z, E = (
                        [torch.where(new, a, b) for a, b in zip(begun, kept, strict=True)]
                        for begun, kept in ((start, h), (again, z), (first, E))
                    )
            return stage.order.propose(Carry(h, z, given.omega, h_spec, v=given.v, E=E), now)

        with counted() as faults:
            outcome = stage.run(propose)
        with torch.no_grad():
            if outcome.theta is not None:
                theta = outcome.theta
            elif outcome.dtheta is None:
                theta = system.velocity.moved(stage.theta, outcome.omega, 0.0, stage.rates.stride, outcome.v)
            else:
                theta = plus(stage.theta, outcome.dtheta, stage.rates.stride)
        y, described["y_spec"] = trees.flatten(outcome.y)
        described.update(y_count=len(y), loss=outcome.loss is not None)
        described["coupling"] = outcome.coupling is not None
        parts = (theta, outcome.omega, outcome.h, outcome.z, outcome.v, outcome.E, stage.buffers)
        kinds = ("θ", "ω", "h", "z", "v", "∂h/∂θ")
        described["carried"] = {kind: len(part) for kind, part in zip(kinds, parts, strict=False)}
        carried = [tensor for part in parts for tensor in part]
        carried = [new.detach().to(old.dtype) for new, old in zip(carried, flat, strict=False)]
        results = [*y, *(x for x in (outcome.loss, outcome.coupling) if x is not None)]
        watched = (
            [] if variant.watch == "nothing" else floating([*outcome.h, *outcome.z, *outcome.E, *stage.buffers])
        )
        watched += [*outcome.omega, *theta, *outcome.v] if variant.watch == "all" else []
        described["verdict"] = variant.on_trouble is not None
        described["mark"] = bool(watched or faults) and variant.on_trouble is None
        if variant.on_trouble is not None:
            wrong = [mark(watched, [])] if watched else []
            seen = [outcome.loss] if outcome.loss is not None and variant.watch != "nothing" else []
            begins = given.fresh[0] | given.control[1] if variant.fresh else given.control[1]
            trouble = (wrong, seen, faults, given.rates[4], variant.on_trouble)
            carried, verdict = controlled(
                carried, flat[: len(carried)], given.control, given.active[0], begins, *trouble
            )
            results.append(verdict)
        elif watched or faults:
            results.append(mark(watched, faults))
        return [tensor.detach() for tensor in (*carried, *results)]

    graph = pure_graph(step, inputs.flat())
    inputs = inputs.emptied()
    return Recorded(graph, step, **described)


def _parameter(weight: Tensor) -> Tensor:
    """The same tensor, which says of itself that it is a parameter, as the user's code may ask."""
    weight._is_param = True
    return weight


def floating(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Those that can hold what is not a number."""
    return [tensor for tensor in tensors if tensor.is_floating_point()]


def mark(watched: Sequence[Tensor], faults: Sequence[Tensor]) -> Tensor:
    """How many entries of the tensors are not finite, and how many indices are out of range."""
    # Counted by comparison: a compiler that may reorder sums takes a sum of zeros times anything for zero.
    marks = [(1 - (x.abs() <= torch.finfo(x.dtype).max).to(x.dtype)).sum() for x in watched]
    marks += [count.to(marks[0].dtype if marks else torch.float32) for count in faults]
    total = marks[0]
    for count in marks[1:]:
        total = total + count
    return total
