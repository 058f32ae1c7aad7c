"""Checkpoints of local learners: weights, buffers, costates, samples in flight, random state, stream position."""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hamlearn import _checkpoint
from hamlearn._claims import Tensors, number, record, whole
from hamlearn._identity import identity
from hamlearn.errors import CheckpointError
from hamlearn.learner._running import checked_place
from hamlearn.local.outer import dense

if TYPE_CHECKING:
    from hamlearn.local.learner import LocalLearner


def save(learner: LocalLearner, path: str | os.PathLike[str]) -> None:
    """Write everything to one file, whole or not at all."""
    tensors: dict[str, Tensor] = {f"theta/{n}": weight for n, weight in learner.module.named_parameters()}
    tensors |= {f"buffer/{name}": buffer for name, buffer in learner.module.named_buffers()}
    tensors |= {f"omega/{i}": dense(omega) for i, omega in enumerate(learner._progress.omega)}
    try:
        held, engine = learner._engine.saved()
    except ValueError as error:
        raise CheckpointError(f"cannot save {path}: {error}") from error
    tensors |= {f"engine/{name}": tensor for name, tensor in held.items()}
    tensors |= _checkpoint.random_state()
    header = {
        "t": learner._progress.t,
        "updates": learner._progress.updates,
        "reader": learner._reader.state_dict(),
        "engine": engine,
        "model": _layout(learner),
        "setting": _setting(learner),
        "hyper": identity(vars(learner.hyper)),
    }
    _checkpoint.write(path, tensors, header)
    learner._reader.saved(header["reader"])


def load(learner: LocalLearner, path: str | os.PathLike[str], *, new_hyper: bool) -> None:
    """Read what `save` wrote into a learner of the same model and setting; changes nothing if it does not fit."""
    tensors, header = _checkpoint.read(path)
    module, progress, engine, theta = learner.module, learner._progress, learner._engine, learner._system.theta
    with _checkpoint.reading(path):
        _require_same(path, learner, header, new_hyper=new_hyper)
        left = Tensors(tensors)
        values: list[tuple[Tensor, Tensor]]
        values = [(weight, left.take(f"theta/{name}", weight)) for name, weight in module.named_parameters()]
        values += [(buffer, left.take(f"buffer/{name}", buffer)) for name, buffer in module.named_buffers()]
        moved = {
            "omega": [left.keep(f"omega/{i}", weight.device, weight) for i, weight in enumerate(theta)],
            "t": number(header["t"], "t"),
            "updates": whole(header["updates"], "updates"),
        }
        place = checked_place(header["reader"])
        random = _checkpoint.checked_random_state(left)
        # Nodes and samples in flight are laid out beside the engine, and looked at there.
        loaded = copy.copy(engine)
        loaded.load(left.under("engine/"), header["engine"])
        left.done()
        owners, written = (progress, engine, learner._reader), [tensor for tensor, _ in values]
        with _checkpoint.Restoring(written, owners, graphs=False) as change:
            for tensor, value in values:
                change.set(tensor, value)
            vars(progress).update(moved)
            vars(engine).update(vars(loaded))
            learner._reader.load_state_dict(place)
            _checkpoint.restore_random_state(random)


def _require_same(path: object, learner: LocalLearner, header: dict[str, Any], *, new_hyper: bool) -> None:
    record(header, "the header", "t", "updates", "reader", "engine", "model", "setting", "hyper", "format")
    equal = _checkpoint.require_equal
    equal(path, "parameter or buffer", header["model"], _layout(learner), "build the model it was saved from")
    equal(path, "setting", header["setting"], _setting(learner), "build the learner with the same settings")
    if not new_hyper:
        mine = identity(vars(learner.hyper))
        equal(path, "hyper", header["hyper"], mine, "use the same Hyper, or load(..., new_hyper=True)")


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
