"""The members of a population as lanes of one loop: their tensors, their samples, and whether they are alike."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parametrize

from hamlearn._base import trees
from hamlearn.adaptive import Adaptive
from hamlearn.engine.blocks.runner import Undo
from hamlearn.engine.eager.parts import LearnerParts
from hamlearn.engine.eager.stepping import EagerEngine
from hamlearn.engine.rates_table import time_steps
from hamlearn.engine.recorded import Engine, HeldTensors, UnsupportedError, named
from hamlearn.loops.guards import Guards
from hamlearn.sample import Sample
from hamlearn.state.carry import Carry
from hamlearn.streams.blocks import Block


class LaneLayout:
    """Groups of members, as wide as the CPU's vectors: the innermost loop of an operation runs over a group.

    Args:
        members: Number of members.
        dtype: Type of their weights.
        width: Members of a group; `None`: what the CPU's vectors hold.

    Example:
        >>> layout = LaneLayout(3, torch.float64, width=2)
        >>> packed = layout.fold(torch.arange(3.0))
        >>> packed, layout.pick(packed, 2), layout.flat(packed)
        (tensor([[0., 1.],
                [2., 2.]]), tensor(2.), tensor([0., 1., 2.]))
    """

    def __init__(self, members: int, dtype: torch.dtype, width: int | None = None) -> None:
        self.members = members
        self.width = width or max(2, min(members, 16 if dtype == torch.float32 else 8))
        self.groups = -(-members // self.width)

    def fold(self, rows: Tensor, dim: int = 0) -> Tensor:
        """Members along axis `dim` as groups along that axis and lanes along the last; the last one repeats."""
        missing = self.groups * self.width - self.members
        if missing:
            last = rows.narrow(dim, self.members - 1, 1)
            shape = (*rows.shape[:dim], missing, *rows.shape[dim + 1 :])
            rows = torch.cat([rows, last.expand(shape)], dim)
        return rows.unflatten(dim, (self.groups, self.width)).movedim(dim + 1, -1).contiguous()

    def pick(self, packed: Tensor, member: int) -> Tensor:
        """The part of one member, a view."""
        return packed[member // self.width, ..., member % self.width]

    def flat(self, packed: Tensor) -> Tensor:
        """All members along a first axis."""
        return packed.movedim(-1, 1).flatten(0, 1)[: self.members]


class LaneState(NamedTuple):
    """All that moves of the lanes, but for weights and buffers; replaced in one stroke and never written to.

    Attributes:
        carry: States and costates.
        times: Time of each lane.
        updates: Number of updates of each lane that a loss has entered.
        drawn: Where each lane's counter of random numbers stands.
        fresh: Whether each lane's next sample begins a sequence.
        moved: Lanes that have taken a step since they were packed.
    """

    carry: Carry
    times: np.ndarray
    updates: np.ndarray
    drawn: list[int]
    fresh: np.ndarray
    moved: np.ndarray


class Lanes:
    """Weights, state and costates of all members, packed.

    Args:
        members: What each member steps by.
        inputs: The next input of each, from which a first state may be computed.
        engine: Runs the lanes.
        layout: Where they lie.

    Attributes:
        held: Weights and buffers.
        state: Where the lanes are.
        u: An input, of which every member can make its first state.
    """

    def __init__(
        self, members: Sequence[EagerEngine], inputs: Sequence[Any], engine: Engine, layout: LaneLayout
    ) -> None:
        self.members, self.engine, self.layout = members, engine, layout
        carries = [member.parts.met(member.state, u) for member, u in zip(members, inputs, strict=True)]
        if len({tuple(leaf.shape for leaf in carry.h) for carry in carries}) > 1:
            raise UnsupportedError("the states of its members have different shapes")

        def pack(parts: list[list[Tensor]]) -> list[Tensor]:
            columns = zip(*parts, strict=True)
            return [layout.fold(torch.stack([leaf.detach() for leaf in column])) for column in columns]

        self.held = HeldTensors(
            pack([member.parts.system.theta for member in members]),
            pack([named(member.parts.order, engine.buffer_names) for member in members]),
            pack([named(member.parts.order, engine.frozen_names) for member in members]),
        )
        packed = iter(pack([carry.tensors() for carry in carries]))
        states = [member.state for member in members]
        self.state = LaneState(
            carries[0].mapped(lambda _: next(packed)),
            np.array([state.t for state in states]),
            np.array([state.updates for state in states]),
            [state.drawn for state in states],
            np.array([state.fresh for state in states]),
            np.zeros(len(members), dtype=bool),
        )
        self.u = trees.copied(inputs[0])

    def undo(self) -> Undo:
        """Return what brings all lanes back to where they are now."""
        kept = self.state

        def put_back() -> None:
            self.state = kept

        return Undo([*self.held.theta, *self.held.buffers], put_back)

    def spread(self) -> None:
        """Write each lane that has moved back to its member."""
        for lane in np.flatnonzero(self.state.moved).tolist():
            self.write_back(lane)

    @torch.no_grad()
    def write_back(self, lane: int) -> None:
        """Write a lane back to its member, in memory of its own; with h0 of its network if a sequence begins."""
        member, pick, state = self.members[lane], self.layout.pick, self.state
        own = [*member.parts.system.theta, *named(member.parts.order, self.engine.buffer_names)]
        for tensor, packed in zip(own, (*self.held.theta, *self.held.buffers), strict=True):
            tensor.copy_(pick(packed, lane))
        carry, fresh = state.carry.mapped(lambda leaf: pick(leaf, lane).clone()), bool(state.fresh[lane])
        if fresh and carry.h:
            carry = member.parts.restarted(carry, self.u)
            carry.h = [leaf.clone() for leaf in carry.h]
        member.state = member.state._replace(
            carry=carry,
            t=float(state.times[lane]),
            updates=int(state.updates[lane]),
            fresh=fresh,
            drawn=state.drawn[lane],
        )

    @torch.no_grad()
    def keep_resting(self, active: np.ndarray, before: Sequence[Tensor], after: Carry) -> None:
        """Put lanes that rest back to what they were before a block: the loop runs over all lanes.

        Args:
            active: The lanes that do not rest.
            before: Copies of weights and buffers.
            after: What the block led to.
        """
        now = [*self.held.theta, *self.held.buffers, *after.tensors()]
        resting = self.layout.fold(torch.from_numpy(~active)).to(now[0].device)
        for old, new in zip([*before, *self.state.carry.tensors()], now, strict=True):
            torch.where(resting.view(-1, *[1] * (new.dim() - 2), self.layout.width), old, new, out=new)

    def advance(self, carry: Carry, times: np.ndarray, batch: LaneBatch, drawn: int) -> None:
        """Note down where a block has led.

        Args:
            carry: States and costates after it.
            times: Time of each lane after it.
            batch: Its samples.
            drawn: How far the counter of random numbers of an active lane has moved.
        """
        state, active = self.state, batch.active
        begins = False if batch.boundary is None else batch.boundary[-1]
        self.state = LaneState(
            carry,
            times,
            state.updates + batch.learns.sum(0),
            [n + drawn * int(taking) for n, taking in zip(state.drawn, active, strict=True)],
            np.where(active, begins, state.fresh),
            state.moved | active,
        )


class LaneBatch:
    """Samples of all lanes, of one stream that they share or of one each.

    Args:
        blocks: As many samples of each lane, `None` for a lane that rests. Lanes that share a stream have the same
            block.
        layout: Where the lanes lie.
        own: Whether each lane has samples of its own.

    Attributes:
        count: Number of steps.
        active: Which lanes take part.
        example: A block with targets, if one has any.
    """

    def __init__(self, blocks: Sequence[Block | None], layout: LaneLayout, own: bool) -> None:
        self.blocks, self.layout, self.own = blocks, layout, own
        self.active = np.array([block is not None for block in blocks])
        there = [block for block in blocks if block is not None]
        self.example = next((block for block in there if block.target), there[0])
        self.count = self.example.count

    @property
    def u(self) -> list[Tensor] | None:
        """`None` if samples of the lanes cannot be stacked."""
        example, u_form, target_form = self.example, _form(self.example.u), _form(self.example.target)
        for block in self.blocks if self.own else ():
            if block is None:
                continue
            if block.u_spec != example.u_spec or _form(block.u) != u_form:
                return None
            # A block may be without any target.
            if block.target and (block.target_spec != example.target_spec or _form(block.target) != target_form):
                return None
        return example.u

    def packed(self) -> Block:
        """The samples as the engine takes them; arbitrary values for a target that is missing."""
        example = self.example
        if not self.own:
            return example
        assert example.u is not None
        u = [self._stacked("u", place) for place in range(len(example.u))]
        target = [self._stacked("target", place) for place in range(len(example.target))]
        return Block(self.count, u, example.u_spec, target, example.target_spec)

    @cached_property
    def known(self) -> np.ndarray | None:
        """Whether there is a target, by step and lane; `None` if all samples have one, or none has."""
        if not self.example.target:
            return None
        return self._table(lambda block: block.known if block.target else [False] * block.count, True)

    @cached_property
    def tau(self) -> np.ndarray | None:
        """τ by step and lane as in `time_steps`; `None` if all are usual."""
        return self._table(lambda block: None if block.tau is None else time_steps(block.tau), 0.0)

    @cached_property
    def boundary(self) -> np.ndarray | None:
        """Whether a sample ends its sequence, by step and lane; `None` if none does."""
        return self._table(lambda block: block.boundary, False)

    @cached_property
    def learns(self) -> np.ndarray:
        """Whether a lane takes a sample with a target, by step and lane."""
        targets = self.known if self.known is not None else bool(self.example.target)
        return np.broadcast_to(self.active & targets, (self.count, len(self.blocks)))

    @cached_property
    def complete(self) -> bool:
        """Whether every lane has a target at every step."""
        return bool(self.example.target and self.known is None and self.active.all())

    def begins(self, fresh: np.ndarray, device: torch.device) -> Tensor:
        """Whether a sample begins a sequence, as the engine takes it; `fresh`: whether the first one does."""
        first = self.layout.fold(torch.from_numpy(fresh)[None], 1)
        if self.boundary is not None:
            return torch.cat([first, self.layout.fold(torch.from_numpy(self.boundary[:-1].copy()), 1)])
        # Made on the device: there are as many entries as steps times members.
        rows = torch.zeros(self.count, *first.shape[1:], dtype=torch.bool, device=device)
        rows[:1] = first.to(device)
        return rows

    def sample(self, index: int) -> Any:
        """The samples of a step: one for each lane, `None` for those that rest; or the one that all share."""
        if not self.own:
            return self.example.sample(index)
        return [self.lane_sample(index, lane) for lane in range(len(self.blocks))]

    def lane_sample(self, index: int, lane: int) -> Sample | None:
        """The sample of one lane."""
        block = self.blocks[lane]
        return None if block is None else block.sample(index)

    def part(self, start: int, stop: int) -> LaneBatch:
        """Some of the steps."""
        if start == 0 and stop == self.count:
            return self
        if self.own:
            return LaneBatch([block and block.part(start, stop) for block in self.blocks], self.layout, True)
        cut = self.example.part(start, stop)
        return LaneBatch([block and cut for block in self.blocks], self.layout, False)

    def _table(self, values: Callable[[Block], Any], usual: Any) -> np.ndarray | None:
        """One value by step and lane, `usual` for blocks without; `None` if no block has any."""
        shape = self.count, len(self.blocks)
        if not self.own:
            shared = values(self.example)
            return None if shared is None else np.broadcast_to(np.array(shared)[:, None], shape)
        found = [None if block is None else values(block) for block in self.blocks]
        if all(column is None for column in found):
            return None
        return np.stack([np.full(self.count, usual) if column is None else column for column in found], 1)

    @torch.no_grad()
    def _stacked(self, part: str, place: int) -> Tensor:
        """One leaf of the inputs or targets of all lanes; zeros, a valid index too, for what is missing."""
        nothing, rows = torch.zeros_like(getattr(self.example, part)[place]), []
        for block in self.blocks:
            leaves = None if block is None else getattr(block, part)
            row = leaves[place] if leaves else nothing
            if part == "target" and leaves and block is not None and block.known is not None:
                # Their loss is scaled by 0, and 0 times a NaN from another sample would be NaN.
                known = torch.tensor(block.known, device=row.device)
                row = row.where(known.view(-1, *[1] * (row.dim() - 1)), nothing)
            rows.append(row)
        return self.layout.fold(torch.stack(rows, 1), 1)


def _form(leaves: list[Tensor] | None) -> Any:
    return leaves and [(leaf.shape[1:], leaf.dtype, leaf.device) for leaf in leaves]


def how_members_differ(one: LearnerParts, other: LearnerParts) -> str | None:
    """Where two learners differ in settings, modules, shapes, or the plain values of modules and loss."""
    first, second = facts_of(one), facts_of(other)
    for label in {**first, **second}:
        a, b = first.get(label, "absent"), second.get(label, "absent")
        if type(a) is not type(b) or a != b:
            return f"{label} is {_shown(a)} here and {_shown(b)} there"
    return None


def facts_of(parts: LearnerParts) -> dict[str, Any]:
    """What a recorded step has built in, by what to call it."""
    network, hyper = parts.network, parts.hyper
    facts: dict[str, Any] = {f"its {name}": repr(value) for name, value in parts.choices._asdict().items()}
    facts |= {"its s": hyper.s, "its beta that adapts": isinstance(hyper.beta, Adaptive)}
    for name, module in network.named_modules():
        # A module with parametrizations (weight_norm, spectral_norm) has a class of its own.
        parametrized = parametrize.is_parametrized(module)
        facts[f"the network.{name}" if name else "the network"] = (
            type(module).__bases__[0] if parametrized else type(module)
        )
    loss, running_cost = parts.system.loss, parts.system.running_cost
    functions = {"the loss": loss} | ({} if running_cost is None else {"the running cost": running_cost})
    read = Guards(functions, {"the network": network}).values()
    for label, value in read.items():
        private = label.rpartition(".")[2].startswith("_")
        if not private and not isinstance(value, Tensor):
            # Functions that are defined again for each member are compared by their code.
            facts[label] = value.__code__ if isinstance(value, types.FunctionType) else value
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        facts[f"the network.{name}"] = tuple(tensor.shape), tensor.dtype, tensor.requires_grad
    for label, function in functions.items():
        plain: Any = function if isinstance(function, types.BuiltinFunctionType) else type(function)
        facts[label] = getattr(function, "__code__", plain)
    return facts


def _shown(value: Any) -> str:
    return f"a {value.__name__}" if isinstance(value, type) else repr(value)
