"""The checkpoint of a pipeline: one safetensors file per rank, with the weights and costates by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hamlearn._base.machine import versions
from hamlearn.distributed.engines import PartAligned
from hamlearn.distributed.folders import newest_of
from hamlearn.engine.ticks.ticker import Ticker
from hamlearn.errors import CheckpointError
from hamlearn.hyper import Hyper
from hamlearn.local.learner import LocalLearner, settled
from hamlearn.rules.local.costates import Omega, dense
from hamlearn.rules.local.costates import loaded as loaded_omega
from hamlearn.rules.local.costates import saved as saved_omega
from hamlearn.rules.local.local_system import LocalSystem
from hamlearn.rules.local.wiring import Wiring
from hamlearn.state import checkpoint
from hamlearn.state.identity import identity
from hamlearn.state.packing import pack, unpack
from hamlearn.state.saving import Loading, random_state, take_up
from hamlearn.state.tensors import Tensors
from hamlearn.streams.reader import Reader

_MAY_DIFFER = ("hamlearn", "torch", "on_nonfinite", "nodes")
"""Of a configuration, what a checkpoint does not ask for; nodes are compared on their own."""


class RankState(NamedTuple):
    """What a checkpoint of a rank is made of.

    Attributes:
        ticker: Time, ω and θ, the rule, and what it carries.
        reader: The place in the stream.
        config: Settings that have to be the same in a checkpoint.
        rank: Which rank it is.
        ranks: How many there are.
    """

    ticker: Ticker
    reader: Reader
    config: dict[str, Any]
    rank: int
    ranks: int


def config_of(
    wiring: Wiring, hyper: Hyper, hold: int, align: bool, order: str, on_nonfinite: str
) -> dict[str, Any]:
    """Settings that have to be the same on every rank, and in a checkpoint."""
    named = dict(wiring.root.named_parameters()) | dict(wiring.root.named_buffers())
    return {
        **{name: versions()[name] for name in ("hamlearn", "torch")},
        "parameter or buffer": checkpoint.layout(named),
        "nodes": {name: list(sources) for name, sources in wiring.sources.items()},
        "hyper": identity(vars(hyper)),
        "hold": hold,
        "align": align,
        "order": order,
        "on_nonfinite": on_nonfinite,
    }


def write(held: RankState, folder: Path) -> None:
    """Write all that a rank holds; nothing of it may be under way."""
    ticker, rule = held.ticker, held.ticker.rule
    system = ticker.system
    assert isinstance(rule, PartAligned)
    tensors: dict[str, Tensor] = {f"theta/{n}": w for n, w in system.wiring.named_parameters()}
    tensors |= {f"buffer/{n}": b for n, b in system.wiring.named_buffers()}
    for (name,), omega in zip(system.slot_names, ticker.omega, strict=True):
        tensors |= saved_omega(omega, name)
    carried, carry = pack(rule.saved(ticker.carry), "carry/")
    about: dict[str, Any] = {
        "config": held.config,
        "ranks": held.ranks,
        "t": ticker.t,
        "updates": ticker.updates,
        "shown": ticker.shown,
        "number": ticker.carry.number,
        "reader": held.reader.state_dict(),
        "carry": carry,
    }
    checkpoint.write(_file(folder, held.rank), tensors | carried | random_state(), about)


def read(held: RankState, path: Path, *, new_hyper: bool, drop: bool) -> Callable[[], None]:
    """Read what one rank needs of a checkpoint; calling the result takes it up, all or nothing.

    The same ranks with the same groups continue where they were. With `drop`, others too take weights, costates of
    weights, time and place in the stream, and begin with no sample in flight.
    """
    ticker, rule = held.ticker, held.ticker.rule
    device = ticker.system.theta[0].device
    with checkpoint.reading(path):
        _, first = checkpoint.read(_file(path, 0))
        _require(path, first["config"], held.config, new_hyper=new_hyper)
        if drop:
            tensors, about = _joined(path, first["ranks"])
            left, carry, random = Tensors(tensors), rule.empty(), random_state()
            if isinstance(rule, PartAligned):
                carry = carry._replace(number=about["number"])
        else:
            _require_same_ranks(path, first, held)
            tensors, about = checkpoint.read(_file(path, held.rank))
            left = Tensors(tensors)
            carry = rule.loaded(unpack(about["carry"], left, "carry/", device))
            random = {name: left.take(name) for name in left.names() if name.startswith("rng/")}
        return _taken(held, left, about, carry, random)


def load_local(learner: LocalLearner, path: str | os.PathLike[str], *, new_hyper: bool = False) -> None:
    """Read weights, their costates, time and place in the stream of a pipeline into a `LocalLearner`.

    Samples that were in flight stay behind: `flush()` before saving to lose none.

    Args:
        learner: Made with the same module, hyper-parameters, `hold`, `align` and `order`; any groups.
        path: A checkpoint, or the folder of several, of which the newest is taken.
        new_hyper: Accept other hyper-parameters than the checkpoint's.

    Example:
        >>> import tempfile, torch, hamlearn as hl
        >>> def net():
        ...     return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
        >>> mse, folder = torch.nn.functional.mse_loss, tempfile.mkdtemp()
        >>> ranks = hl.distributed.PipelineLearner(net(), mse, hl.Hyper(), groups=2)
        >>> ranks.save(folder)
        >>> alone = hl.local.LocalLearner(net(), mse, hl.Hyper(), groups=2, align=True)
        >>> hl.distributed.load_local(alone, folder)
        >>> all(torch.equal(a, b) for a, b in zip(alone.module.parameters(), ranks.module.parameters()))
        True
    """
    path = newest_of(path)
    ticker, reader = settled(learner)
    if learner.delay_free:
        raise CheckpointError(f"{path} was saved by a pipeline: build the learner without delay_free")
    system = ticker.system
    config = config_of(
        system.wiring, learner.hyper, learner.hold, learner.align, system.order, learner.on_nonfinite
    )
    read(RankState(ticker, reader, config, 0, 1), path, new_hyper=new_hyper, drop=True)()


def _file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.safetensors"


def _joined(path: Path, ranks: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights, buffers and costates of all ranks, and what the last rank says of time and place."""
    tensors: dict[str, Tensor] = {}
    about: dict[str, Any] = {}
    for rank in range(ranks):
        own, about = checkpoint.read(_file(path, rank))
        tensors |= own
    return tensors, about


