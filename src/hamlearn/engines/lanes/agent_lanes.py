"""Agents as lanes of one loop: each comes and goes by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn.engines.eager.stepping import Stepper
from hamlearn.engines.lanes.lanes import Layout, picked, write_lane
from hamlearn.engines.recorded import Engine, named
from hamlearn.state.carry import Carry
from hamlearn.state.learner_state import LearnerState
from hamlearn.state.undo import Undo


class AgentLanes:
    """Weights, state and costates of some members.

    Args:
        members: What all members step by.
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
        self, members: list[Stepper], who: list[int], inputs: Sequence[Any], engine: Engine, layout: Layout
    ) -> None:
        self.members, self.who, self.engine, self.layout = members, who, engine, layout
        self.lane = {number: lane for lane, number in enumerate(who)}
        filled = [self._parts(members[number], u) for number, u in zip(who, inputs, strict=True)]

        def pack(place: int) -> list[Tensor]:
            columns = zip(*(parts[place] for parts in filled), strict=True)
            return [layout.fold(torch.stack([leaf.detach() for leaf in column])) for column in columns]

        self.theta, self.buffers, self.frozen, h, z, omega, v, E = map(pack, range(8))
        spec = members[who[0]].parts.met(members[who[0]].state, inputs[0]).spec
        self.carry = Carry(h, z, omega, spec, v=v, E=E)
        states = [members[number].state for number in who]
        self.times = np.array([state.t for state in states])
        self.updates = np.array([state.updates for state in states])
        self.fresh = np.array([state.fresh for state in states])
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
        state = member.state
        self.times[lane], self.updates[lane], self.fresh[lane] = state.t, state.updates, state.fresh
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
        member, layout = self.members[self.who[lane]], self.layout
        write_lane(member, lane, layout, self.engine, self.theta, self.buffers)
        member.state = self.state(lane)._replace(carry=self._carry(lane, member))

    def state(self, lane: int) -> LearnerState:
        """Where a lane is, but for what it carries."""
        t, updates, fresh = float(self.times[lane]), int(self.updates[lane]), bool(self.fresh[lane])
        return self.members[self.who[lane]].state._replace(t=t, updates=updates, fresh=fresh)

    def ended(self, lane: int, u: Any) -> None:
        """Note that a lane's sequence has ended with the input `u`; `None` where that sample was skipped."""
        self._begin[lane] = u

    def undo(self) -> Undo:
        """What brings all lanes back to where they are now."""
        carry, numbers = self.carry, (self.times.copy(), self.updates.copy(), self.fresh.copy())
        moved, begin = set(self.moved), dict(self._begin)

        def put_back() -> None:
            self.carry, (self.times, self.updates, self.fresh) = carry, (part.copy() for part in numbers)
            self.moved, self._begin = set(moved), dict(begin)

        return Undo([*self.theta, *self.buffers], put_back)

    def _carried(self) -> tuple[list[Tensor], ...]:
        carry = self.carry
        return carry.h, carry.z, carry.omega, carry.v, carry.E

    def _carry(self, lane: int, member: Stepper) -> Carry:
        """What a lane carries; where a sequence begins, with the state that its member's network has for it."""
        carry, before = picked(self.carry, lane, self.layout), member.state.carry
        if not self.fresh[lane]:
            return carry
        if lane not in self._begin:
            return Carry(before.h, before.z, carry.omega, before.spec, v=carry.v, E=before.E)
        u = self._begin[lane]
        if u is None or not carry.h:
            return carry.anew([], None, [])
        begun = member.parts.anew(carry, u)
        begun.h = [leaf.clone() for leaf in begun.h]
        return begun

    def _parts(self, member: Stepper, u: Any) -> tuple[list[Tensor], ...]:
        """All that a lane is made of."""
        engine, order, carry = self.engine, member.parts.order, member.parts.met(member.state, u)
        buffers, frozen = named(order, engine.buffer_names), named(order, engine.frozen_names)
        theta = member.parts.system.theta
        return theta, buffers, frozen, carry.h, carry.z, carry.omega, carry.v, carry.E
