"""The members of a population as lanes of one loop: their tensors in groups along a first and a last axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hamlearn.compiled import Engine, named
from hamlearn.learner._learner import Learner
from hamlearn.system import Carry


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

    def __init__(self, members: list[Learner], engine: Engine, layout: Layout) -> None:
        def pack(tensors: list[list[Tensor]]) -> list[Tensor]:
            return [layout.pack(column) for column in zip(*tensors, strict=True)]

        self.layout = layout
        self.theta = pack([member._system.theta for member in members])
        self.buffers = pack([named(member._order, engine.buffer_names) for member in members])
        self.frozen = pack([named(member._order, engine.frozen_names) for member in members])
        carries = [member._carry for member in members]
        parts = (pack([getattr(carry, part) for carry in carries]) for part in ("h", "z", "omega", "v", "E"))
        h, z, omega, v, E = parts
        self.carry = Carry(h, z, omega, carries[0].spec, v=v, E=E)
        self.times = np.array([member._t for member in members])
        self.updates = np.array([member._updates for member in members])
        self.fresh = members[0]._fresh

    def spread(self, members: list[Learner], engine: Engine) -> None:
        """Give each member what is its own; fewer members are the first ones."""
        pick, carry = self.layout.pick, self.carry
        for number, member in enumerate(members):
            with torch.no_grad():
                for weight, packed in zip(member._system.theta, self.theta, strict=True):
                    weight.copy_(pick(packed, number))
                for buffer, packed in zip(named(member._order, engine.buffer_names), self.buffers, strict=True):
                    buffer.copy_(pick(packed, number))
            parts = (carry.h, carry.z, carry.omega, carry.v, carry.E)
            h, z, omega, v, E = ([pick(leaf, number).clone() for leaf in part] for part in parts)
            member._carry = Carry(h, z, omega, carry.spec, v=v, E=E)
            member._t, member._updates = float(self.times[number]), int(self.updates[number])
            member._fresh = self.fresh
