"""What a checkpoint of a pipeline holds: everything by the name of its parameter or node, not by rank."""

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
from hamlearn.rules.local.aligned import Aligned
from hamlearn.rules.local.costates import Omega, dense
from hamlearn.rules.local.costates import loaded as loaded_omega
from hamlearn.rules.local.costates import saved as saved_omega
from hamlearn.rules.local.flights import Entry, Pipeline
from hamlearn.rules.local.local_system import LocalSystem
from hamlearn.rules.local.stacked import LayerStack
from hamlearn.rules.local.unaligned import Nodes, Unaligned
from hamlearn.rules.local.wiring import Wiring
from hamlearn.sample import Sample
from hamlearn.state import checkpoint
from hamlearn.state.identity import identity
from hamlearn.state.packing import pack_sample, unpack_sample
from hamlearn.state.saving import Loading, random_state, take_up
from hamlearn.state.tensors import Tensors
from hamlearn.streams.reader import Reader


class RankState(NamedTuple):
    """What a checkpoint of a rank is made of, or of a learner that is whole: a rank without neighbours.

    Attributes:
        ticker: Time, ω and θ, the rule, and what it carries.
        reader: The place in the stream.
        config: What has to be the same in a checkpoint.
        rank: Which rank it is.
        ranks: How many there are.
    """

    ticker: Ticker
    reader: Reader
    config: dict[str, Any]
    rank: int = 0
    ranks: int = 1