def _require(path: Path, saved: dict[str, Any], config: dict[str, Any], *, new_hyper: bool) -> None:
    """Raise unless a checkpoint was saved by a learner of this kind."""
    for key, value in config.items():
        if key in _MAY_DIFFER or (key == "hyper" and new_hyper):
            continue
        remedy = "load(..., new_hyper=True) takes other ones" if key == "hyper" else "build the learner alike"
        checkpoint.require_equal(path, key, saved.get(key), value, remedy)


def _require_same_ranks(path: Path, saved: dict[str, Any], held: RankState) -> None:
    """Raise unless samples in flight and states are those of the same groups, on the same ranks."""
    before, now = saved["config"]["nodes"], held.config["nodes"]
    if saved["ranks"] == held.ranks and before == now:
        return
    if before != now:
        found = f"with the groups {list(before)}, this learner has {list(now)}"
    else:
        found = f"by {saved['ranks']} ranks, this job has {held.ranks}"
    raise CheckpointError(
        f"{path} was saved {found}. Start as many ranks with the same groups; or load with drop=True, which takes "
        "weights and their costates by name and drops samples in flight (flush() before saving leaves none)"
    )


def _taken(
    held: RankState, left: Tensors, about: dict[str, Any], carry: Any, random: dict[str, Tensor]
) -> Callable[[], None]:
    """What a checkpoint changes in a learner, as a call that changes all of it or nothing."""
    ticker, wiring = held.ticker, held.ticker.system.wiring
    named: list[tuple[str, Tensor]] = [(f"theta/{n}", w) for n, w in wiring.named_parameters()]
    named += [(f"buffer/{n}", b) for n, b in wiring.named_buffers()]
    values = [(tensor, left.take(name, tensor)) for name, tensor in named]
    moved = {name: about[name] for name in ("t", "updates", "shown")}
    moved |= {"omega": _slots(ticker.system, left), "carry": carry}

    def swap() -> None:
        vars(ticker).update(moved)
        held.reader.load_state_dict(about["reader"])

    return lambda: take_up([Loading(values, swap, random)])


def _slots(system: LocalSystem, left: Tensors) -> list[Omega]:
    """Costates as the system lays them out: one per weight, or one per stack of weights."""
    slots: list[Omega] = []
    device = system.theta[0].device
    for names, form in zip(system.slot_names, system.forms(), strict=True):
        parts = [loaded_omega(left, name, form if len(names) == 1 else form[0], device) for name in names]
        slots.append(parts[0] if len(names) == 1 else torch.stack([dense(part) for part in parts]))
    return slots
