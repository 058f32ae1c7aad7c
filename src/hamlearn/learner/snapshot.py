"""What a learner's state is made of, as named tensors and JSON; and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from hamlearn._base import trees
from hamlearn.engine.eager.stepping import EagerEngine
from hamlearn.engine.owner import BaseLearner
from hamlearn.errors import shown
from hamlearn.state import checkpoint
from hamlearn.state.carry import Carry
from hamlearn.state.identity import identity
from hamlearn.state.labels import waiting_of, waiting_tree
from hamlearn.state.learner_state import LearnerState
from hamlearn.state.packing import pack, pack_spec, unpack, unpack_spec
from hamlearn.state.saving import Swap, random_state, take_up
from hamlearn.state.tensors import Tensors


class LearnerHeader(checkpoint.Schema):
    """What a checkpoint of a learner says of it, besides its model, setting and place in the stream."""

    t: float = Field(ge=0, allow_inf_nan=False)
    updates: int = Field(ge=0)
    fresh: bool
    state_tree: Any
    memory: Any
    waiting: Any


class Snapshot(BaseLearner):
    """A learner's state as a value; `Learner` is what users see of it."""

    _eager: EagerEngine

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
        carry, names = now.carry, parts.system.names
        tensors = {f"omega/{name}": omega for name, omega in zip(names, carry.omega, strict=True)}
        tensors |= {f"h/{index}": leaf for index, leaf in enumerate(carry.h)}
        tensors |= {f"z/{index}": leaf for index, leaf in enumerate(carry.z)}
        tensors |= {f"v/{name}": v for name, v in zip(names, carry.v, strict=False)}
        tensors |= {f"E/{index}": leaf for index, leaf in enumerate(carry.E)}
        memory, tokens = pack(parts.order.memory(), "memory/")
        waiting, labels = pack(waiting_tree(now.waiting), "waiting/")
        return tensors | memory | waiting, {
            "t": now.t,
            "updates": now.updates,
            "fresh": now.fresh,
            "state_tree": pack_spec(carry.spec, len(carry.h)),
            "memory": tokens,
            "waiting": labels,
        }

    def _own_change(self, left: Tensors, header: dict[str, Any]) -> Callable[[], Swap]:
        """Stored tokens are run again at the new weights, in which their graphs end."""
        eager, blocks, parts = self._eager, self._blocks, self._eager.parts
        about = LearnerHeader(**{key: header[key] for key in LearnerHeader.model_fields})
        carry, device = self._loaded_carry(left, about), parts.system.theta[0].device
        memory = unpack(about.memory, left, "memory/", device)
        waiting = waiting_of(unpack(about.waiting, left, "waiting/", device), eager.state.waiting.most)

        def build() -> Swap:
            put_memory = parts.order.with_memory(memory, carry.spec)

            def swap() -> None:
                eager.state = LearnerState(carry, about.t, about.updates, about.fresh, waiting)
                put_memory()
                if blocks is not None:
                    blocks.forget()

            return swap

        return build

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
        """Become the learner that a copy is made of; the random numbers of the program go on."""
        with checkpoint.reading(checkpoint.STATE):
            complete = tensors | random_state()
            take_up(self.loadings_of(checkpoint.STATE, complete, header, new_hyper=True))
