"""A graph of groups cut into consecutive parts, one per rank, such that neighbours alone exchange anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from hamlearn.errors import ConfigError
from hamlearn.hyper import Hyper
from hamlearn.rules.local.local_system import LocalSystem, Losses, OrderName
from hamlearn.rules.local.schedule import Timetable, schedule_of
from hamlearn.rules.local.wiring import Wiring
from hamlearn.rules.velocity import Velocity


@dataclass(frozen=True)
class Part:
    """What one rank computes, and where it stands among the others.

    Attributes:
        system: Its groups and their weights.
        plan: When each group of the whole graph meets each sample.
        border: The node of the rank before that it reads; `None` for the first rank.
        shown: The node of its own that the next rank reads; `None` for the last one.
        complete: Ticks after a sample's entry at which its output and loss are complete, if aligned.
        gives: Ages of samples, in ticks, at which costates of `border` are computed here.
        takes: Ages at which the rank behind computes those of `shown`.
    """

    system: LocalSystem
    plan: Timetable
    border: str | None
    shown: str | None
    complete: int
    gives: tuple[int, ...]
    takes: tuple[int, ...]


@dataclass(frozen=True)
class _Place:
    name: str
    parents: tuple[str, ...]
    length: int = 1


def part_of(wiring: Wiring, rank: int, ranks: int, loss: Losses, hyper: Hyper, order: OrderName) -> Part:
    """The part of one rank; every rank finds the same cuts, and raises for the same ones."""
    count = len(wiring.nodes)
    if ranks > count:
        raise ConfigError(
            f"{ranks} ranks, but only {count} groups to share out: start {count} processes at most "
            "(torchrun --nproc-per-node), or make more groups"
        )
    size, larger = divmod(count, ranks)
    starts = [r * size + min(r, larger) for r in range(ranks + 1)]
    _check_cuts(wiring, starts)
    _check_weights(wiring, starts)
    names = dict(wiring.root.named_parameters())
    learnable = {n: w for n, w in names.items() if w.requires_grad}
    Velocity(hyper.beta, list(learnable), list(learnable.values()))
    places = [_Place(node.name, tuple(s for s in node.sources if s in wiring.sources)) for node in wiring.nodes]
    plan = schedule_of(places, wiring.outputs, order)
    start, end = starts[rank], starts[rank + 1]
    border = wiring.nodes[start - 1].name if rank else None
    final = rank == ranks - 1
    part = replace(
        wiring,
        nodes=wiring.nodes[start:end],
        inputs=wiring.inputs if border is None else (border,),
        outputs=wiring.outputs if final else (),
        borders=() if border is None else (border,),
        whole=ranks == 1,
    )
    own = [n for n, w in part.named_parameters() if w.requires_grad]
    system = LocalSystem(
        part, loss if final or not isinstance(loss, Mapping) else {}, _hyper_of(hyper, own), order, 0
    )
    complete = max(map(plan.shown, wiring.outputs)) + plan.lag
    shown = None if final else wiring.nodes[end - 1].name
    gives, takes = (
        tuple(sorted({plan.backward[p.name] for p in places if name in p.parents and p.name in plan.backward}))
        for name in (border, shown)
    )
    return Part(system, plan, border, shown, complete, gives, takes)


def _check_cuts(wiring: Wiring, starts: list[int]) -> None:
    cycle = wiring.cycle()
    if cycle:
        raise ConfigError(
            f"the cycle {' → '.join(cycle)} cannot be cut into ranks that pass signals one way: use a graph "
            "without cycles, or LocalLearner"
        )
    if wiring.h0:
        raise ConfigError(f"h0 is given for {sorted(wiring.h0)}: groups on ranks start at zero; leave h0 out")
    rank_of = {node.name: r for r in range(len(starts) - 1) for node in wiring.nodes[starts[r] : starts[r + 1]]}
    for node in wiring.nodes:
        rank = rank_of[node.name]
        for source in node.sources:
            near = source in rank_of and rank_of[source] == rank
            entrance = source in wiring.inputs and rank == 0
            edge = rank > 0 and source == wiring.nodes[starts[rank] - 1].name
            if not (near or entrance or edge):
                raise ConfigError(
                    f"the edge {source!r} → {node.name!r} passes over the border before rank {rank} beside the "
                    f"one that is carried, that of {wiring.nodes[starts[rank] - 1].name!r}: move the borders of "
                    "the groups so that only one state crosses from each rank to the next"
                )
    for name in wiring.outputs:
        if rank_of[name] != len(starts) - 2:
            raise ConfigError(
                f"output {name!r} is on rank {rank_of[name]}, but targets enter at the last rank: move the "
                "borders of the groups, or use fewer ranks"
            )


def _check_weights(wiring: Wiring, starts: list[int]) -> None:
    owner: dict[int, tuple[int, str]] = {}
    for rank in range(len(starts) - 1):
        nodes = wiring.nodes[starts[rank] : starts[rank + 1]]
        weights = {id(w): node.name for node in nodes for w in node.module.parameters() if w.requires_grad}
        if not weights:
            raise ConfigError(
                f"rank {rank} would hold {[node.name for node in nodes]}, which have no weights to learn: move "
                "the borders of the groups, or use fewer ranks"
            )
        for key, name in weights.items():
            if key in owner:
                raise ConfigError(
                    f"nodes {owner[key][1]!r} on rank {owner[key][0]} and {name!r} on rank {rank} share a weight: "
                    "a weight lives on one rank. Put both into one group"
                )
            owner[key] = rank, name


def _hyper_of(hyper: Hyper, names: list[str]) -> Hyper:
    """The same rates, without the names of weights that live elsewhere."""
    if not isinstance(hyper.beta, Mapping):
        return hyper
    beta = {
        pattern: value
        for pattern, value in hyper.beta.items()
        if any(fnmatchcase(name, pattern) for name in names)
    }
    return replace(hyper, beta=beta)
