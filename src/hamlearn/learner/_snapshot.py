"""All that a learner is, as named tensors and a JSON header; and back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hamlearn import _checkpoint, _tree
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
    tensors |= _checkpoint.random_state()
    memory, described = learner._order.state()
    tensors |= {f"memory/{name}": tensor for name, tensor in memory.items()}
    header = {
        "t": learner._t,
        "updates": learner._updates,
        "fresh": learner._fresh,
        "reader": learner._reader.state_dict(),
        "state_tree": _tree.dumps(carry.spec),
        "memory": described,
        "model": _model(learner),
        "setting": _setting(learner),
        "hyper": _checkpoint.identity(vars(learner.hyper)),
    }
    _checkpoint.write(path, tensors, header)


def load(path: str | os.PathLike[str], learner: Learner, *, new_hyper: bool) -> None:
    """Put the learner into the state that `path` holds; raises, and changes nothing, if it does not fit."""
    tensors, header = _checkpoint.read(path)
    equal = _checkpoint.require_equal
    equal(path, "parameter or buffer", header["model"], _model(learner), "build the model it was saved from")
    equal(path, "setting", header["setting"], _setting(learner), "build the learner with the same settings")
    if not new_hyper:
        mine = _checkpoint.identity(vars(learner.hyper))
        equal(path, "hyper", header["hyper"], mine, "use the same Hyper, or load(..., new_hyper=True)")
    with torch.no_grad():
        for name, weight in learner.network.named_parameters():
            weight.copy_(tensors[f"theta/{name}"])
        for name, buffer in learner.network.named_buffers():
            buffer.copy_(tensors[f"buffer/{name}"])
    theta, names = learner._system.theta, learner._system.names
    device = theta[0].device
    omega = [tensors[f"omega/{n}"].to(w.device) for n, w in zip(names, theta, strict=True)]
    h, z = ([leaf.to(device) for leaf in _indexed(tensors, kind)] for kind in "hz")
    learner._carry = Carry(h, z, omega, _tree.loads(header["state_tree"]))
    learner._t, learner._updates, learner._fresh = header["t"], header["updates"], header["fresh"]
    learner._reader.load_state_dict(header["reader"])
    memory = {n.removeprefix("memory/"): t.to(device) for n, t in tensors.items() if n.startswith("memory/")}
    learner._order.load_state(memory, header["memory"], learner._carry.spec)
    _checkpoint.restore_random_state(tensors)


def _indexed(tensors: dict[str, Tensor], kind: str) -> list[Tensor]:
    count = sum(name.startswith(f"{kind}/") for name in tensors)
    return [tensors[f"{kind}/{index}"] for index in range(count)]


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
