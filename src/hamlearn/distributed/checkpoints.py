"""What a checkpoint of a pipeline holds: everything by the name of its parameter or node, not by rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from hamlearn.distributed.blocked import PartBlocked
from hamlearn.distributed.header import described, template
from hamlearn.distributed.rank import config_of
from hamlearn.distributed.storage import Saved
from hamlearn.engine.ticks.ticker import Ticker
from hamlearn.errors import CheckpointError
from hamlearn.local.learner import LocalLearner, settled
from hamlearn.rules.local.aligned import Aligned
from hamlearn.rules.local.costates import Omega, dense
from hamlearn.rules.local.costates import loaded as loaded_omega
from hamlearn.rules.local.costates import saved as saved_omega
from hamlearn.rules.local.flights import Entry, Pipeline
from hamlearn.rules.local.local_system import LocalSystem
from hamlearn.rules.local.stacked import LayerStack
from hamlearn.rules.local.unaligned import Nodes, Unaligned
from hamlearn.sample import Sample
from hamlearn.state import checkpoint
from hamlearn.state.packing import pack_sample, unpack_sample
from hamlearn.state.saving import Loading, random_state, take_up
from hamlearn.state.tensors import Tensors
from hamlearn.streams.reader import Reader

if TYPE_CHECKING:
    from hamlearn.distributed.parts import Part


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


def content(held: RankState) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All that a rank holds, as copies that later ticks do not touch; nothing of it may be under way."""
    ticker = held.ticker
    system, engine = ticker.system, ticker.rule
    tensors: dict[str, Tensor] = {f"theta/{n}": w for n, w in system.wiring.named_parameters()}
    tensors |= {f"buffer/{n}": b for n, b in system.wiring.named_buffers()}
    for (name,), omega in zip(system.slot_names, ticker.omega, strict=True):
        tensors |= saved_omega(omega, name)
    about: dict[str, Any] = {
        "config": held.config,
        "ranks": held.ranks,
        "t": ticker.t,
        "updates": ticker.updates,
        "shown": ticker.shown,
        "number": engine.ticks_made(ticker.carry),  # type: ignore[attr-defined]
        "reader": held.reader.state_dict(),
    }
    if isinstance(engine, Aligned):
        nodes, about["flights"] = _flights(engine, ticker.carry, engine.part)  # type: ignore[attr-defined]
    else:
        h, z = engine.by_node(ticker.carry)
        nodes = {f"h/{n}": x for n, x in h.items()} | {f"z/{n}": x for n, x in z.items()}
        about["begun"] = bool(ticker.carry.h)
    random = {f"{name}/{held.rank}": x for name, x in random_state().items()}
    return {n: x.detach().cpu().clone() for n, x in (tensors | nodes | random).items()}, about


def _flights(engine: Aligned, carry: Pipeline, part: Part) -> tuple[dict[str, Tensor], list[Any]]:
    tensors: dict[str, Tensor] = {}
    told = []
    own = {cell.name for cell in engine.system.cells}
    way = engine.under_way() if isinstance(engine, PartBlocked) else {}
    flying = engine.in_flight(carry)
    for age in reversed(flying):
        number, entry = carry.number - 1 - age, carry.entries[age]
        assert entry is not None
        prefix = f"flight/{number}/"
        # What has been sent back is the other rank's; what still gathers is here alone.
        gathers = {part.border} if part.border and age + 1 < engine.schedule.backward[part.border] else set()
        for kind, lines, names in (("h", carry.h, own), ("z", carry.z, own | gathers)):
            found = {name: lines.get(name, age) for name in names if name in lines.spans}
            tensors |= {f"{prefix}{kind}/{n}": x for n, x in found.items() if x is not None}
        draws = {name: carry.draws.get(name, age) for name in carry.draws.spans}
        drew = {name: states for name, states in draws.items() if states is not None}
        tensors |= {f"{prefix}draws/{n}/{i}": x for n, xs in drew.items() for i, x in enumerate(xs)}
        tensors |= {} if entry.loss is None else {f"{prefix}loss": entry.loss}
        tensors |= {f"{prefix}way/{arrives}/{n}": z for (arrives, e, n), z in way.items() if e == number}
        sample = entry.sample
        kept = Sample(None if part.border else sample.u, sample.target, sample.tau, sample.boundary)
        parts, about = pack_sample(kept, prefix)
        tensors |= parts
        trial = engine.system.wiring.start(sample.u)
        forms = {name: described(x).decode() for name, x in trial.items()}
        told.append(
            {"entry": number, "t": entry.t, "stride": entry.stride, "reported": entry.reported, "sample": about}
            | {"forms": forms}
        )
    return tensors, told


