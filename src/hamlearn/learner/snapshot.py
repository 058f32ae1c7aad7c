"""What a learner's state is made of, as named tensors and JSON; and back."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from hamlearn._base import trees
from hamlearn._base.claims import Tensors, flag, number, shown, whole
from hamlearn.engines.eager.stepping import Stepper
from hamlearn.engines.owner import Owner
from hamlearn.state import checkpoint
from hamlearn.state.carry import Carry
from hamlearn.state.described import alike, build_structure, describe_structure, namedtuples
from hamlearn.state.labels import Waiting, pack, unpack
from hamlearn.state.learner_state import LearnerState
from hamlearn.state.restoring import random_state, take_up
from hamlearn.state.saving import Change, loading


class Snapshot(Owner):
    """A learner's state as a value; `Learner` is what users see of it."""

    _stepper: Stepper
    _header_keys = ("t", "updates", "fresh", "state_tree", "memory", "waiting")

    def _root(self) -> nn.Module:
        return self._stepper.parts.network

    def _setting(self) -> dict[str, Any]:
        parts = self._stepper.parts
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
        parts, now = self._stepper.parts, self._stepper.state
        carry, names = now.carry, parts.system.names
        tensors = {f"omega/{name}": omega for name, omega in zip(names, carry.omega, strict=True)}
        tensors |= {f"h/{index}": leaf for index, leaf in enumerate(carry.h)}
        tensors |= {f"z/{index}": leaf for index, leaf in enumerate(carry.z)}
        tensors |= {f"v/{name}": v for name, v in zip(names, carry.v, strict=False)}
        tensors |= {f"E/{index}": leaf for index, leaf in enumerate(carry.E)}
        # By what any learner of this network knows, before it has met a state.
        known = list(namedtuples(parts.network.first_names()))
        state_tree = describe_structure(carry.spec, len(carry.h), known)
        memory, described = parts.order.state()
        waiting, labels = pack(now.waiting, known)
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
        stepper, blocks, fresh = self._stepper, self._blocks, flag(header["fresh"], "fresh")
        order, carry = stepper.parts.order, self._told_carry(left, header["state_tree"], fresh=fresh)
        told = LearnerState(
            carry,
            number(header["t"], "t"),
            whole(header["updates"], "updates"),
            fresh,
            self._told_waiting(left.under("waiting/"), header["waiting"]),
        )
        memory = left.under("memory/")

        def put() -> None:
            stepper.state = told
            if blocks is not None:
                blocks.forget()
            order.load_state(memory, header["memory"], carry)

        owners = [stepper, order, *([] if blocks is None else [blocks])]
        return Change(owners, put, graphs=order.stored() > 0)

    def _told_carry(self, left: Tensors, described: Any, *, fresh: bool) -> Carry:
        parts = self._stepper.parts
        theta, names = parts.system.theta, parts.system.names
        omega = [left.keep(f"omega/{n}", w.device, w) for n, w in zip(names, theta, strict=True)]
        device = theta[0].device
        h = [left.keep(name, device) for name in left.counted("h/")]
        z = [left.keep(f"z/{index}", device, leaf) for index, leaf in enumerate(h)]
        if not all(leaf.is_floating_point() or leaf.is_complex() for leaf in h):
            raise ValueError("the state h holds whole numbers")
        if bool(h) > parts.stateful or (parts.stateful and not fresh and not h):
            raise ValueError(f"it holds {len(h)} tensors of the state h in the middle of a sequence")
        known = self._known_states()
        spec = build_structure(described, len(h), [kind for state in known for kind in namedtuples(state)])
        if h and known and not any(alike(trees.unflatten(h, spec), state) for state in known):
            raise ValueError(f"its state has the structure {shown(described)}, not that of this network's")
        adaptive = parts.system.velocity.adaptive is not None
        v = [left.keep(f"v/{n}", w.device, w) for n, w in zip(names, theta, strict=True) if adaptive]
        firsts = parts.order.first(h, spec) if h else []
        E = [left.keep(f"E/{index}", device, leaf) for index, leaf in enumerate(firsts)]
        return Carry(h, z, omega, spec, v=v, E=E)

    def _told_waiting(self, tensors: Tensors, described: Any) -> Waiting:
        known = [kind for state in self._known_states() for kind in namedtuples(state)]
        most, device = self._stepper.state.waiting.most, self._stepper.parts.system.theta[0].device
        return unpack(tensors, described, most, known, device)

    def _known_states(self) -> list[Any]:
        """States of the network, as far as the learner has met them: the present one, and h0."""
        carry, first = self._stepper.state.carry, self._stepper.parts.network.first_names()
        present = [trees.unflatten(carry.h, carry.spec)] if carry.h else []
        return [*present, *([] if first is None else [first])]

    def _copied(self, state: dict[str, Any]) -> None:
        """Become what a copy was told; random numbers are those of the program, and go on."""
        with checkpoint.reading(checkpoint.STATE):
            tensors, header = checkpoint.parts(state)
            change = loading(self, checkpoint.STATE, tensors, header, new_hyper=True)
            take_up([change._replace(random=random_state())])
