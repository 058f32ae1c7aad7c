"""Agents by the kernels that a GPU takes, run where there is none: the same steps."""

from __future__ import annotations

import pytest

import hamlearn as hl
from hamlearn.engine.lanes import runner
from hamlearn.engine.lanes.lanes import LaneLayout
from hamlearn.loops import backends
from tests.agents.feeds import alone, assert_as_alone, feed, maker
from tests.agents.test_trouble import HYPER, SEEDS
from tests.loops.emulated import InThreads


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes in pairs, as on a GPU, and a block of threads for each member."""
    monkeypatch.setattr(backends, "InC", InThreads)


def test_agents_with_even_and_uneven_streams_take_the_steps_of_single_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "LaneLayout", lambda members, dtype, width: LaneLayout(members, dtype, 2))
    make, feeds = maker(credit=hl.Forward()), [feed(number, 12 + 3 * number) for number in range(4)]
    population = hl.Population(make, HYPER, SEEDS, streams=feeds)
    reports = list(population.run(chunk=10))
    assert_as_alone(population, reports, alone(make, HYPER, SEEDS, feeds))
