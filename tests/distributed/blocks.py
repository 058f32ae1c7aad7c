"""What the ranks of the tests do with one message for several ticks, and the local learner that judges them."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import hamlearn as hl
from hamlearn.distributed import PipelineLearner
from hamlearn.local import Graph, LocalLearner
from tests.distributed import jobs
from tests.distributed.jobs import facts, mse, told

STARTS = (2, 4, 5)
"""First layers of the groups but the first, of six layers in four groups."""
COUNT = 103
SETTINGS: dict[str, dict[str, Any]] = {
    "parallel": {},
    "sequential": {"order": "sequential"},
    "held": {"hold": 3},
    "fading": {"hyper": "fading"},
}


def hyper(name: str = "usual") -> hl.Hyper:
    """Fading, a costate keeps another part of itself in every tick."""
    if name == "usual":
        return jobs.hyper()
    return hl.Hyper(tau=0.5, eta=0.6, beta=0.03, eta_z=lambda t: 0.3 / (1 + 0.1 * t), clock="continuous")


def padded(every: int, seed: int = 0) -> tuple[nn.Sequential, list[int]]:
    """The layers with `every` − 1 nodes between groups that hand on what they get; first nodes of groups."""
    layers, groups = nn.Sequential(), []
    for index, (name, layer) in enumerate(jobs.net(seed).named_children()):
        if index in STARTS:
            groups += range(len(layers), len(layers) + every)
            for k in range(every - 1):
                layers.add_module(f"{name}+{k}", nn.Identity())
        layers.add_module(name, layer)
    return layers, groups


def judge(every: int, setting: str) -> LocalLearner:
    options = dict(SETTINGS[setting])
    layers, groups = padded(every)
    rates = hyper(options.pop("hyper", "usual"))
    return LocalLearner(layers, mse, rates, groups=groups, align=True, stacked=False, **options)


def pipeline(every: int, setting: str, **others: Any) -> PipelineLearner:
    options = {"groups": 4, "timeout": 20, "align": True} | SETTINGS[setting] | others
    net, rates = jobs.net(options.pop("seed", 0)), hyper(options.pop("hyper", "usual"))
    return PipelineLearner(net, mse, rates, ticks_per_message=every, **options)


def own_facts(learner: LocalLearner | PipelineLearner) -> dict[str, Any]:
    """Without the nodes that only hand on."""
    found = facts(learner)
    for kind in "hz":
        found[kind] = {name: x for name, x in found[kind].items() if "+" not in name}
    return found


def at_ends(learner: LocalLearner | PipelineLearner, samples: Any) -> Any:
    """What a rank is given of samples, or of one: those between the ends get nothing."""
    inside = isinstance(learner, PipelineLearner) and 0 < learner.rank < learner.ranks - 1
    return None if inside else samples


def ways(learner: LocalLearner | PipelineLearner) -> list[Any]:
    """Runs that pause anywhere, steps one by one, a run left early, predictions, flushes and resets anywhere."""
    found: list[Any] = []
    samples = jobs.stream(COUNT)
    given = at_ends(learner, samples)

    def shown(index: int) -> Any:
        return at_ends(learner, samples[index])

    reports = [told(r) for r in learner.run(given, max_steps=38)]
    found.append(own_facts(learner))
    for index in range(38, 50):
        reports.append(told(learner.step(shown(index))))
        if index in (40, 41):
            found.append(own_facts(learner))
    found.append(learner.predict(shown(0).u if shown(0) is not None else None))
    for taken, report in enumerate(learner.run(at_ends(learner, samples[50:]))):
        reports.append(told(report))
        if taken == 2:
            found.append((own_facts(learner), learner.predict(shown(1).u if shown(1) is not None else None)))
        if taken == 7:
            break
    found.append(own_facts(learner))
    reports += [told(learner.step(shown(90)))]
    reports += [told(r) for r in learner.flush()]
    found.append(own_facts(learner))
    reports += [told(r) for r in learner.run(at_ends(learner, samples[60:67]), max_steps=7)]
    learner.reset()
    for taken, report in enumerate(learner.run(at_ends(learner, samples[60:]))):
        reports.append(told(report))
        if taken == 3:
            reports += [told(r) for r in learner.flush()]
        if taken == 9:
            learner.reset()
    return [reports, *found, own_facts(learner)]


def all_ways(everies: tuple[int, ...]) -> dict[tuple[int, str], list[Any]]:
    return {(every, setting): ways(pipeline(every, setting)) for every in everies for setting in SETTINGS}


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.linear(a + b).tanh()


def skipping(every: int) -> Graph:
    """Rank 1 of two reads the state at its border twice, at different depths; so does a node within rank 0."""
    torch.manual_seed(0)
    nodes = {name: nn.Linear(3, 3) for name in ("a", "b", "d")} | {name: Sum() for name in "cef"}
    edges = [(edge[0], edge[1]) for edge in ("ua", "ab", "bc", "ac", "cd", "de", "ce", "ef", "df")]
    ways: list[tuple[str, str]] = []
    for source, node in edges:
        last = source
        for k in range(0 if source == "u" else every - 1):
            between = f"{source}{node}+{k}"
            nodes[between] = nn.Identity()
            ways.append((last, between))
            last = between
        ways.append((last, node))
    return Graph(nodes, ways).double()


def skipped(every: int, local: bool) -> dict[str, Any]:
    rates = hl.Hyper(tau=0.5, eta=0.6, beta=0.03, eta_z=lambda t: 0.3 / (1 + t), clock="continuous")
    learner: LocalLearner | PipelineLearner
    if local:
        learner = LocalLearner(skipping(every), mse, rates, align=True, stacked=False)
    else:
        learner = PipelineLearner(
            skipping(1), mse, rates, groups=6, align=True, timeout=20, ticks_per_message=every
        )
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(83, 2, 3, dtype=torch.float64, generator=generator)
    targets = [None if k % 5 == 3 else u.sin() for k, u in enumerate(drawn)]
    samples = zip(drawn, targets, itertools.cycle([0.4, 0.7]), strict=False)
    list(learner.run([hl.Sample(*sample) for sample in samples]))
    return own_facts(learner)


def growing(local: bool, every: int = 4) -> dict[str, Any]:
    """Batches of another size within one message; inputs from a live feed."""
    learner = judge(every, "parallel") if local else pipeline(every, "parallel")
    samples = jobs.stream(30)
    for k, sample in enumerate(samples):
        if k % 11 > 7:
            sample.u = torch.cat([sample.u, sample.u])
            sample.target = None if sample.target is None else torch.cat([sample.target, sample.target])
    list(learner.run(at_ends(learner, samples)))
    # A feed tells the time of samples that have no time step of their own by the clock, on each rank another.
    feed: Any = [hl.Sample(sample.u, sample.target, 0.5, sample.boundary) for sample in samples]
    if isinstance(learner, PipelineLearner) and learner.rank == 0:
        feed = hl.streams.live(iter(feed), policy="block")
    list(learner.run(at_ends(learner, feed), max_steps=30))
    return own_facts(learner)


def replicas(every: int) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "pipeline"))
    learner = pipeline(every, "parallel", mesh=mesh, average_every=jobs.EVERY)
    list(learner.run(jobs.stream(47, seed=dist.get_rank() // 2)))
    return own_facts(learner)


class Turned(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(3, width, dtype=torch.complex128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.conj() @ self.weight).tanh()


class Real(Turned):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight).real


def turned(every: int, local: bool) -> dict[str, Any]:
    """States of complex numbers cross the border."""
    torch.manual_seed(0)
    first, last = Turned(3), Real(2)
    idle = nn.Sequential(first, *(nn.Identity() for _ in range(every - 1)), last)
    samples = [hl.Sample(torch.randn(1, 3, dtype=torch.complex128), torch.ones(1, 2).double()) for _ in range(30)]
    rates = hl.Hyper(eta_z=0.2)
    learner: LocalLearner | PipelineLearner
    if local:
        learner = LocalLearner(idle, mse, rates, align=True, stacked=False)
    else:
        net = nn.Sequential(first, last)
        learner = PipelineLearner(net, mse, rates, align=True, timeout=20, ticks_per_message=every)
    list(learner.run(samples))
    return {name.rpartition(".")[2] + str(w.shape): w for name, w in learner.state.omega.items()}