class Saved:
    """A complete checkpoint: what each rank wrote of itself, and the tensors of all of them by name.

    Args:
        path: Its folder, or a folder of checkpoints, of which the newest is taken.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = newest_of(path)
        tensors, first = checkpoint.read(self.path / "rank-0.safetensors")
        self.ranks = [first]
        # More ranks may have left files here that died while they wrote the same tick.
        for rank in range(1, first["ranks"]):
            others, about = checkpoint.read(self.path / f"rank-{rank}.safetensors")
            tensors |= others
            self.ranks.append(about)
        self._tensors = tensors

    def under(self, prefix: str) -> Tensors:
        """The tensors whose names begin with `prefix`, by the rest of their names."""
        return Tensors({n.removeprefix(prefix): x for n, x in self._tensors.items() if n.startswith(prefix)})

    def require(self, config: dict[str, Any], *, new_hyper: bool) -> None:
        """Raise unless it was saved by a learner of this kind."""
        free = {"hamlearn", "torch", "nodes", "on_nonfinite", "ticks_per_message"}
        for key, value in config.items():
            if key not in free and not (key == "hyper" and new_hyper):
                remedy = (
                    "load(..., new_hyper=True) takes other ones" if key == "hyper" else "build the learner alike"
                )
                checkpoint.require_equal(self.path, key, self.ranks[0]["config"].get(key), value, remedy)

    def fits(self, config: dict[str, Any], *, drop: bool) -> bool:
        """Whether nodes and delays are the same, so that states can be taken up; raises if some would be lost."""
        saved = self.ranks[0]["config"]
        delay, own = saved["ticks_per_message"], config["ticks_per_message"]
        if saved["nodes"] == config["nodes"] and delay == own:
            return not drop
        if not drop and (self.ranks[0].get("flights") or self.ranks[0].get("begun")):
            was, now = f"the groups {list(saved['nodes'])}", f"{list(config['nodes'])}"
            if saved["nodes"] == config["nodes"]:
                was, now = f"a pipeline with ticks_per_message={delay}", f"{own}"
            raise CheckpointError(
                f"{self.path} was saved from {was}, this learner has {now}, and the checkpoint holds samples in "
                "flight or states, which belong to the old ones: flush() or reset() before saving, or load with "
                "drop=True"
            )
        return False


def config_of(
    wiring: Wiring, hyper: Hyper, hold: int, align: bool, order: str, on_nonfinite: str, ticks_per_message: int = 1
) -> dict[str, Any]:
    """What has to be the same on every rank, and in a checkpoint."""
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
        "ticks_per_message": ticks_per_message,
    }


def write(held: RankState, folder: Path) -> None:
    """Write all that a rank holds; nothing of it may be under way."""
    ticker = held.ticker
    system, engine = ticker.system, ticker.rule
    tensors: dict[str, Tensor] = {f"theta/{n}": w for n, w in system.wiring.named_parameters()}
    tensors |= {f"buffer/{n}": b for n, b in system.wiring.named_buffers()}
    for (name,), omega in zip(system.slot_names, ticker.omega, strict=True):
        tensors |= saved_omega(omega, name)
    tensors |= {f"{name}/{held.rank}": x for name, x in random_state().items()}
    about: dict[str, Any] = {
        "config": held.config,
        "ranks": held.ranks,
        "t": ticker.t,
        "updates": ticker.updates,
        "shown": ticker.shown,
        "number": engine.ticks_made(ticker.carry),  # type: ignore[attr-defined]
        "reader": held.reader.state_dict(),
    }
    if isinstance(engine, PartAligned):
        flights, about["flights"] = _flights(engine, ticker.carry, held.rank)
        tensors |= flights
    else:
        h, z = engine.by_node(ticker.carry)
        tensors |= {f"h/{n}": x for n, x in h.items()} | {f"z/{n}": x for n, x in z.items()}
        about["begun"] = bool(ticker.carry.h)
    checkpoint.write(folder / f"rank-{held.rank}.safetensors", tensors, about)


def _flights(engine: PartAligned, carry: Pipeline, rank: int) -> tuple[dict[str, Tensor], list[Any]]:
    """What samples in flight have left at the nodes of this part."""
    tensors: dict[str, Tensor] = {}
    listed = []
    own = {cell.name for cell in engine.system.cells}
    on_way = engine.under_way()
    for age in reversed(engine.in_flight(carry)):
        number, entry = carry.number - 1 - age, carry.entries[age]
        assert entry is not None
        prefix = f"flight/{number}/"
        for kind, lines in (("h", carry.h), ("z", carry.z)):
            found = {name: lines.get(name, age) for name in own if name in lines.spans}
            tensors |= {f"{prefix}{kind}/{n}": x for n, x in found.items() if x is not None}
        for name in carry.draws.spans:
            tensors |= {f"{prefix}draws/{name}/{i}": x for i, x in enumerate(carry.draws.get(name, age) or ())}
        tensors |= {} if entry.loss is None else {f"{prefix}loss": entry.loss}
        # Two ranks may hold costates for the same node.
        tensors |= {f"{prefix}way/{at}/{rank}/{name}": z for (at, e, name), z in on_way.items() if e == number}
        sample = entry.sample
        kept = Sample(None if engine.part.border else sample.u, sample.target, sample.tau, sample.boundary)
        parts, about = pack_sample(kept, prefix)
        tensors |= parts
        forms = {n: [list(x.shape), str(x.dtype)] for n, x in engine.system.wiring.start(sample.u).items()}
        listed.append(
            {"entry": number, "t": entry.t, "stride": entry.stride, "reported": entry.reported}
            | {"sample": about, "forms": forms}
        )
    return tensors, listed


def restored(held: RankState, saved: Saved, *, new_hyper: bool, drop: bool) -> Callable[[], None]:
    """Read what one rank needs of a checkpoint, by any number of ranks; calling the result takes it up."""
    saved.require(held.config, new_hyper=new_hyper)
    engine: Any = held.ticker.rule
    blank: Any = type(engine)(engine.part, engine.border)
    same = saved.fits(held.config, drop=drop)
    with checkpoint.reading(saved.path):
        if isinstance(blank, Aligned):
            carry: Any = _read_flights(blank, saved, engine.part.border, same=same)
        else:
            carry = _read_states(blank, saved, same=same)
            blank.number = saved.ranks[0]["number"]
            if carry.h and engine.part.border is not None:
                blank.arrived = saved.under("h/").keep(engine.part.border, engine.system.theta[0].device)
        about = saved.ranks[-1 if held.rank == held.ranks - 1 else 0]
        return _taken(held, saved, about, blank, carry)


def load_local(
    learner: LocalLearner, path: str | os.PathLike[str], *, new_hyper: bool = False, drop: bool = False
) -> None:
    """Read a checkpoint of a `PipelineLearner` into a `LocalLearner` of the same model.

    With the same groups, it goes on bit for bit.

    Args:
        learner: Made with the same module, hyper-parameters, `hold`, `align` and `order`.
        path: A checkpoint, or the folder of several, of which the newest is taken.
        new_hyper: Accept other hyper-parameters than the checkpoint's.
        drop: Accept other groups, and drop samples in flight and states, which belong to the old ones.

    Example:
        >>> import tempfile, torch, hamlearn as hl
        >>> def net():
        ...     return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
        >>> mse, folder = torch.nn.functional.mse_loss, tempfile.mkdtemp()
        >>> ranks = hl.distributed.PipelineLearner(net(), mse, hl.Hyper(), groups=2)
        >>> ranks.save(folder)
        >>> alone = hl.local.LocalLearner(net(), mse, hl.Hyper(), groups=2, stacked=False)
        >>> hl.distributed.load_local(alone, folder)
        >>> all(torch.equal(a, b) for a, b in zip(alone.module.parameters(), ranks.module.parameters()))
        True
    """
    saved = Saved(path)
    ticker, reader = settled(learner)
    system, engine = ticker.system, ticker.rule
    if learner.delay_free:
        raise CheckpointError(f"{saved.path} was saved by a pipeline: build the learner without delay_free")
    config = config_of(
        system.wiring, learner.hyper, learner.hold, learner.align, system.order, learner.on_nonfinite
    )
    saved.require(config, new_hyper=new_hyper)
    same = saved.fits(config, drop=drop)
    blank: Any = type(engine)(system)
    with checkpoint.reading(saved.path):
        if isinstance(blank, Aligned):
            carry: Any = _read_flights(blank, saved, None, same=same)
            if blank.in_flight(carry) and any(isinstance(cell, LayerStack) for cell in system.cells):
                raise CheckpointError(
                    f"{saved.path} holds samples in flight, which layers that are stacked cannot take up: build "
                    "the learner with stacked=False, or load with drop=True"
                )
        else:
            carry = _read_states(blank, saved, same=same)
        change = _taken(RankState(ticker, reader, config), saved, saved.ranks[0], blank, carry)
    change()


def _taken(held: RankState, saved: Saved, about: dict[str, Any], blank: Any, carry: Any) -> Callable[[], None]:
    """Weights, costates, time, place in the stream and random numbers, to be taken all or none."""
    ticker, reader, _, rank, _ = held
    system, engine, left = ticker.system, ticker.rule, saved.under("")
    named: list[tuple[str, Tensor]] = [(f"theta/{n}", w) for n, w in system.wiring.named_parameters()]
    named += [(f"buffer/{n}", b) for n, b in system.wiring.named_buffers()]
    values = [(tensor, left.take(name, tensor)) for name, tensor in named]
    moved = {
        "omega": _slots(system, left),
        "t": about["t"],
        "updates": saved.ranks[-1]["updates"],
        "shown": about["shown"],
        "carry": carry,
    }
    # If fewer ranks wrote the checkpoint, this one finds no random numbers of its own.
    own = f"rng/cpu/{rank}"
    random = {"rng/cpu": left.take(own)} if own in left else random_state()

    def swap() -> None:
        vars(ticker).update(moved)
        vars(engine).update(vars(blank))
        reader.load_state_dict(about["reader"])

    return lambda: take_up([Loading(values, lambda: swap, random)])


def _slots(system: LocalSystem, left: Tensors) -> list[Omega]:
    """Costates as the system lays them out: one per weight, or one per stack of weights."""
    slots: list[Omega] = []
    device = system.theta[0].device
    for names, form in zip(system.slot_names, system.forms(), strict=True):
        parts = [loaded_omega(left, name, form if len(names) == 1 else form[0], device) for name in names]
        slots.append(parts[0] if len(names) == 1 else torch.stack([dense(part) for part in parts]))
    return slots


def _read_states(engine: Unaligned, saved: Saved, *, same: bool) -> Nodes:
    if not (same and saved.ranks[0]["begun"]):
        return engine.empty()
    cells, device = engine.system.cells, engine.system.theta[0].device
    names = [name for cell in cells for name in cell.names]
    h, z = ({n: left.keep(n, device) for n in names} for left in (saved.under("h/"), saved.under("z/")))
    return Nodes([cell.start(h) for cell in cells], [cell.start(z) for cell in cells])


def _read_flights(engine: Aligned, saved: Saved, border: str | None, *, same: bool) -> Pipeline:
    """The samples in flight, with what they have left at the nodes of this engine and at its border."""
    carry = engine.empty()._replace(number=saved.ranks[0]["number"])
    for rows in zip(*(rank["flights"] for rank in saved.ranks), strict=True) if same else ():
        first, number = rows[0], rows[0]["entry"]
        age = carry.number - 1 - number
        if not 0 <= age < len(carry.entries):
            raise ValueError(f"the sample of tick {number} cannot be in flight after {age + 1} ticks")
        left = saved.under(f"flight/{number}/")
        device, forms = (
            engine.system.theta[0].device,
            {n: form for row in rows for n, form in row["forms"].items()},
        )
        sample = unpack_sample(left, first["sample"] | {"target": rows[-1]["sample"]["target"]}, "", device)
        if border is not None:
            shape, dtype = forms[border]
            sample.u = torch.zeros(shape, dtype=getattr(torch, dtype.removeprefix("torch.")), device=device)
        loss = left.keep("loss", device) if "loss" in left else None
        carry.entries[age] = Entry(sample, first["t"], first["stride"], first["reported"], None, loss)
        for name, value in engine.system.wiring.values(sample.u).items():
            carry.h.put(name, age, value)
        _read_lines(engine, carry, age, left)
    return carry


def _read_lines(engine: Aligned, carry: Pipeline, age: int, left: Tensors) -> None:
    """Put what one sample has left where it belongs; what belongs to other ranks is passed over."""
    device, own = engine.system.theta[0].device, {cell.name for cell in engine.system.cells}
    for kind, lines in (("h/", carry.h), ("z/", carry.z)):
        found = left.under(kind)
        for name in found.names():
            if name in lines.spans:
                lines.put(name, age, found.keep(name, device))
    draws = left.under("draws/")
    for name in carry.draws.spans:
        states = [draws.take(one).clone() for one in draws.counted(f"{name}/")]
        carry.draws.put(name, age, states or None)
    for key, z in left.under("way/").items():
        arrives, _, name = key.split("/", 2)
        if isinstance(engine, PartAligned) and name in own:
            place = int(arrives), carry.number - 1 - age, name
            z = z.to(device, copy=True)
            engine.on_way[place] = engine.on_way[place] + z if place in engine.on_way else z
