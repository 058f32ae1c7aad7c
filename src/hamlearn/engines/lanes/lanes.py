"""The members of a population as lanes of one loop: their tensors in groups along a first and a last axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hamlearn.engines.eager.stepping import Stepper
from hamlearn.engines.recorded import Engine, named
from hamlearn.state.carry import Carry
from hamlearn.state.undo import Undo


class Layout:
    """Where the members lie: in groups of so many that an operation on a group fills the CPU's vectors.

    Args:
        members: Number of members.
        dtype: Type of their weights.
        width: Members of a group; `None`: what the CPU's vectors hold.
    """

    def __init__(self, members: int, dtype: torch.dtype, width: int | None = None) -> None:
        self.members = members
        self.width = width or max(2, min(members, 16 if dtype == torch.float32 else 8))
        self.groups = -(-members // self.width)

    def pack(self, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
        """One tensor per member, as groups along axis `dim` and members along the last; the last one fills up."""
        filled = [*tensors, *[tensors[-1]] * (self.groups * self.width - self.members)]
        packed = torch.stack([tensor.detach() for tensor in filled], -1)
        return packed.unflatten(-1, (self.groups, self.width)).movedim(-2, dim).contiguous()

    def fold(self, rows: Tensor, dim: int = 0) -> Tensor:
        """The same for members that lie along axis `dim` of one tensor."""
        missing = self.groups * self.width - self.members
        if missing:
            last = rows.narrow(dim, self.members - 1, 1)
            rows = torch.cat([rows, *[last] * missing], dim)
        return rows.unflatten(dim, (self.groups, self.width)).movedim(dim + 1, -1).contiguous()

    def pick(self, packed: Tensor, member: int) -> Tensor:
        """What is one member's."""
        return packed[member // self.width, ..., member % self.width]

    def flat(self, packed: Tensor) -> Tensor:
        """All members along a first axis."""
        return packed.movedim(-1, 1).flatten(0, 1)[: self.members]


class Lanes:
    """Weights, state and costates of all members."""

    def __init__(self, members: list[Stepper], engine: Engine, layout: Layout) -> None:
        def pack(tensors: list[list[Tensor]]) -> list[Tensor]:
            return [layout.pack(column) for column in zip(*tensors, strict=True)]

        self.layout = layout
        self.theta = pack([member.parts.system.theta for member in members])
        self.buffers = pack([named(member.parts.order, engine.buffer_names) for member in members])
        self.frozen = pack([named(member.parts.order, engine.frozen_names) for member in members])
        states = [member.state for member in members]
        h, z, omega, v, E = (
            pack([getattr(state.carry, part) for state in states]) for part in ("h", "z", "omega", "v", "E")
        )
        self.carry = Carry(h, z, omega, states[0].carry.spec, v=v, E=E)
        self.times = np.array([state.t for state in states])
        self.updates = np.array([state.updates for state in states])
        self.fresh = states[0].fresh

    def undo(self) -> Undo:
        """What brings all members back to where they are now."""
        kept = self.carry, self.times, self.updates, self.fresh

        def put_back() -> None:
            self.carry, self.times, self.updates, self.fresh = kept

        return Undo([*self.theta, *self.buffers], put_back)

    def spread(self, members: list[Stepper], engine: Engine) -> None:
        """Give each member what is its own; fewer members are the first ones."""
        for number, member in enumerate(members):
            write_lane(member, number, self.layout, engine, self.theta, self.buffers)
            carry = picked(self.carry, number, self.layout)
            t, updates = float(self.times[number]), int(self.updates[number])
            member.state = member.state._replace(carry=carry, t=t, updates=updates, fresh=self.fresh)


@torch.no_grad()
def write_lane(
    member: Stepper,
    lane: int,
    layout: Layout,
    engine: Engine,
    theta: Sequence[Tensor],
    buffers: Sequence[Tensor],
) -> None:
    """Give a member the weights and buffers of its lane."""
    own = [*member.parts.system.theta, *named(member.parts.order, engine.buffer_names)]
    for tensor, packed in zip(own, (*theta, *buffers), strict=True):
        tensor.copy_(layout.pick(packed, lane))


def picked(carry: Carry, lane: int, layout: Layout) -> Carry:
    """What one lane carries, in memory of its own."""
    parts = (carry.h, carry.z, carry.omega, carry.v, carry.E)
    h, z, omega, v, E = ([layout.pick(leaf, lane).clone() for leaf in part] for part in parts)
    return Carry(h, z, omega, carry.spec, v=v, E=E)