def restored(held: RankState, saved: Saved, *, new_hyper: bool, drop: bool) -> Callable[[], None]:
    """Read what one rank needs of a checkpoint, by any number of ranks; calling the result takes it up."""
    _check_config(saved, held.config, new_hyper=new_hyper)
    engine: Any = held.ticker.rule
    blank: Any = type(engine)(engine.part, engine.border)
    same = _same_groups(saved, held.config, drop=drop)
    with checkpoint.reading(saved.path):
        if isinstance(blank, Aligned):
            carry: Any = _read_flights(blank, saved, engine.part if same else None, same=same)
        else:
            carry = _read_states(blank, saved, same=same)
            blank.number = saved.ranks[0]["number"]
            if carry.h and engine.part.border is not None:
                name = f"h/{engine.part.border}"
                blank.arrived = saved.read([name])[name].to(engine.system.theta[0].device)
        about = saved.ranks[-1 if held.rank == held.ranks - 1 else 0]
        return _taken(held, saved, about, blank, carry)


def load_local(learner: LocalLearner, path: Any, *, new_hyper: bool = False, drop: bool = False) -> None:
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
    _check_config(saved, config, new_hyper=new_hyper)
    same = _same_groups(saved, config, drop=drop)
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


def _check_config(saved: Saved, mine: dict[str, Any], *, new_hyper: bool) -> None:
    config, equal = saved.ranks[0]["config"], checkpoint.require_equal
    free = {"hamlearn", "torch", "nodes", "on_nonfinite", "ticks_per_message"} | (
        {"hyper"} if new_hyper else set()
    )
    for key, value in mine.items():
        if key in free:
            continue
        remedy = "load(..., new_hyper=True) takes other ones" if key == "hyper" else "build the learner alike"
        equal(saved.path, key, config.get(key), value, remedy)


def _same_groups(saved: Saved, mine: dict[str, Any], *, drop: bool) -> bool:
    """Whether nodes and delays are the same, so that states can be taken up; raises where some would be lost."""
    config = saved.ranks[0]["config"]
    delay, own = config.get("ticks_per_message", 1), mine["ticks_per_message"]
    if config["nodes"] == mine["nodes"] and delay == own:
        return not drop
    if not drop and (saved.ranks[0].get("flights") or saved.ranks[0].get("begun")):
        was, now = f"the groups {list(config['nodes'])}", f"{list(mine['nodes'])}"
        if config["nodes"] == mine["nodes"]:
            was, now = f"a pipeline with ticks_per_message={delay}", f"{own}"
        raise CheckpointError(
            f"{saved.path} was saved from {was}, this learner has {now}, and the checkpoint holds samples in "
            "flight or states, which belong to the old ones: flush() or reset() before saving, or load with "
            "drop=True"
        )
    return False


def _taken(held: RankState, saved: Saved, about: dict[str, Any], blank: Any, carry: Any) -> Callable[[], None]:
    """Weights, costates, time, place in the stream and random numbers, to be taken all or none."""
    ticker, reader, _, rank, _ = held
    system, engine = ticker.system, ticker.rule
    wiring = system.wiring
    named: list[tuple[str, Tensor]] = [(f"theta/{n}", w) for n, w in wiring.named_parameters()]
    named += [(f"buffer/{n}", b) for n, b in wiring.named_buffers()]
    names = [f"omega/{n}" for n in system.names]
    names += [f"factors/{n}/{part}" for n in system.names for part in saved.under(f"factors/{n}/")]
    random = {f"rng/cpu/{rank}"} & set(saved.forms)
    left = Tensors(saved.read([*(n for n, _ in named), *names, *random]))
    values = [(tensor, left.take(name, tensor)) for name, tensor in named]
    moved = {
        "omega": _slots(system, left),
        "t": about["t"],
        "updates": saved.ranks[-1]["updates"],
        "shown": about["shown"],
        "carry": carry,
    }
    generators = {"rng/cpu": left.take(f"rng/cpu/{rank}")} if random else None

    def swap() -> None:
        vars(ticker).update(moved)
        vars(engine).update(vars(blank))
        reader.load_state_dict(about["reader"])

    def take() -> None:
        # Where another number of ranks wrote the checkpoint, a rank may find no random numbers of its own.
        drawn = random_state() if generators is None else generators
        take_up([Loading(values, lambda: swap, drawn)])

    return take


