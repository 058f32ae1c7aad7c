"""One message for K ticks is a delay of K ticks between groups, as K − 1 idle nodes in a local learner are."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

import hamlearn as hl
from hamlearn.distributed import PipelineLearner, load_local
from hamlearn.distributed.folders import complete
from hamlearn.distributed.messages import COSTATE, STATE
from hamlearn.errors import CheckpointError, ConfigError
from hamlearn.local import LocalLearner
from tests.comparing import same
from tests.distributed import blocks, blocks_ended, jobs
from tests.distributed.ranks import launch, values
from tests.distributed.test_equal import joined

EVERIES = (1, 2, 5)
judged = functools.cache(lambda every, setting: blocks.ways(blocks.judge(every, setting)))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_all_is_that_of_a_local_learner_with_idle_nodes_between_the_groups_bit_for_bit(
    ranks: int, tmp_path: Path
) -> None:
    of_ranks = values(blocks.all_ways, ranks, tmp_path, EVERIES)
    for every in EVERIES:
        for setting in blocks.SETTINGS:
            reports, *expected = judged(every, setting)
            own = [rank[every, setting] for rank in of_ranks]
            assert same(own[-1][0], reports), (every, setting)
            for others in own[:-1]:
                assert [t for t, _, _ in others[0]] == [t for t, _, _ in reports]
            for index, one in enumerate(expected, 1):
                parts = [rank[index] for rank in own]
                if isinstance(one, torch.Tensor):
                    assert same(parts[-1], one), (every, setting, index)
                elif isinstance(one, tuple):
                    assert same(joined([part[0] for part in parts]), one[0]), (every, setting, index)
                    assert same(parts[-1][1], one[1])
                else:
                    assert same(joined(parts), one), (every, setting, index)


def close(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(
        a[kind].keys() == b[kind].keys()
        and all(torch.allclose(a[kind][name], b[kind][name], rtol=0, atol=1e-12) for name in a[kind])
        for kind in ("h", "z", "omega", "theta")
    )


@pytest.mark.parametrize("every", [2, 5])
def test_costates_that_meet_at_a_node_from_different_depths_are_dissipated_each_on_its_own_way(
    every: int, tmp_path: Path
) -> None:
    expected = blocks.skipped(every, True)
    for ranks in (1, 2):
        found = joined(values(blocks.skipped, ranks, tmp_path / str(ranks), every, False))
        assert close(found, expected)


def test_a_checkpoint_between_two_messages_goes_on_in_any_number_of_ranks_bit_for_bit(tmp_path: Path) -> None:
    folder = str(tmp_path / "saved")
    written = values(blocks_ended.saved, 3, tmp_path / "three", folder)
    for ranks in (1, 2, 3):
        found = values(blocks_ended.resumed, ranks, tmp_path / str(ranks), folder)
        for setting in blocks.SETTINGS:
            learner = blocks.judge(5, setting)
            list(learner.run(jobs.stream(60)))
            expected = blocks.own_facts(learner)
            assert same(joined([rank[setting] for rank in written]), expected), setting
            assert same(joined([rank[setting] for rank in found]), expected), (ranks, setting)


def test_after_a_kill_all_goes_on_from_the_last_checkpoint_as_if_nothing_had_happened(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    first, middle, _ = launch(blocks_ended.killed, 3, tmp_path / "killed", str(folder), limit=30, lost=2)
    assert {first.error, middle.error} <= {"RankError", "CheckpointError"}
    assert complete(folder)
    learner = blocks.judge(4, "parallel")
    list(learner.run(jobs.stream(35)))
    found = values(blocks_ended.restarted, 2, tmp_path / "again", str(folder))
    assert same(joined(found), blocks.own_facts(learner))


def test_samples_in_flight_of_another_delay_are_refused_by_name_unless_they_may_be_dropped(tmp_path: Path) -> None:
    learner = blocks.pipeline(3, "parallel")
    list(learner.run(jobs.stream(20), max_steps=20))
    learner.save(tmp_path)
    other = blocks.pipeline(4, "parallel", seed=3)
    local = LocalLearner(jobs.net(4), jobs.mse, jobs.hyper(), groups=4, align=True, stacked=False)
    before = jobs.facts(other)
    with pytest.raises(CheckpointError, match=r"ticks_per_message=3, this learner has 4, .* drop=True"):
        other.load(tmp_path)
    with pytest.raises(CheckpointError, match=r"ticks_per_message=3, this learner has 1, .* drop=True"):
        load_local(local, tmp_path)
    assert same(jobs.facts(other), before)
    other.load(tmp_path, drop=True)
    assert jobs.facts(other)["h"] == {}
    assert same(jobs.facts(other)["theta"], jobs.facts(learner)["theta"])
    learner.flush()
    learner.save(tmp_path)
    for flushed in (blocks.pipeline(4, "parallel", seed=3), blocks.pipeline(3, "parallel", groups=2)):
        flushed.load(tmp_path)
        assert same(jobs.facts(flushed)["omega"], jobs.facts(learner)["omega"])
    load_local(local, tmp_path)
    assert same(jobs.facts(local)["theta"], jobs.facts(learner)["theta"])


@pytest.mark.parametrize("ticks", [0, -2, 1.5, "4", True, None])
def test_what_is_no_number_of_ticks_is_refused(ticks: Any) -> None:
    with pytest.raises(ConfigError, match=r"ticks_per_message=.* must be a number of ticks, 1 or more"):
        PipelineLearner(jobs.net(), jobs.mse, hl.Hyper(), align=True, ticks_per_message=ticks)


def test_ranks_that_were_given_different_numbers_say_so_and_without_alignment_none_but_one_is_taken(
    tmp_path: Path,
) -> None:
    for different, unaligned in values(blocks_ended.unequal, 2, tmp_path):
        assert "rank 1 has ticks_per_message = 5, rank 0 has 2" in different
        assert "ticks_per_message=4 needs align=True" in unaligned


@pytest.mark.parametrize(("every", "hold"), [(1, 1), (5, 1), (12, 3), (2, 6)])
def test_neighbours_exchange_one_message_for_so_many_ticks(every: int, hold: int, tmp_path: Path) -> None:
    first, last = values(blocks_ended.messages, 2, tmp_path, every, hold)
    assert first == {STATE: 60 // every}
    assert last == {COSTATE: 60 // every}


def test_a_run_that_is_left_within_a_message_is_named_before_another_begins(tmp_path: Path) -> None:
    for message in values(blocks_ended.left_open, 2, tmp_path):
        assert "samples are announced that it has not shown: go on with it, or close() it" in message


def test_batches_may_change_within_a_message_and_a_live_feed_is_read_as_it_comes(tmp_path: Path) -> None:
    expected = blocks.growing(True)
    assert same(joined(values(blocks.growing, 2, tmp_path, False)), expected)


def test_samples_before_one_that_is_refused_are_shown_though_they_were_read_with_it(tmp_path: Path) -> None:
    first, last = values(blocks_ended.spoilt, 2, tmp_path)
    assert first == ("NonFiniteError", 19)
    assert last[0] == "RankError"


def test_replicas_average_as_with_one_message_a_tick(tmp_path: Path) -> None:
    found = values(blocks.replicas, 4, tmp_path, 3)
    for replica, expected in enumerate(jobs.averaged(47, blocks.padded(3))):
        own = {kind: expected[kind] for kind in ("t", "omega", "theta")}
        got = joined(found[2 * replica : 2 * replica + 2])
        assert same({kind: got[kind] for kind in own}, own)


@pytest.mark.parametrize("every", [1, 3])
def test_states_may_be_complex(every: int, tmp_path: Path) -> None:
    first, last = values(blocks.turned, 2, tmp_path, every, False)
    assert same(first | last, blocks.turned(every, True))


def test_a_rank_that_is_reset_alone_is_told_from_the_others(tmp_path: Path) -> None:
    _, last = values(blocks_ended.alone_reset, 2, tmp_path)
    assert "this one at tick 9 after a reset: call" in last
