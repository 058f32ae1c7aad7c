"""What cannot work is said on every rank, before anything begins."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.distributed import PipelineLearner
from hamlearn.errors import ConfigError, RankError, SampleError, StreamError
from hamlearn.local import Graph
from tests.distributed import jobs
from tests.distributed.ranks import values


def refused(*args: object, **setting: object) -> str:
    try:
        PipelineLearner(*args, timeout=20, **setting)  # type: ignore[arg-type]
    except ConfigError as error:
        return str(error)
    return ""


def attempts() -> list[str]:
    """On three ranks: what each of them is told."""
    rank = torch.distributed.get_rank()
    short = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    told = [refused(short, jobs.mse, hl.Hyper(), groups=2)]
    told.append(refused(jobs.net(), jobs.mse, hl.Hyper(beta=0.1 if rank == 1 else 0.2)))
    told.append(refused(jobs.net(), jobs.mse, hl.Hyper(), hold=0 if rank == 2 else 1))
    told.append(refused(jobs.net(seed=1 if rank == 2 else 0), jobs.mse, hl.Hyper()))
    return told


def test_more_ranks_than_groups_and_unequal_settings_are_errors_on_every_rank(tmp_path: Path) -> None:
    for rank, told in enumerate(values(attempts, 3, tmp_path)):
        groups, unequal, one, begun = told
        assert "3 ranks, but only 2 groups" in groups
        assert "rank 1 has hyper" in unequal
        assert ("hold=0 must be" in one) if rank == 2 else ("rank 2 cannot continue: hold=0" in one)
        assert "rank 2 has weights" in begun


def out_of_step(fault: str) -> str:
    """Two ranks that do not do the same."""
    learner = PipelineLearner(jobs.net(), jobs.mse, jobs.hyper(), timeout=5)
    samples = jobs.stream(6)
    try:
        if fault == "targets end early" and learner.rank:
            samples = samples[:4]
        if fault == "another boundary" and learner.rank:
            samples[3].boundary = True
        for sample in samples[:2]:
            learner.step(sample)
        if fault == "one is reset" and learner.rank:
            learner.reset()
        list(learner.run(samples[2:]))
    except (RankError, StreamError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def all_out_of_step() -> list[str]:
    return [out_of_step(fault) for fault in ("targets end early", "another boundary", "one is reset")]


def test_ranks_that_fall_out_of_step_say_so(tmp_path: Path) -> None:
    first, last = values(all_out_of_step, 2, tmp_path)
    assert all(told.startswith("RankError") for told in first)
    assert "StreamError: the targets came to their end after 2 samples" in last[0]
    assert "boundary=False, the last one has a target with tau=0.6, boundary=True" in last[1]
    assert "this one at tick 2 after a reset: call" in last[2]


def test_a_sample_that_does_not_fit_is_refused_before_other_ranks_hear_of_it() -> None:
    learner = PipelineLearner(jobs.net(), jobs.mse, jobs.hyper(), groups=2)
    good = jobs.stream(1)[0]
    learner.step(good)
    before = jobs.facts(learner)
    with pytest.raises(SampleError):
        learner.step(hl.Sample(torch.ones(2, 9)))
    with pytest.raises(SampleError, match=r"hl\.Sample"):
        learner.step(good.u)  # type: ignore[arg-type]
    assert jobs.facts(learner)["t"] == before["t"]
    learner.step(good)


class Twice(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b


def cuts() -> list[str]:
    """On two ranks: graphs that cannot be cut into two."""
    layers = {name: nn.Linear(3, 3) for name in "abc"}
    skip = Graph(
        layers | {"d": Twice(), "e": nn.Linear(3, 3)},
        [("u", "a"), ("a", "b"), ("b", "c"), ("c", "d"), ("a", "d"), ("d", "e")],
    )
    shared = nn.Linear(3, 3)
    return [
        refused(skip, jobs.mse, hl.Hyper(), groups=[1, 2, 3, 4]),
        refused(nn.Sequential(shared, nn.Tanh(), shared, nn.Tanh()), jobs.mse, hl.Hyper()),
        refused(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), jobs.mse, hl.Hyper()),
        refused(jobs.net(), jobs.mse, hl.Hyper(), on_nonfinite="skip"),
        refused(jobs.net(), jobs.mse, hl.Hyper(), align=False),
    ]


def test_graphs_that_cannot_be_cut_between_ranks_are_named(tmp_path: Path) -> None:
    for told in values(cuts, 2, tmp_path):
        skip, shared, weightless, skipping, unaligned = told
        assert "the edge 'a' → 'd' passes over the border before rank 1" in skip
        assert "share a weight" in shared
        assert "no weights to learn" in weightless
        assert "on_nonfinite='skip'" in skipping
        assert "leave align=True" in unaligned


def test_ranks_that_were_started_but_are_not_connected_do_not_learn_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"2 ranks were started .* call torch\.distributed\.init_process_group"):
        PipelineLearner(jobs.net(), jobs.mse, jobs.hyper())
