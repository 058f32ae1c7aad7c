"""The learner: takes one sample at a time, moves state, costates and weights, and reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from hamlearn._base import trees
from hamlearn.credit import Cleared, Credit, Echo
from hamlearn.engine.blocks.echo_runner import EchoRunner
from hamlearn.engine.blocks.runner import BlockRunner, StepRunner
from hamlearn.engine.blocks.scans import whole_block
from hamlearn.engine.eager.parts import LearnerParts, LearnerState
from hamlearn.engine.eager.stepping import EagerEngine
from hamlearn.engine.owner import BaseLearner
from hamlearn.engine.setting import (
    Choices,
    check_arguments,
    check_chunk,
    check_keep,
    no_sample,
    require_gradients,
    with_costates,
)
from hamlearn.errors import shown
from hamlearn.hyper import Hyper
from hamlearn.integrators import Euler, Integrator
from hamlearn.network import Network
from hamlearn.rules.derivatives import Loss
from hamlearn.rules.running_cost import RunningCost
from hamlearn.rules.system import Order
from hamlearn.sample import Label, Sample, State, StepReport, Trace
from hamlearn.state import checkpoint
from hamlearn.state.carry import Carry
from hamlearn.state.identity import identity
from hamlearn.state.labels import Labels, waiting_of, waiting_tree
from hamlearn.state.packing import pack, pack_spec, unpack, unpack_spec
from hamlearn.state.saving import random_state, take_up
from hamlearn.state.tensors import Tensors


class LearnerHeader(checkpoint.Schema):
    """What a checkpoint of a learner says of it, besides its model, setting and place in the stream."""

    t: float = Field(ge=0, allow_inf_nan=False)
    updates: int = Field(ge=0)
    fresh: bool
    state_tree: Any
    memory: Any
    waiting: Any
    seed: int = Field(ge=0)
    drawn: int = Field(ge=0)


class Learner(BaseLearner):
    """Hamiltonian Learning of one network from one stream, forward only.

    As it comes, a learner follows the gradient of each sample's loss. Algorithm 1 of the paper is
    `Learner(network, loss, hyper, order="parallel", credit=Forward())`.

    Args:
        network: State net and output net.
        loss: L(y, target), any function that returns a scalar.
        hyper: Step sizes and rates: τ, η, β, φ and s.
        order: `"sequential"`: state, loss, z, ω, θ one after the other, which recovers gradient learning.
            `"parallel"`: all four updates from values at time t. A subclass of `hl.Order`: your own rule.
        credit: What z carries between steps: `Cleared()`, `Forward()`, `Echo()`, `Sensitivity()`, or one of the
            rules of `hl.credit`.
        reset_h: `"boundary"`: h returns to h0 after the last token of a sequence. `"sample"`: also before
            each sample, as feed-forward state nets need.
        integrator: `Euler()`, `Heun()` or `RK4()`; sequential order takes `Euler()` only.
        on_nonfinite: What to do if a loss or costate is not finite: `"raise"`, or `"skip"` the sample;
            the last good state is kept either way. A skipped sample that ends a sequence still ends it.
            `"ignore"` saves the check.
        late: How many samples that came with an `id` and without a target are kept, to be learned from when
            their `Label` comes.
        running_cost: R(u, h, dh, y, theta, t), a number that joins H = φL + R + ⟨z, f_h⟩ at every step, with or
            without a target: input, state, its rate ḣ, output, weights by name, and time as a tensor. Its
            derivatives enter z and ω.

    Example:
        >>> import torch, hamlearn as hl
        >>> net = hl.Network.feedforward(torch.nn.Linear(2, 1))
        >>> loss = torch.nn.functional.mse_loss
        >>> learner = hl.Learner(net, loss, hl.Hyper.from_sgd(lr=0.1))
        >>> report = learner.step(hl.Sample(torch.ones(1, 2), target=torch.ones(1, 1)))
        >>> report.loss.shape, learner.state.t
        (torch.Size([]), 1.0)
    """

    def __init__(
        self,
        network: Network,
        loss: Loss,
        hyper: Hyper = Hyper(),  # noqa: B008 (frozen)
        order: Literal["parallel", "sequential"] | type[Order] = "sequential",
        credit: Credit = Cleared(),  # noqa: B008 (frozen)
        reset_h: Literal["boundary", "sample"] = "boundary",
        integrator: Integrator = Euler(),  # noqa: B008 (stateless)
        on_nonfinite: Literal["raise", "skip", "ignore"] = "raise",
        late: int = 1000,
        running_cost: RunningCost | None = None,
    ) -> None:
        choices = Choices(order, credit, reset_h, integrator, on_nonfinite)
        check_arguments(network, hyper, choices, late, running_cost)
        super().__init__()
        self._eager = EagerEngine(LearnerParts(network, loss, hyper, choices, running_cost), self._reader, late)

    def __repr__(self) -> str:
        system = self._eager.parts.system
        nets = [name for name in ("state", "output") if getattr(system.network, name) is not None]
        weights = sum(weight.numel() for weight in system.theta)
        loss = getattr(system.loss, "__name__", None) or repr(system.loss)
        return (
            f"Learner({' and '.join(nets)} net with {weights:,} weights, loss={loss}, "
            f"order={self.order!r}, credit={self.credit!r}, {self.hyper!r})"
        )

    def __getstate__(self) -> dict[str, Any]:
        # Its own tensors, no copies: a new process is sent their memory, which must outlive this call.
        (tensors, header), parts = self._tell("cannot copy the learner"), self._eager.parts
        own = {name: tensor.detach() for name, tensor in tensors.items() if not name.startswith("rng/")}
        made = {"network": parts.network, "loss": parts.system.loss, "hyper": parts.hyper, "late": self.late}
        made["running_cost"] = parts.system.running_cost
        added = {name: value for name, value in vars(self).items() if name not in _MADE}
        # A copy does not repeat the warnings that its model has given already.
        copied = {"made": made | parts.choices._asdict(), "added": added, "state": (own, header)}
        return copied | {"overshoot": parts.usual.overshoot}

    def __setstate__(self, copied: dict[str, Any]) -> None:
        Learner.__init__(self, **copied["made"])
        vars(self).update(copied["added"])
        self._eager.parts.usual.overshoot = copied["overshoot"]
        self._become(*copied["state"])

    @property
    def loss(self) -> Loss:
        """L(y, target), as the learner was made with it."""
        return self._eager.parts.system.loss

    @property
    def running_cost(self) -> RunningCost | None:
        """R(u, h, dh, y, theta, t), as the learner was made with it."""
        return self._eager.parts.system.running_cost

    @property
    def hyper(self) -> Hyper:
        """τ, η, β, φ and s, as the learner was made with them."""
        return self._eager.parts.hyper

    @property
    def order(self) -> Literal["parallel", "sequential"] | type[Order]:
        """`"parallel"`, `"sequential"`, or a class of your own."""
        return self._eager.parts.choices.order

    @property
    def credit(self) -> Credit:
        """What z carries between steps."""
        return self._eager.parts.choices.credit

    @property
    def reset_h(self) -> Literal["boundary", "sample"]:
        """When h returns to h0."""
        return self._eager.parts.choices.reset_h

    @property
    def integrator(self) -> Integrator:
        """The rule of integration."""
        return self._eager.parts.choices.integrator

    @property
    def on_nonfinite(self) -> Literal["raise", "skip", "ignore"]:
        """The reaction to a value that is not finite."""
        return self._eager.parts.choices.on_nonfinite

    @property
    def late(self) -> int:
        """How many samples may wait for their labels."""
        return self._eager.state.waiting.most

    @property
    def labels(self) -> Labels:
        """What became of samples whose labels were to come later."""
        self._settle()
        return self._eager.state.waiting.counts()

    @property
    def network(self) -> Network:
        """State net and output net, with the weights as they are now."""
        self._settle()
        return self._eager.parts.network

    @property
    def state(self) -> State:
        """Time, h, z and ω as they are now, and v where β adapts."""
        self._settle()
        now, names = self._eager.state, self._eager.parts.system.names
        carry = now.carry
        h = trees.unflatten(carry.h, carry.spec) if carry.h else None
        z = trees.unflatten(carry.z, carry.spec) if carry.z else None
        omega = dict(zip(names, carry.omega, strict=True))
        v = dict(zip(names, carry.v, strict=False))
        return State(now.t, h, z, omega, now.updates, v)

    @property
    def stored_tokens(self) -> int:
        """How many tokens, with the states they met, wait for an echo; 0 for credits that store none."""
        self._settle()
        return self._eager.parts.order.stored(self._eager.state.carry.memory)

    def step(self, sample: Sample | Label) -> StepReport:
        """Integrate one sample. If anything is wrong with it, the learner stays exactly as it was.

        A `Label` is learned with the input and the state of its sample, at the present weights. It is an impulse,
        no time passes: ω takes in what the sample would have given it, −sτφ ∂L/∂θ, and in sequential order θ moves
        by that much, −τβ⊙(−sτφ ∂L/∂θ), and follows ω from the next sample on.
        """
        if not isinstance(sample, (Sample, Label)):
            raise no_sample(sample)
        if self._blocks is not None:
            self._settle()
        if torch.is_inference_mode_enabled():
            require_gradients()
        return self._eager.take(sample)

    def run(
        self,
        stream: Iterable[Sample],
        max_steps: int | None = None,
        engine: Literal["eager", "compiled", "auto"] = "eager",
        chunk: int | None = None,
        *,
        resume: bool = False,
    ) -> Iterator[StepReport]:
        """Take samples from `stream` and yield a report for each, until it ends or `max_steps` are done.

        Args:
            stream: Any iterable of samples, endless or not.
            max_steps: How many samples to take at most.
            engine: `"eager"`, one sample at a time. `"compiled"`: the step is compiled once, and blocks of
                samples are taken in one call; whatever the learner is asked between two reports, it answers as
                of the last one. If a network cannot be compiled, the run falls back to the eager engine
                with a warning. `"auto"`: compiled if the stream has its samples at hand and enough of them for
                that to pay, else eager; a step that cannot be compiled continues eagerly with one line in the log.
            chunk: How many samples the compiled engine takes at a time, at most; `None`: 256, and 1024 on a GPU.
            resume: Continue where the loaded checkpoint was saved: the stream is put back by its own
                `load_state_dict` if it has one, else the samples already taken are passed over.
        """
        self._eager.parts.check_network()
        size = check_chunk(chunk, bool(self._eager.parts.devices))
        return self._reports(stream, max_steps, engine, size, resume)

    def scan(
        self,
        u: Any,
        target: Any = None,
        tau: Any = None,
        boundary: Any = None,
        *,
        known: Any = None,
        keep: Sequence[str] = (),
    ) -> Trace:
        """Take whole tensors, one sample a step, in one call; time is the first axis of each.

        The steps are those of `run(engine="compiled")`, with no Python between them. If the step
        cannot be compiled, they are made eagerly, and a warning says why. All of them are made or, if a sample
        raises, none: the error says which, and the learner is as it was. The place in a stream does not move.

        Args:
            u: Inputs, a tensor or a pytree of tensors.
            target: Targets likewise; `None`: there are none, and the steps are integrated all the same.
            tau: Time before each sample (τ): a number for all, or one per step; `None` takes `Hyper.tau`.
            boundary: Whether each sample ends its sequence, one truth value per step; `None`: none does.
            known: Whether each sample has a target, one truth value per step; `None`: all have. What `target`
                holds for the others is not looked at.
            keep: What else the trace has of every step: any of `"h"`, `"z"`, `"omega"`, `"theta"`, `"v"`, `"E"`.

        Returns:
            Outputs, losses and Hamiltonians of all steps, and what was to be kept.

        Example:
            >>> import torch, hamlearn as hl
            >>> net = hl.Network.recurrent(torch.nn.RNNCell(2, 8), torch.nn.Linear(8, 1))
            >>> learner = hl.Learner(net, torch.nn.functional.mse_loss, hl.Hyper.from_sgd(lr=0.05))
            >>> u = torch.randn(1000, 1, 2)
            >>> trace = learner.scan(u, target=u.sum(-1, keepdim=True))
            >>> trace.y.shape, trace.loss.shape, learner.state.t
            (torch.Size([1000, 1, 1]), torch.Size([1000]), 1000.0)
        """
        names = check_keep(keep)
        block = whole_block(u, target, tau, boundary, known)
        self._settle()
        eager, runner = self._eager, self._runner()
        system = eager.parts.system

        def save() -> Callable[[], None]:
            state = self.state_dict()
            return lambda: self.load_state_dict(state)

        def present(name: str) -> list[Tensor]:
            return system.theta if name == "theta" else getattr(eager.led_to, name)

        trace, kept = runner.whole(block, save, system.theta[0].detach(), names, present)
        if trace.loss is None and target is not None:
            # Not one is known: losses that are not numbers, as where only some are.
            trace = replace(trace, loss=torch.full_like(trace.hamiltonian, torch.nan))
        found: dict[str, Any] = {name: dict(zip(system.names, rows, strict=False)) for name, rows in kept.items()}
        for name in kept.keys() & {"h", "z"}:
            found[name] = trees.unflatten(kept[name], eager.state.carry.spec) if kept[name] else None
        if "E" in kept:
            found["E"] = kept["E"]
        return replace(trace, **found)

    def _runner(self) -> BlockRunner:
        if self._blocks is None:
            self._blocks = (EchoRunner if isinstance(self.credit, Echo) else StepRunner)(self._eager, self.step)
        return self._blocks

    def _waits(self) -> int:
        return self._eager.parts.order.pending(self._eager.state.carry.memory)

    def predict(self, u: Any, tau: float | None = None) -> Any:
        """The output for `u` at the present state and weights. Nothing moves, no random number is drawn.

        The network is in evaluation mode meanwhile. In sequential order the output is read from the state
        that a step of length `tau` (`None`: `Hyper.tau`) would lead to; in parallel order, from the present
        one.
        """
        self._settle()
        return self._eager.answer(u, tau)

    def reset(self) -> None:
        """Return h to h0 and z to 0, as after a boundary, and drop stored tokens. ω, θ and the time stay."""
        self._settle()
        self._eager.reset()

    def set_state(self, h: Any = None, z: Any = None, omega: Mapping[str, Tensor] | None = None) -> None:
        """Set the state, its costate, or costates of weights, as copies; what is not given stays.

        The equations start from z = 0 and ω = 0 unless this says otherwise. With `h` or `z` the next sample
        continues from this state, as in mid-sequence; stored tokens are dropped, and sensitivities start again.

        Args:
            h: State, in the structure of the network's.
            z: Its costate, likewise. Credits that clear z do not look at it.
            omega: Costates of weights by parameter name; those that are not named stay.

        Example:
            >>> import torch, hamlearn as hl
            >>> net = hl.Network.recurrent(torch.nn.RNNCell(2, 3), torch.nn.Linear(3, 1))
            >>> learner = hl.Learner(net, torch.nn.functional.mse_loss, credit=hl.Forward())
            >>> learner.set_state(h=torch.zeros(1, 3), z=torch.ones(1, 3), omega={"output.bias": torch.ones(1)})
            >>> learner.state.z
            tensor([[1., 1., 1.]])
        """
        self._settle()
        parts, state = self._eager.parts, self._eager.state
        carry = with_costates(state.carry, parts.system, h, z, omega or {})
        moved = h is not None or z is not None
        if moved:
            carry.E, carry.memory = parts.order.first(carry.h, carry.spec), None
        self._eager.state = state._replace(carry=carry, fresh=state.fresh and not moved)

    def _root(self) -> nn.Module:
        return self._eager.parts.network

    def _setting(self) -> dict[str, Any]:
        parts = self._eager.parts
        choices = parts.choices
        return {
            "order": identity(choices.order),
            "credit": repr(choices.credit),
            "reset_h": choices.reset_h,
            "integrator": repr(choices.integrator),
            "transition": parts.network.transition,
            "learnable": parts.system.names,
        }

    def _own_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        parts, now = self._eager.parts, self._eager.state
        carry, names, tensors = now.carry, parts.system.names, dict[str, Tensor]()
        for part in ("omega", "v"):
            tensors |= {f"{part}/{name}": x for name, x in zip(names, getattr(carry, part), strict=False)}
        for part in ("h", "z", "E"):
            tensors |= {f"{part}/{index}": leaf for index, leaf in enumerate(getattr(carry, part))}
        memory, tokens = pack(parts.order.memory_tree(carry.memory), "memory/")
        waiting, labels = pack(waiting_tree(now.waiting), "waiting/")
        return tensors | memory | waiting, {
            "t": now.t,
            "updates": now.updates,
            "fresh": now.fresh,
            "state_tree": pack_spec(carry.spec, len(carry.h)),
            "memory": tokens,
            "waiting": labels,
            "seed": self._eager.seed,
            "drawn": now.drawn,
        }

    def _own_change(self, left: Tensors, header: dict[str, Any]) -> Callable[[], None]:
        eager, parts = self._eager, self._eager.parts
        about = LearnerHeader(**{key: header[key] for key in LearnerHeader.model_fields})
        carry, device = self._loaded_carry(left, about), parts.system.theta[0].device
        carry.memory = parts.order.memory_of(unpack(about.memory, left, "memory/", device))
        waiting = waiting_of(unpack(about.waiting, left, "waiting/", device), eager.state.waiting.most)

        def swap() -> None:
            eager.state = LearnerState(carry, about.t, about.updates, about.fresh, waiting, about.drawn)
            eager.seed = about.seed

        return swap

    def _loaded_carry(self, left: Tensors, about: LearnerHeader) -> Carry:
        parts = self._eager.parts
        theta, names = parts.system.theta, parts.system.names
        omega = [left.keep(f"omega/{n}", w.device, w) for n, w in zip(names, theta, strict=True)]
        device = theta[0].device
        h = [left.keep(name, device) for name in left.counted("h/")]
        z = [left.keep(f"z/{index}", device, leaf) for index, leaf in enumerate(h)]
        spec = unpack_spec(about.state_tree)
        present, known = self._eager.state.carry, parts.network.first_names()
        if h and (known is not None or present.h):
            # One tensor has no structure, and its name is a string.
            expected = present.spec if present.h or isinstance(known, str) else trees.flatten(known)[1]
            if str(spec) != str(expected):
                raise ValueError(
                    f"its state has the structure {shown(about.state_tree)}, not that of this network's"
                )
        v = self._loaded_v(left)
        firsts = parts.order.first(h, spec) if h else []
        E = [left.keep(f"E/{index}", device, leaf) for index, leaf in enumerate(firsts)]
        return Carry(h, z, omega, spec, v=v, E=E)

    def _loaded_v(self, left: Tensors) -> list[Tensor]:
        """What an adaptive β follows; it starts at 0 if the learner that was saved had a β that does not adapt."""
        parts = self._eager.parts
        saved = left.under("v/")
        if parts.system.velocity.adaptive is None:
            return []
        pairs = list(zip(parts.system.names, parts.system.theta, strict=True))
        if not saved.names():
            return [torch.zeros_like(weight, requires_grad=False) for _, weight in pairs]
        return [saved.keep(name, weight.device, weight) for name, weight in pairs]

    def _become(self, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        """Become the learner that a copy is made of; the random numbers of the program continue."""
        with checkpoint.reading(checkpoint.STATE):
            complete = tensors | random_state()
            take_up(self.loadings_of(checkpoint.STATE, complete, header, new_hyper=True))


def eager_of(learner: Learner) -> EagerEngine:
    """What a learner steps by, for those who let many learners step together; it is where its last report says."""
    learner._settle()
    return learner._eager


def carry_along(learner: Learner, parts: Mapping[str, Any]) -> None:
    """Save the states of `parts`, such as metrics, with the place in the stream of the run that begins next."""
    learner._reader.carry(parts)


def ask_norms(learner: Learner, names: Sequence[str]) -> None:
    """Give reports of compiled blocks the norms of h, z, ω and θ: looking at each state would repeat steps."""
    parameters = sum(1 for _ in learner.network.parameters())
    # A step carries only the weights that are learned: for others the state has to be looked at.
    complete = "theta" not in names or parameters == len(learner._eager.parts.system.theta)
    learner._eager.norms = tuple(names) if complete else ()


_MADE = {"_eager", "_reader", "_blocks"}
"""Attributes that a copy has by being made, and by its state."""
