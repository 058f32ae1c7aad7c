"""What the ranks of the tests do: the same small problems that `LocalLearner` gets."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import hamlearn as hl
from benchmarks._faults import fill_disk, strike
from hamlearn.distributed import PipelineLearner
from hamlearn.errors import RankError
from hamlearn.local import LocalLearner
from hamlearn.rules.local import costates, wide
from tests.problems import random_samples

mse = nn.functional.mse_loss
SIZES = (3, 5, 4, 5, 4, 4, 2)
SETTINGS: dict[str, dict[str, Any]] = {
    "unaligned": {},
    "unaligned, sequential": {"order": "sequential"},
    "unaligned, held": {"hold": 4},
    "aligned": {"align": True},
    "aligned, sequential": {"align": True, "order": "sequential"},
    "aligned, held": {"align": True, "hold": 4},
}


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(SIZES)))


def hyper() -> hl.Hyper:
    return hl.Hyper(tau=0.5, eta=0.6, beta={"0.*": 0.02, "*": lambda t: 0.03 / (1 + t)}, eta_z=0.1, phi_first=0.5)


def stream(count: int, seed: int = 1) -> list[hl.Sample]:
    """Targets are missing now and then, gaps vary, and sequences end."""
    samples = random_samples(count, seed=seed, missing=5, length=7, uneven=True)
    samples[-1].boundary = True
    return samples


def facts(learner: LocalLearner | PipelineLearner) -> dict[str, Any]:
    """Everything that must not depend on how many processes there are, of the nodes that are here."""
    state = learner.state
    own = set(state.omega)
    return {
        "t": state.t,
        "h": state.h or {},
        "z": state.z or {},
        "omega": state.omega,
        "theta": {n: w.detach().clone() for n, w in learner.module.named_parameters() if n in own},
    }


def told(report: hl.StepReport) -> tuple[float, Any, Any]:
    return report.t, report.y, report.loss


def local(setting: str, count: int, groups: int) -> tuple[list[Any], dict[str, Any]]:
    learner = LocalLearner(net(), mse, hyper(), groups=groups, stacked=False, **SETTINGS[setting])
    samples = stream(count)
    reports = [told(r) for r in learner.run(samples[: count // 2], max_steps=count // 2)]
    reports += [told(learner.step(sample)) for sample in samples[count // 2 : -3]]
    y = learner.predict(samples[0].u)
    before = facts(learner)
    reports += [told(r) for r in learner.run(samples[-3:])]
    return [reports, before, y], facts(learner)


def pipeline(setting: str, count: int, groups: int) -> tuple[list[Any], dict[str, Any]]:
    learner = PipelineLearner(net(), mse, hyper(), groups=groups, timeout=20, **SETTINGS[setting])
    ends = learner.rank in (0, learner.ranks - 1)
    samples = stream(count)
    shown = [
        hl.Sample(
            s.u if learner.rank == 0 else None,
            s.target if learner.rank == learner.ranks - 1 else None,
            s.tau,
            s.boundary,
        )
        for s in samples
    ]
    first = shown[: count // 2] if ends else None
    reports = [told(r) for r in learner.run(first, max_steps=count // 2)]
    reports += [told(learner.step(sample if ends else None)) for sample in shown[count // 2 : -3]]
    y = learner.predict(samples[0].u if learner.rank == 0 else None)
    before = facts(learner)
    reports += [told(r) for r in learner.run(shown[-3:] if ends else None)]
    return [reports, before, y], facts(learner)


def all_settings(count: int, groups: int) -> dict[str, Any]:
    return {setting: pipeline(setting, count, groups) for setting in SETTINGS}


def saved(setting: str, groups: int, folder: str) -> dict[str, Any]:
    """Thirty samples, a checkpoint in the middle of a sequence, and seven more; what is then."""
    learner = PipelineLearner(net(), mse, hyper(), groups=groups, timeout=20, **SETTINGS[setting])
    list(learner.run(stream(37), max_steps=30, save_to=folder, save_every=10))
    list(learner.run(stream(37), resume=True))
    return facts(learner)


def resumed(setting: str, groups: int, folder: str) -> dict[str, Any]:
    """The same from the checkpoint on, in a learner with other weights."""
    learner = PipelineLearner(net(5), mse, hyper(), groups=groups, timeout=20, **SETTINGS[setting])
    assert learner.resume(folder)
    assert learner.position == 30
    list(learner.run(stream(37), resume=True))
    return facts(learner)


def saved_and_resumed(groups: int, folder: str, write: bool) -> dict[str, Any]:
    work = saved if write else resumed
    return {setting: work(setting, groups, f"{folder}/{setting}") for setting in RESUMED}


RESUMED = ("unaligned", "aligned", "aligned, sequential")


def struck(kind: str, victim: int, folder: str) -> None:
    """An endless run that a fault ends on one rank, which must be the end of it on all of them."""
    learner = PipelineLearner(net(), mse, hyper(), timeout=4, align=True)

    def attacked() -> Iterator[hl.Sample]:
        for k, sample in enumerate(itertools.cycle(stream(35))):
            if k == 22 and learner.rank == victim:
                strike(kind)
            yield sample

    try:
        for _ in learner.run(attacked() if learner.rank != 1 else None, save_to=folder, save_every=10):
            pass
    except BaseException:
        fill_disk()
        with pytest.raises(RankError, match="has failed before"):
            learner.step(stream(1)[0])
        raise


def wide_net() -> nn.Sequential:
    torch.manual_seed(0)
    sizes = (8, 16, 12, 16, 12, 8)
    return nn.Sequential(*(nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(sizes)))


def wide_samples(count: int) -> list[hl.Sample]:
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(count, 2, 8, generator=generator)
    return [hl.Sample(u, None if k % 5 == 3 else u.sin()) for k, u in enumerate(drawn)]


def wide_layers(folder: str | None) -> dict[str, Any]:
    """Layers that count as large, in one process, or on ranks that are stopped and go on from a checkpoint."""
    wide.LARGE = 1
    found = {}
    for setting in RESUMED:
        options, samples = SETTINGS[setting], wide_samples(30)
        if folder is None:
            alone = LocalLearner(wide_net(), mse, hl.Hyper.from_sgd(lr=0.1), groups=5, stacked=False, **options)
            list(alone.run(samples))
            assert any(isinstance(omega, costates.Outer) for omega in alone._ticker.omega)
            found[setting] = facts(alone)
            continue
        for take in (20, None):
            learner = PipelineLearner(wide_net(), mse, hl.Hyper.from_sgd(lr=0.1), groups=5, timeout=20, **options)
            assert learner.resume(f"{folder}/{setting}") == (take is None)
            list(learner.run(samples, take, resume=True, save_to=f"{folder}/{setting}", save_every=10))
        found[setting] = facts(learner)
    return found


EVERY = 5


def replicas(folder: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two pipelines of two ranks, each with a stream of its own: undisturbed, and resumed from a checkpoint."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "pipeline"))
    found = []
    for take in (33, None):
        learner = PipelineLearner(
            net(0 if take else 9), mse, hyper(), groups=4, align=True, mesh=mesh, average_every=EVERY, timeout=20
        )
        samples = stream(47, seed=dist.get_rank() // 2)
        assert learner.resume(folder) == (take is None)
        list(learner.run(samples, take, resume=True, save_to=folder, save_every=11))
        if take:
            list(learner.run(samples, resume=True))
        found.append(facts(learner))
    return found[0], found[1]


def averaged(count: int, given: tuple[nn.Sequential, Any] | None = None) -> list[dict[str, Any]]:
    """What two local learners come to that are averaged by hand; of another net and groups where given."""
    module, groups = given or (net(), 4)
    learners = [
        LocalLearner(copy.deepcopy(module), mse, hyper(), groups=groups, align=True, stacked=False)
        for _ in range(2)
    ]
    streams = [stream(count, seed=seed) for seed in range(2)]
    for k in range(count):
        for learner, samples in zip(learners, streams, strict=True):
            learner.step(samples[k])
        if (k + 1) % EVERY == 0:
            with torch.no_grad():
                for a, b in zip(*(learner.module.parameters() for learner in learners), strict=True):
                    mean = (a + b) / 2
                    a.copy_(mean)
                    b.copy_(mean)
                for a, b in zip(*(learner.state.omega.values() for learner in learners), strict=True):
                    mean = (a + b) / 2
                    a.copy_(mean)
                    b.copy_(mean)
    for learner in learners:
        learner.flush()
    return [facts(learner) for learner in learners]
