"""A pipeline over processes computes what one process computes, to the bit."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from tests.comparing import same
from tests.distributed import jobs
from tests.distributed.ranks import values


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The facts of all ranks as those of one learner; no two ranks may hold the same."""
    assert len({part["t"] for part in parts}) == 1
    whole: dict[str, Any] = {"t": parts[0]["t"], "h": {}, "z": {}, "omega": {}, "theta": {}}
    for part in parts:
        for kind in ("h", "z", "omega", "theta"):
            assert not whole[kind].keys() & part[kind].keys()
            whole[kind] |= part[kind]
    return whole


COUNT = 24
judged = functools.cache(lambda setting: jobs.local(setting, COUNT, 4))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_states_costates_weights_and_reports_are_those_of_a_local_learner_bit_for_bit(
    ranks: int, tmp_path: Path
) -> None:
    found = values(jobs.all_settings, ranks, tmp_path, COUNT, 4)
    for setting in jobs.SETTINGS:
        (reports, before), after = judged(setting)
        of_ranks = [found[rank][setting] for rank in range(ranks)]
        assert same(joined([middle[1] for middle, _ in of_ranks]), before), setting
        assert same(joined([last for _, last in of_ranks]), after), setting
        assert same(of_ranks[-1][0][0], reports), setting
        for middle, _ in of_ranks[:-1]:
            assert [t for t, _, _ in middle[0]] == [t for t, _, _ in reports], setting


@pytest.mark.parametrize("work", [jobs.skipped, jobs.turned])
def test_states_read_at_two_depths_complex_ones_and_changing_batches_pass_from_rank_to_rank(
    work: Any, tmp_path: Path
) -> None:
    assert same(joined(values(work, 2, tmp_path, False)), work(True))
