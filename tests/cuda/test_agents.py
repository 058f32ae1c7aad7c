"""Agents on a GPU end where learners end that run alone on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import hamlearn as hl
from hamlearn.loops import backends
from tests.agents.feeds import Make, alone, assert_member, feed, maker
from tests.agents.test_as_alone import CASES, SEEDS
from tests.agents.test_trouble import HYPER, poisoned
from tests.cuda.device import moved, on_gpu

pytestmark = on_gpu
FEEDS = [feed(number, 23 + 5 * number) for number in range(4)]


@pytest.fixture(autouse=True)
def one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left to `torch.compile`."""
    monkeypatch.setattr(backends, "OnCuda", None)


def there(make: Make, **setting: Any) -> Make:
    def made(hyper: hl.Hyper) -> hl.Learner:
        learner = make(hyper)
        loss = learner._eager.parts.system.loss
        return hl.Learner(learner.network.cuda(), loss, hyper, **setting)

    return made


def brought(feeds: list[list[hl.Sample]]) -> list[list[hl.Sample]]:
    return [[moved(sample) for sample in samples] for samples in feeds]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("chunk", [9, 64])
def test_agents_are_their_single_runs_in_float64(case: str, chunk: int) -> None:
    kind, hyper, setting = CASES[case]
    population = hl.Population(there(maker(kind), **setting), hyper, SEEDS, streams=brought(FEEDS))
    reports = list(population.run(chunk=chunk))
    for number, (learner, expected, _) in enumerate(alone(maker(kind, **setting), hyper, SEEDS, FEEDS)):
        assert_member(population.member(number), learner)
        for k, report in enumerate(expected):
            torch.testing.assert_close(reports[k].y[number].cpu(), report.y, rtol=1e-12, atol=1e-12)


def test_1024_mlps_in_float32_stay_with_their_single_runs() -> None:
    make, hyper = maker("mlp", torch.float32), [hl.Hyper.from_sgd(lr=0.02, momentum=0.5)]
    feeds = [feed(number % 50, 20 + number % 13, classes=True, dtype=torch.float32) for number in range(1024)]
    population = hl.Population(there(make), hyper, range(1024), streams=brought(feeds))
    assert len(list(population.run())) == 32
    singles = alone(make, hyper, range(0, 1024, 31), feeds[::31])
    for place, (learner, _, _) in enumerate(singles):
        pairs = zip(population.member(31 * place).network.parameters(), learner.network.parameters(), strict=True)
        for a, b in pairs:
            torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-5)


def test_a_bad_agent_is_set_aside_and_a_skipping_one_skips() -> None:
    feeds = [feed(0, 20), poisoned(1, 25, 5, 11, 12), poisoned(2, 30, 0, 12, 13, 29), feed(3, 35)]
    for policy, wrong in (("raise", [1, 2]), ("skip", [])):
        population = hl.Population(there(maker(), on_nonfinite=policy), HYPER, SEEDS, streams=brought(feeds))
        if wrong:
            with pytest.warns(RuntimeWarning, match="is frozen"):
                list(population.run(chunk=16))
        else:
            list(population.run(chunk=16))
        assert sorted(population.aside) == wrong
        for number, (learner, _, _) in enumerate(alone(maker(on_nonfinite=policy), HYPER, SEEDS, feeds)):
            assert_member(population.member(number), learner)


def test_agents_saved_on_the_gpu_go_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    make = there(maker())
    first, second = (hl.Population(make, HYPER, SEEDS, streams=brought(FEEDS)) for _ in range(2))
    for step, _ in enumerate(first.run(chunk=16), start=1):
        if step == 11:
            first.save(tmp_path / "agents")
    second.load(tmp_path / "agents")
    list(second.run(chunk=16, resume=True))
    for one, other in zip(first.members, second.members, strict=True):
        for a, b in zip(one.network.parameters(), other.network.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
