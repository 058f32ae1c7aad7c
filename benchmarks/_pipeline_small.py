"""Ticks of a chain of small layers in two processes, with one message for one tick and for several.

Eight layers of 64 with tanh, batch 1, in two groups. A message takes about as long as a tick, so that two
processes which exchange one in every tick are slower than one process. With one message for K ticks, what a group
computes reaches the other one K ticks later.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hamlearn.distributed import PipelineLearner
from hamlearn.hyper import Hyper
from hamlearn.local import LocalLearner
from hamlearn.sample import Sample

EVERY = (1, 4, 16)
WIDTH = 64
ALONE = "one process"


def small(rounds: int, ticks: int) -> dict[str, Any]:
    """Microseconds a tick by way, on the wall and of the processor of each rank; a round of each, in turn."""
    rank, hyper = dist.get_rank(), Hyper.from_sgd(lr=1e-3)
    samples = _samples(ticks)
    learners: dict[str, Any] = {
        f"two processes, ticks_per_message={every}": PipelineLearner(
            _net(), nn.functional.mse_loss, hyper, align=True, ticks_per_message=every
        )
        for every in EVERY
    }
    if rank == 0:
        local = LocalLearner(_net(), nn.functional.mse_loss, hyper, groups=2, align=True, stacked=False)
        learners = {ALONE: local} | learners
    wall: dict[str, list[float]] = {}
    used: dict[str, list[float]] = {}
    for index in range(rounds + 1):
        for name, learner in learners.items():
            if name != ALONE:
                dist.barrier()
            begin, busy = time.perf_counter(), time.process_time()
            for _ in learner.run(samples, max_steps=ticks):
                pass
            if index:  # the first round fills the pipelines
                wall.setdefault(name, []).append((time.perf_counter() - begin) / ticks)
                used.setdefault(name, []).append((time.process_time() - busy) / ticks)
    told: list[Any] = [None, None]
    dist.all_gather_object(told, {name: round(1e6 * statistics.median(x), 1) for name, x in used.items()})
    medians = {name: round(1e6 * statistics.median(x), 1) for name, x in wall.items()}
    two = [name for name in learners if name != ALONE]
    found: dict[str, Any] = {
        "layers": 8,
        "width": WIDTH,
        "batch": 1,
        "microseconds a tick": medians,
        "microseconds a tick, fastest round": {name: round(1e6 * min(x), 1) for name, x in wall.items()},
        "processor microseconds a tick, by rank": told,
    }
    if rank == 0:
        busier = {name: max(each[name] for each in told) for name in two}
        found["two processes / one"] = {name: round(medians[ALONE] / medians[name], 3) for name in two}
        found["two processes / one, by the processor time of the busier rank"] = {
            name: round(told[0][ALONE] / busier[name], 3) for name in two
        }
    return found


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(8)))


def _samples(count: int) -> list[Sample]:
    generator = torch.Generator().manual_seed(0)
    u, target = torch.randn(2, count, 1, WIDTH, generator=generator)
    return [Sample(a, b) for a, b in zip(u, target, strict=True)]
