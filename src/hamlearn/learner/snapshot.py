"""What a learner's state is made of, as named tensors and JSON; and back."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from hamlearn._base import trees
from hamlearn._base.claims import Tensors, shown
from hamlearn.engine.eager.stepping import EagerEngine
from hamlearn.engine.owner import BaseLearner
from hamlearn.state import checkpoint
from hamlearn.state.carry import Carry
from hamlearn.state.described import build_structure, describe_structure
from hamlearn.state.labels import pack, unpack
from hamlearn.state.learner_state import LearnerState
from hamlearn.state.restoring import random_state, take_up
from hamlearn.state.saving import Change, loading


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
    _header_keys = tuple(LearnerHeader.model_fields)

    def _root(self) -> nn.Module:
        return self._eager.parts.network

    def _setting(self) -> dict[str, Any]:
        parts = self._eager.parts
        choices = parts.choices
        return {
            "order": choices.order,
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
        state_tree = describe_structure(carry.spec, len(carry.h))
        memory, described = parts.order.state()
        waiting, labels = pack(now.waiting)
        tensors |= {f"memory/{name}": tensor for name, tensor in memory.items()}
        tensors |= {f"waiting/{name}": tensor for name, tensor in waiting.items()}
        return tensors, {
            "t": now.t,
            "updates": now.updates,
            "fresh": now.fresh,
            "state_tree": state_tree,
            "memory": described,
            "waiting": labels,
        }

    def _own_change(self, left: Tensors, header: dict[str, Any]) -> Change:
        """Stored tokens are run again at the new weights, in which their graphs end, when the change is made."""
        eager, blocks = self._eager, self._blocks
        about = LearnerHeader(**{key: header[key] for key in self._header_keys})
        order, most = eager.parts.order, eager.state.waiting.most
        carry = self._loaded_carry(left, about)
        device = eager.parts.system.theta[0].device
        waiting = unpack(left.under("waiting/"), about.waiting, most, device)
        loaded = LearnerState(carry, about.t, about.updates, about.fresh, waiting)
        memory = left.under("memory/")

        def put() -> None:
            eager.state = loaded
            if blocks is not None:
                blocks.forget()
            order.load_state(memory, about.memory, carry)

        return Change([eager, order, *([] if blocks is None else [blocks])], put)

    def _loaded_carry(self, left: Tensors, about: LearnerHeader) -> Carry:
        parts = self._eager.parts
        theta, names = parts.system.theta, parts.system.names
        omega = [left.keep(f"omega/{n}", w.device, w) for n, w in zip(names, theta, strict=True)]
        device = theta[0].device
        h = [left.keep(name, device) for name in left.counted("h/")]
        z = [left.keep(f"z/{index}", device, leaf) for index, leaf in enumerate(h)]
        if bool(h) > parts.stateful or (parts.stateful and not about.fresh and not h):
            raise ValueError(f"it holds {len(h)} tensors of the state h in the middle of a sequence")
        spec = build_structure(about.state_tree, len(h))
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
            complete = header | {"format": checkpoint.FORMAT}
            change = loading(self, checkpoint.STATE, tensors | random_state(), complete, new_hyper=True)
            take_up([change])