def _slots(system: LocalSystem, left: Tensors) -> list[Omega]:
    """Costates as the system lays them out: one per weight, or one per stack of weights."""
    slots: list[Omega] = []
    device = system.theta[0].device
    for names, form in zip(system.slot_names, system.forms(), strict=True):
        parts = [loaded_omega(left, name, form if len(names) == 1 else form[0], device) for name in names]
        slots.append(parts[0] if len(names) == 1 else torch.stack([dense(part) for part in parts]))
    return slots


def _read_states(engine: Unaligned, saved: Saved, *, same: bool) -> Nodes:
    about = saved.ranks[0]
    if not (same and about["begun"]):
        return engine.empty()
    device = engine.system.theta[0].device
    names = [name for cell in engine.system.cells for name in cell.names]
    found = saved.read([f"{kind}/{name}" for kind in "hz" for name in names])
    h, z = ({n: found[f"{kind}/{n}"].to(device) for n in names} for kind in "hz")
    cells = engine.system.cells
    return Nodes([cell.start(h) for cell in cells], [cell.start(z) for cell in cells])


def _read_flights(engine: Aligned, saved: Saved, part: Part | None, *, same: bool) -> Pipeline:
    carry = engine.empty()._replace(number=saved.ranks[0]["number"])
    if not same:
        return carry
    device, wiring = engine.system.theta[0].device, engine.system.wiring
    border = None if part is None else part.border
    last = part is None or part.shown is None
    own = {name for cell in engine.system.cells for name in cell.names}
    for about, ends in zip(saved.ranks[0]["flights"], saved.ranks[-1]["flights"], strict=True):
        entry = about["entry"]
        prefix, age = f"flight/{entry}/", carry.number - 1 - entry
        if not 0 <= age < len(carry.entries):
            raise ValueError(f"the sample of tick {entry} cannot be in flight after {age + 1} ticks")
        wanted = [n for n in saved.under(prefix) if _wanted(n, own, border, first=border is None, last=last)]
        gathered = isinstance(engine, PartBlocked) or (border and age + 1 >= engine.schedule.backward[border])
        if border is not None and gathered:
            wanted = [n for n in wanted if n != f"z/{border}"]
        read = saved.read([prefix + n for n in wanted])
        left = Tensors({n.removeprefix(prefix): x for n, x in read.items()})
        parts = about["sample"] | {"u": _NONE, "target": _NONE}
        if border is None:
            parts["u"] = about["sample"]["u"]
        if last:
            parts["target"] = ends["sample"]["target"]
        sample = unpack_sample(left, parts, "", device)
        if border is not None:
            told = [f["forms"] for rank in saved.ranks for f in rank["flights"] if f["entry"] == entry]
            sample.u = template(next(forms[border] for forms in told if border in forms).encode(), device)
        for name, value in wiring.values(sample.u).items():
            carry.h.put(name, age, value)
        draws: dict[str, list[Tensor]] = {}
        for name in sorted(left.under("draws/").names(), key=lambda n: int(n.rpartition("/")[2])):
            draws.setdefault(name.rpartition("/")[0], []).append(read[f"{prefix}draws/{name}"])
        for node, states in draws.items():
            carry.draws.put(node, age, states)
        loss = left.keep("loss", device) if "loss" in left else None
        for name in left.names():
            kind, _, node = name.partition("/")
            if kind in ("h", "z"):
                (carry.h if kind == "h" else carry.z).put(node, age, left.keep(name, device))
            elif kind == "way" and isinstance(engine, PartBlocked):
                arrives, _, node = node.partition("/")
                engine.way[int(arrives), entry, node] = left.keep(name, device)
        carry.entries[age] = Entry(sample, about["t"], about["stride"], about["reported"], None, loss)
    return carry


def _wanted(name: str, own: set[str], border: str | None, *, first: bool, last: bool) -> bool:
    kind, _, rest = name.partition("/")
    if kind in ("u", "target", "loss"):
        return first if kind == "u" else last
    if kind == "way":
        return rest.partition("/")[2] in own
    return (rest.rpartition("/")[0] if kind == "draws" else rest) in own | ({border} if kind != "draws" else set())


_NONE = pack_sample(Sample(None), "")[1]["u"]
"""How a sample says that a part of it is not there."""
