"""What the ranks of the tests do with one message for several ticks, and the local learner that judges them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import hamlearn as hl
from benchmarks._faults import strike
from hamlearn.distributed import PipelineLearner
from hamlearn.distributed.links import HEADER, Sender
from hamlearn.errors import ConfigError, HamlearnError, RankError, StreamError
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
    """Runs that pause anywhere, steps one by one, a run left early, predictions, a flush and a reset between."""
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
    reports += [told(r) for r in learner.run(at_ends(learner, samples[60:]))]
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


class Counted:
    """A stream that knows its place."""

    def __init__(self, count: int) -> None:
        self.samples, self.position = jobs.stream(count), 0

    def __iter__(self) -> Iterator[hl.Sample]:
        while self.position < len(self.samples):
            self.position += 1
            yield self.samples[self.position - 1]

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


SAVED = 37


def saved(folder: str) -> dict[str, Any]:
    """Checkpoints in the middle of messages, and on to the end."""
    found = {}
    for setting in SETTINGS:
        learner = pipeline(5, setting)
        place = f"{folder}/{setting}"
        list(learner.run(at_ends(learner, Counted(60)), max_steps=SAVED, save_to=place, save_every=SAVED))
        list(learner.run(at_ends(learner, jobs.stream(60)), resume=True))
        found[setting] = own_facts(learner)
    return found


def resumed(folder: str) -> dict[str, Any]:
    found = {}
    for setting in SETTINGS:
        learner = pipeline(5, setting, seed=5)
        assert learner.resume(f"{folder}/{setting}")
        assert learner.position == SAVED
        list(learner.run(at_ends(learner, Counted(60)), resume=True))
        found[setting] = own_facts(learner)
    return found


def killed(folder: str) -> None:
    """A run that SIGKILL ends on its last rank, in the middle of a message."""
    learner = pipeline(4, "parallel", timeout=4)

    def attacked() -> Iterator[hl.Sample]:
        for k, sample in enumerate(itertools.cycle(jobs.stream(35))):
            if k == 29 and learner.rank == learner.ranks - 1:
                strike("kill")
            yield sample

    for _ in learner.run(at_ends(learner, attacked()), save_to=folder, save_every=9):
        pass


def restarted(folder: str) -> dict[str, Any]:
    learner = pipeline(4, "parallel", seed=7)
    assert learner.resume(folder)
    assert learner.position in (18, 27)
    list(learner.run(at_ends(learner, jobs.stream(35)), resume=True))
    return own_facts(learner)


def unequal() -> list[str]:
    """On two ranks: what each of them is told."""
    rank, found = dist.get_rank(), []
    for setting in ({"ticks_per_message": 2 + 3 * rank, "align": True}, {"ticks_per_message": 4}):
        with pytest.raises(ConfigError) as error:
            PipelineLearner(jobs.net(), mse, hl.Hyper(), timeout=20, **setting)
        found.append(str(error.value))
    return found


def messages(every: int, hold: int) -> dict[int, int]:
    """How many messages of each kind this rank sends for sixty ticks."""
    learner = pipeline(every, "parallel", hold=hold)
    counts: dict[int, int] = {}
    put = Sender.put

    def counted(sender: Sender, *args: Any) -> None:
        counts[sender._kind] = counts.get(sender._kind, 0) + 1
        put(sender, *args)

    list(learner.run(jobs.stream(60 // hold), max_steps=60 // hold))
    Sender.put = counted  # type: ignore[method-assign]
    try:
        list(learner.run(jobs.stream(60 // hold), max_steps=60 // hold))
    finally:
        Sender.put = put  # type: ignore[method-assign]
    assert counts.pop(HEADER, None) == (None if learner.rank else 60 // (hold * max(1, every // hold)) + 1)
    return counts


def left_open() -> str:
    """A run that is left between samples of one message, and neither ended nor closed."""
    learner = pipeline(16, "parallel", groups=2)
    samples = jobs.stream(40)
    reports = learner.run(samples)
    for _ in range(3):
        next(reports)
    with pytest.raises(StreamError) as error:
        learner.step(samples[0])
    for run in (learner.run(samples), learner.run(samples)):
        with pytest.raises(StreamError):
            next(run)
    rest = list(reports)
    assert len(rest) == 37
    return str(error.value)


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


def spoilt() -> tuple[str, int]:
    """A sample that is not finite, within a message: those before it are shown first."""
    learner = pipeline(8, "parallel", groups=2, timeout=5)
    samples = jobs.stream(30)
    if learner.rank == 0:
        samples[19].u[0] = torch.nan
    with pytest.raises(HamlearnError) as error:
        list(learner.run(samples))
    return type(error.value).__name__, learner.position


def replicas(every: int) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "pipeline"))
    learner = pipeline(every, "parallel", mesh=mesh, average_every=jobs.EVERY)
    list(learner.run(jobs.stream(47, seed=dist.get_rank() // 2)))
    return own_facts(learner)


def alone_reset() -> str:
    """One rank is reset and the other is not."""
    learner = pipeline(3, "parallel", groups=2, timeout=5)
    samples = jobs.stream(20)
    list(learner.run(samples, max_steps=9))
    if learner.rank:
        learner.reset()
    with pytest.raises(RankError) as error:
        list(learner.run(samples))
    return str(error.value)
