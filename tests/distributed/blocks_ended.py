"""What ends or interrupts a pipeline with one message for several ticks: checkpoints, faults, mistakes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import hamlearn as hl
from benchmarks._faults import strike
from hamlearn.distributed import PipelineLearner
from hamlearn.distributed.messages import HEADER, Sender
from hamlearn.errors import ConfigError, HamlearnError, RankError, StreamError
from tests.distributed import jobs
from tests.distributed.blocks import SETTINGS, at_ends, own_facts, pipeline
from tests.distributed.jobs import mse


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
    assert learner.position in (9, 18, 27)
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
        counts[sender.kind] = counts.get(sender.kind, 0) + 1
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


def spoilt() -> tuple[str, int]:
    """A sample that is not finite, within a message: those before it are shown first."""
    learner = pipeline(8, "parallel", groups=2, timeout=5)
    samples = jobs.stream(30)
    if learner.rank == 0:
        samples[19].u[0] = torch.nan
    with pytest.raises(HamlearnError) as error:
        list(learner.run(samples))
    return type(error.value).__name__, learner.position


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
