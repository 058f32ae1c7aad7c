"""Checkpoints of local learners: weights, buffers, costates, samples in flight, random state, stream position."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hamlearn import _checkpoint
from hamlearn.local.outer import dense

if TYPE_CHECKING:
    from hamlearn.local.learner import LocalLearner


def save(learner: LocalLearner, path: str | os.PathLike[str]) -> None:
    """Write everything to one file, whole or not at all."""
    tensors: dict[str, Tensor] = {f"theta/{n}": weight for n, weight in learner.module.named_parameters()}
    tensors |= {f"buffer/{name}": buffer for name, buffer in learner.module.named_buffers()}
    tensors |= {f"omega/{i}": dense(omega) for i, omega in enumerate(learner._progress.omega)}
    held, engine = learner._engine.saved()
    tensors |= {f"engine/{name}": tensor for name, tensor in held.items()}
    tensors |= _checkpoint.random_state()
    header = {
        "t": learner._progress.t,
        "updates": learner._progress.updates,
        "reader": learner._reader.state_dict(),
        "engine": engine,
        "model": _layout(learner),
        "setting": _setting(learner),
        "hyper": _checkpoint.identity(vars(learner.hyper)),
    }
    _checkpoint.write(path, tensors, header)


def load(learner: LocalLearner, path: str | os.PathLike[str], *, new_hyper: bool) -> None:
    """Read what `save` wrote into a learner of the same model and setting."""
    tensors, header = _checkpoint.read(path)
    compare = _checkpoint.require_equal
    compare(path, "parameter or buffer", header["model"], _layout(learner), "build the model it was saved from")
    compare(path, "setting", header["setting"], _setting(learner), "build the learner with the same settings")
    if not new_hyper:
        mine = _checkpoint.identity(vars(learner.hyper))
        compare(path, "hyper", header["hyper"], mine, "use the same Hyper, or load(..., new_hyper=True)")
    device = learner._system.theta[0].device
    with torch.no_grad():
        for name, weight in learner.module.named_parameters():
            weight.copy_(tensors[f"theta/{name}"])
        for name, buffer in learner.module.named_buffers():
            buffer.copy_(tensors[f"buffer/{name}"])
    learner._progress.omega = [tensors[f"omega/{i}"].to(device) for i in range(len(learner._progress.omega))]
    learner._engine.load(_engine_tensors(tensors, device), header["engine"])
    learner._progress.t, learner._progress.updates = header["t"], header["updates"]
    learner._reader.load_state_dict(header["reader"])
    _checkpoint.restore_random_state(tensors)


def _engine_tensors(tensors: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    # States of random number generators stay on the CPU, wherever the weights are.
    return {
        name.removeprefix("engine/"): tensor if "/draws/" in name else tensor.to(device)
        for name, tensor in tensors.items()
        if name.startswith("engine/")
    }


def _layout(learner: LocalLearner) -> dict[str, str]:
    return _checkpoint.layout(dict(learner.module.named_parameters()) | dict(learner.module.named_buffers()))


def _setting(learner: LocalLearner) -> dict[str, Any]:
    system = learner._system
    return {
        "hold": learner.hold,
        "align": learner.align,
        "delay_free": learner.delay_free,
        "order": system.order,
        "cells": [list(cell.names) for cell in system.cells],
        "sources": {name: list(sources) for name, sources in system.wiring.sources.items()},
        "outputs": list(system.wiring.outputs),
        "learnable": list(system.names.values()),
    }
