"""The members of a population as lanes of one loop: their tensors in groups along a first and a last axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn.engine.blocks.runner import Undo
from hamlearn.engine.eager.stepping import EagerEngine
from hamlearn.engine.recorded import Engine, HeldTensors, UnsupportedError, named
from hamlearn.state.carry import Carry


class Layout:
    """Groups of members, as wide as the CPU's vectors: the innermost loop of an operation runs over a group.

    Args:
        members: Number of members.
        dtype: Type of their weights.
        width: Members of a group; `None`: what the CPU's vectors hold.

    Example:
        >>> layout = Layout(3, torch.float64, width=2)
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


class Lanes:
    """Weights, state and costates of all members, packed.

    Args:
        members: What each member steps by.
        inputs: The next input of each, from which a first state may be computed.
        engine: Runs the lanes.
        layout: Where they lie.

    Attributes:
        held: Weights and buffers.
        carry: States and costates.
        times: Time of each lane.
        updates: Number of updates of each lane that a loss has entered.
        drawn: Where each lane's counter of random numbers stands.
        fresh: Whether each lane's next sample begins a sequence.
        moved: Lanes that have taken a step since they were packed.
        u: An input, of which every member can make its first state.
    """

    def __init__(
        self, members: Sequence[EagerEngine], inputs: Sequence[Any], engine: Engine, layout: Layout
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
        h, z, omega, v, E = (pack([getattr(c, part) for c in carries]) for part in ("h", "z", "omega", "v", "E"))
        self.carry = Carry(h, z, omega, carries[0].spec, v=v, E=E)
        states = [member.state for member in members]
        self.times = np.array([state.t for state in states])
        self.updates = np.array([state.updates for state in states])
        self.drawn = [state.drawn for state in states]
        self.fresh = np.array([state.fresh for state in states])
        self.moved = np.zeros(len(members), dtype=bool)
        self.u = trees.copied(inputs[0])

    def undo(self) -> Undo:
        """Return what brings all lanes back to where they are now."""
        kept = self.carry, self.times, self.updates, self.fresh, self.moved, self.drawn

        def put_back() -> None:
            self.carry, self.times, self.updates, self.fresh, self.moved, self.drawn = kept

        return Undo([*self.held.theta, *self.held.buffers], put_back)

    def spread(self) -> None:
        """Write each lane that has moved back to its member."""
        for lane in np.flatnonzero(self.moved).tolist():
            self.write_back(lane)

    @torch.no_grad()
    def write_back(self, lane: int) -> None:
        """Write a lane back to its member."""
        member, pick = self.members[lane], self.layout.pick
        own = [*member.parts.system.theta, *named(member.parts.order, self.engine.buffer_names)]
        for tensor, packed in zip(own, (*self.held.theta, *self.held.buffers), strict=True):
            tensor.copy_(pick(packed, lane))
        t, updates, fresh = float(self.times[lane]), int(self.updates[lane]), bool(self.fresh[lane])
        carry, drawn = self._carry(lane, member), self.drawn[lane]
        member.state = member.state._replace(carry=carry, t=t, updates=updates, fresh=fresh, drawn=drawn)

    @torch.no_grad()
    def keep_resting(self, active: np.ndarray, before: Sequence[Tensor], after: Carry) -> None:
        """Put lanes that rest back to what they were before a block: the loop runs over all lanes.

        Args:
            active: The lanes that do not rest.
            before: Copies of weights and buffers.
            after: What the block led to.
        """
        now = [*self.held.theta, *self.held.buffers, *_leaves(after)]
        resting = self.layout.fold(torch.from_numpy(~active)).to(now[0].device)
        for old, new in zip([*before, *_leaves(self.carry)], now, strict=True):
            torch.where(resting.view(-1, *[1] * (new.dim() - 2), self.layout.width), old, new, out=new)

    def _carry(self, lane: int, member: EagerEngine) -> Carry:
        """What a lane carries, in memory of its own; with h0 of its network if a sequence begins."""
        packed = self.carry
        parts = (packed.h, packed.z, packed.omega, packed.v, packed.E)
        h, z, omega, v, E = ([self.layout.pick(leaf, lane).clone() for leaf in part] for part in parts)
        carry = Carry(h, z, omega, packed.spec, v=v, E=E)
        if not self.fresh[lane] or not h:
            return carry
        begun = member.parts.restarted(carry, self.u)
        begun.h = [leaf.clone() for leaf in begun.h]
        return begun


def _leaves(carry: Carry) -> list[Tensor]:
    return [*carry.h, *carry.z, *carry.omega, *carry.v, *carry.E]
