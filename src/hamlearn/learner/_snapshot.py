"""All that a learner is, as named tensors and a JSON header; and back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hamlearn import _checkpoint, _tree
from hamlearn._claims import Tensors, flag, number, record, shown, whole
from hamlearn._described import alike, build_structure, describe_structure, namedtuples
from hamlearn._identity import identity
from hamlearn.echo import Echoed
from hamlearn.errors import CheckpointError
from hamlearn.learner._labels import Waiting, pack, unpack
from hamlearn.learner._running import checked_place
from hamlearn.system import Carry

if TYPE_CHECKING:
    from hamlearn.learner._learner import Learner


def save(path: str | os.PathLike[str], learner: Learner) -> None:
    """Write the learner to `path`."""
    carry, names = learner._carry, learner._system.names
    tensors: dict[str, Tensor] = {f"theta/{name}": weight for name, weight in learner.network.named_parameters()}
    tensors |= {f"buffer/{name}": buffer for name, buffer in learner.network.named_buffers()}
    tensors |= {f"omega/{name}": omega for name, omega in zip(names, carry.omega, strict=True)}
    tensors |= {f"h/{index}": leaf for index, leaf in enumerate(carry.h)}
    tensors |= {f"z/{index}": leaf for index, leaf in enumerate(carry.z)}
    tensors |= {f"v/{name}": v for name, v in zip(names, carry.v, strict=False)}
    tensors |= {f"E/{index}": leaf for index, leaf in enumerate(carry.E)}
    tensors |= _checkpoint.random_state()
    try:
        # By what any learner of this network knows, before it has met a state.
        known = list(namedtuples(learner._network.first_names()))
        state_tree = describe_structure(carry.spec, len(carry.h), known)
        memory, described = learner._order.state()
        waiting, labels = pack(learner._waiting, known)
    except ValueError as error:
        raise CheckpointError(f"cannot save {path}: {error}") from error
    tensors |= {f"memory/{name}": tensor for name, tensor in memory.items()}
    tensors |= {f"waiting/{name}": tensor for name, tensor in waiting.items()}
    header = {
        "t": learner._t,
        "updates": learner._updates,
        "fresh": learner._fresh,
        "reader": learner._reader.state_dict(),
        "state_tree": state_tree,
        "memory": described,
        "waiting": labels,
        "model": _model(learner),
        "setting": _setting(learner),
        "hyper": identity(vars(learner.hyper)),
    }
    _checkpoint.write(path, tensors, header)
    learner._reader.saved(header["reader"])


def load(path: str | os.PathLike[str], learner: Learner, *, new_hyper: bool) -> None:
    """Put the learner into the state that `path` holds; raises, and changes nothing, if it does not fit.

    Everything is taken out of the file and looked at before anything moves. Stored tokens are run again at the new
    weights, in which their graphs end; should that fail, or be interrupted, all is put back.
    """
    tensors, header = _checkpoint.read(path)
    network, order, blocks = learner.network, learner._order, learner._blocks
    with _checkpoint.reading(path):
        _require_same(path, learner, header, new_hyper=new_hyper)
        left = Tensors(tensors)
        values: list[tuple[Tensor, Tensor]]
        values = [(weight, left.take(f"theta/{name}", weight)) for name, weight in network.named_parameters()]
        values += [(buffer, left.take(f"buffer/{name}", buffer)) for name, buffer in network.named_buffers()]
        fresh = flag(header["fresh"], "fresh")
        carry = _carry(left, header["state_tree"], learner, fresh=fresh)
        progress = {
            "_carry": carry,
            "_t": number(header["t"], "t"),
            "_updates": whole(header["updates"], "updates"),
            "_fresh": fresh,
            "_waiting": _waiting(left.under("waiting/"), header["waiting"], learner),
        }
        place = checked_place(header["reader"])
        random = _checkpoint.checked_random_state(left)
        memory = left.under("memory/")
        left.done()
        owners = [learner, order, learner._reader, *([] if blocks is None else [blocks])]
        written = [tensor for tensor, _ in values]
        with _checkpoint.Restoring(written, owners, graphs=order.stored() > 0) as change:
            for tensor, value in values:
                change.set(tensor, value)
            vars(learner).update(progress)
            learner._reader.load_state_dict(place)
            if blocks is not None:
                blocks.forget()
            order.load_state(memory, header["memory"], carry)
            _checkpoint.restore_random_state(random)


def copied(learner: Learner) -> dict[str, Any]:
    """What a copy of the learner is made of: all but graphs, and what its engines can find again."""
    order, carry = learner._order, learner._carry
    h, z = (_tree.unflatten(part, carry.spec) if part else None for part in (carry.h, carry.z))
    return vars(learner) | {
        "_blocks": None,
        "_order": order.without_graphs() if isinstance(order, Echoed) else order,
        "_carry": (h, z, carry.omega, carry.v, carry.E),
    }


def revive(learner: Learner, copied: dict[str, Any]) -> None:
    """Make a learner of what `copied` told, running its stored tokens again to have their graphs."""
    vars(learner).update(copied)
    h, z, omega, v, E = copied["_carry"]
    leaves, spec = ([], None) if h is None else _tree.flatten(h)
    learner._carry = Carry(leaves, [] if z is None else _tree.flatten(z)[0], omega, spec, v=v, E=E)
    order = learner._order
    if isinstance(order, Echoed) and order.tokens:
        devices = sorted({weight.get_device() for weight in learner._network.parameters() if weight.is_cuda})
        with torch.random.fork_rng(devices):
            order.take_back(list(order.tokens), order.since, learner._carry.spec)


def _require_same(path: object, learner: Learner, header: dict[str, Any], *, new_hyper: bool) -> None:
    keys = (
        "t",
        "updates",
        "fresh",
        "reader",
        "state_tree",
        "memory",
        "waiting",
        "model",
        "setting",
        "hyper",
        "format",
    )
    record(header, "the header", *keys)
    equal = _checkpoint.require_equal
    equal(path, "parameter or buffer", header["model"], _model(learner), "build the model it was saved from")
    equal(path, "setting", header["setting"], _setting(learner), "build the learner with the same settings")
    if not new_hyper:
        mine = identity(vars(learner.hyper))
        equal(path, "hyper", header["hyper"], mine, "use the same Hyper, or load(..., new_hyper=True)")


def _carry(left: Tensors, described: Any, learner: Learner, *, fresh: bool) -> Carry:
    theta, names = learner._system.theta, learner._system.names
    omega = [left.keep(f"omega/{n}", w.device, w) for n, w in zip(names, theta, strict=True)]
    device = theta[0].device
    h = [left.keep(name, device) for name in left.counted("h/")]
    z = [left.keep(f"z/{index}", device, leaf) for index, leaf in enumerate(h)]
    stateful = learner._network.state is not None
    if not all(leaf.is_floating_point() or leaf.is_complex() for leaf in h):
        raise ValueError("the state h holds whole numbers")
    if bool(h) > stateful or (stateful and not fresh and not h):
        raise ValueError(f"it holds {len(h)} tensors of the state h in the middle of a sequence")
    known = _known_states(learner)
    spec = build_structure(described, len(h), [kind for state in known for kind in namedtuples(state)])
    if h and known and not any(alike(_tree.unflatten(h, spec), state) for state in known):
        raise ValueError(f"its state has the structure {shown(described)}, not that of this network's")
    v = [left.keep(f"v/{n}", w.device, w) for n, w in zip(names, learner._carry.v and theta, strict=False)]
    E = [
        left.keep(f"E/{index}", device, leaf)
        for index, leaf in enumerate(learner._order.first(h, spec) if h else [])
    ]
    return Carry(h, z, omega, spec, v=v, E=E)


def _waiting(tensors: Tensors, described: Any, learner: Learner) -> Waiting:
    known = [kind for state in _known_states(learner) for kind in namedtuples(state)]
    return unpack(tensors, described, learner.late, known, learner._system.theta[0].device)


def _known_states(learner: Learner) -> list[Any]:
    """States of the network, as far as the learner has met them: the present one, and h0."""
    carry, first = learner._carry, learner._network.first_names()
    return [*([_tree.unflatten(carry.h, carry.spec)] if carry.h else []), *([] if first is None else [first])]


def _model(learner: Learner) -> dict[str, str]:
    return _checkpoint.layout(dict(learner.network.named_parameters()) | dict(learner.network.named_buffers()))


def _setting(learner: Learner) -> dict[str, Any]:
    return {
        "order": learner.order,
        "credit": repr(learner.credit),
        "reset_h": learner.reset_h,
        "integrator": repr(learner.integrator),
        "transition": learner.network.transition,
        "learnable": learner._system.names,
    }
