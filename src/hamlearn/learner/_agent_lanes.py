"""Agents as lanes of one loop: each comes and goes by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn import _tree
from hamlearn.compiled import Engine, named
from hamlearn.learner._lanes import Layout
from hamlearn.learner._learner import Learner
from hamlearn.system import Carry


class AgentLanes:
    """Weights, state and costates of some members.

    Args:
        members: All members.
        who: The numbers of those that have a lane.
        inputs: An input for each of them, from which a first state may be computed.
        engine: Runs the lanes.
        layout: Where they lie.

    Attributes:
        times: Time of each lane.
        updates: Number of updates of each lane that a loss has entered.
        fresh: Whether each lane's next sample begins a sequence.
        moved: Lanes that have taken a step since they were filled.
        left: Lanes whose members are ahead of them, since they go on by themselves or somebody looks at them.
    """

    def __init__(
        self, members: list[Learner], who: list[int], inputs: Sequence[Any], engine: Engine, layout: Layout
    ) -> None:
        self.members, self.who, self.engine, self.layout = members, who, engine, layout
        self.lane = {number: lane for lane, number in enumerate(who)}
        filled = [self._parts(members[number], u) for number, u in zip(who, inputs, strict=True)]

        def pack(place: int) -> list[Tensor]:
            columns = zip(*(parts[place] for parts in filled), strict=True)
            return [layout.fold(torch.stack([leaf.detach() for leaf in column])) for column in columns]

        self.theta, self.buffers, self.frozen, h, z, omega, v, E = map(pack, range(8))
        spec = _first_spec(members[who[0]], inputs[0])
        self.carry = Carry(h, z, omega, spec, v=v, E=E)
        self.times = np.array([members[number]._t for number in who])
        self.updates = np.array([members[number]._updates for number in who])
        self.fresh = np.array([members[number]._fresh for number in who])
        self.moved: set[int] = set()
        self.left: set[int] = set()
        self._begin: dict[int, Any] = {}

    def take(self, lane: int, u: Any) -> None:
        """Fill a lane with what its member is now."""
        member, pick = self.members[self.who[lane]], self.layout.pick
        groups = (self.theta, self.buffers, self.frozen, *self._carried())
        with torch.no_grad():
            for packed, own in zip(groups, self._parts(member, u), strict=True):
                for tensor, leaf in zip(packed, own, strict=True):
                    pick(tensor, lane).copy_(leaf)
        self.times[lane], self.updates[lane], self.fresh[lane] = member._t, member._updates, member._fresh
        self.moved.discard(lane)
        self.left.discard(lane)
        self._begin.pop(lane, None)

    def give(self, lane: int) -> None:
        """Bring the lane's member to where the lane is; from then on the member is what counts."""
        if lane in self.left:
            return
        self.left.add(lane)
        if lane not in self.moved:
            return
        member, pick, engine = self.members[self.who[lane]], self.layout.pick, self.engine
        with torch.no_grad():
            for weight, packed in zip(member._system.theta, self.theta, strict=True):
                weight.copy_(pick(packed, lane))
            for buffer, packed in zip(named(member._order, engine.buffer_names), self.buffers, strict=True):
                buffer.copy_(pick(packed, lane))
        parts = self._carried()
        h, z, omega, v, E = ([pick(leaf, lane).clone() for leaf in part] for part in parts)
        spec = self.carry.spec
        if self.fresh[lane]:
            h, z, E, spec = self._first(lane, member)
        member._carry = Carry(h, z, omega, spec, v=v, E=E)
        member._t, member._updates = float(self.times[lane]), int(self.updates[lane])
        member._fresh = bool(self.fresh[lane])

    def ended(self, lane: int, u: Any) -> None:
        """Note that a lane's sequence has ended with the input `u`; `None` where that sample was skipped."""
        self._begin[lane] = u

    def undo(self) -> Callable[[], None]:
        """What brings all lanes back to where they are now."""
        kept = self.carry, self.times.copy(), self.updates.copy(), self.fresh.copy()
        sets = set(self.moved), dict(self._begin)
        written = [*self.theta, *self.buffers]
        copies = [tensor.clone() for tensor in written]

        def undo() -> None:
            self.carry = kept[0]
            self.times, self.updates, self.fresh = (part.copy() for part in kept[1:])
            self.moved, self._begin = set(sets[0]), dict(sets[1])
            for tensor, copy in zip(written, copies, strict=True):
                tensor.copy_(copy)

        return undo

    def _carried(self) -> tuple[list[Tensor], ...]:
        carry = self.carry
        return carry.h, carry.z, carry.omega, carry.v, carry.E

    def _first(self, lane: int, member: Learner) -> tuple[list[Tensor], list[Tensor], list[Tensor], _tree.Spec]:
        """h, z and E with which the member's next sequence begins."""
        if lane not in self._begin:
            carry = member._carry
            return carry.h, carry.z, carry.E, carry.spec
        u = self._begin[lane]
        if u is None or not self.carry.h:
            return [], [], [], None
        h, spec = _tree.flatten(_tree.copied(member._network.initial_state(u)))
        return h, [torch.zeros_like(leaf) for leaf in h], member._order.first(h, spec), spec

    def _parts(self, member: Learner, u: Any) -> tuple[list[Tensor], ...]:
        """All that a lane is made of."""
        engine, carry, order = self.engine, member._carry, member._order
        h, z, E = carry.h, carry.z, carry.E
        if member._stateful and (member._fresh or not h):
            h, spec = _tree.flatten(member._network.initial_state(u))
            E = order.first(h, spec)
            z = z if z and not member._fresh else [torch.zeros_like(leaf) for leaf in h]
        buffers, frozen = named(order, engine.buffer_names), named(order, engine.frozen_names)
        return member._system.theta, buffers, frozen, h, z, carry.omega, carry.v, E


def _first_spec(member: Learner, u: Any) -> _tree.Spec:
    if not member._stateful or (member._carry.h and not member._fresh):
        return member._carry.spec
    return _tree.flatten(member._network.initial_state(u))[1]
