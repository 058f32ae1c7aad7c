"""Checkpoints of pipelines: whole or absent, continued by the same ranks, taken by name by others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hamlearn as hl
from hamlearn.distributed import PipelineLearner, load_local
from hamlearn.errors import CheckpointError
from hamlearn.local import LocalLearner
from hamlearn.state import checkpoint
from tests.comparing import same
from tests.distributed import jobs
from tests.distributed.ranks import values
from tests.distributed.test_equal import joined


def test_a_checkpoint_of_two_ranks_continues_bit_for_bit(tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoints")
    written = values(jobs.saved_and_resumed, 2, tmp_path / "first", 4, folder, True)
    found = values(jobs.saved_and_resumed, 2, tmp_path / "second", 4, folder, False)
    for setting in jobs.RESUMED:
        assert same(joined([rank[setting] for rank in found]), joined([rank[setting] for rank in written])), (
            setting
        )
        names = sorted(path.name for path in Path(folder, setting).iterdir())
        assert names == ["tick-000000000020", "tick-000000000030"]


def pipeline(groups: int | None, **setting: str) -> PipelineLearner:
    return PipelineLearner(jobs.net(), jobs.mse, jobs.hyper(), groups=groups, **setting)


def saved_by_two(folder: str) -> dict[str, Any]:
    learner = pipeline(4)
    list(learner.run(jobs.stream(9), max_steps=9))
    learner.save(folder)
    return jobs.facts(learner)


def test_other_ranks_and_other_groups_take_weights_and_costates_by_name_if_they_may_drop_the_rest(
    tmp_path: Path,
) -> None:
    expected = joined(values(saved_by_two, 2, tmp_path / "ranks", str(tmp_path)))
    for groups, cause in ((4, "saved by 2 ranks, this job has 1"), (2, r"saved with the groups .* this learner")):
        other = pipeline(groups)
        before = jobs.facts(other)
        with pytest.raises(CheckpointError, match=f"{cause}.*drop=True"):
            other.load(tmp_path)
        assert same(jobs.facts(other), before)
        other.load(tmp_path, drop=True)
        local = LocalLearner(jobs.net(5), jobs.mse, jobs.hyper(), groups=groups, align=True, stacked=False)
        load_local(local, tmp_path)
        for taker in (other, local):
            found = jobs.facts(taker)
            assert found["h"] == {}
            assert taker.position == 9
            assert all(same(found[kind], expected[kind]) for kind in ("t", "omega", "theta"))
            list(taker.run(jobs.stream(20), resume=True))
        assert same(jobs.facts(other), jobs.facts(local))


def test_a_checkpoint_of_another_setting_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    learner = pipeline(2)
    list(learner.run(jobs.stream(7)))
    learner.save(tmp_path)
    with pytest.raises(CheckpointError, match="order = 'parallel', this learner has 'sequential'"):
        pipeline(2, order="sequential").load(tmp_path)
    other = PipelineLearner(jobs.net(), jobs.mse, hl.Hyper(), groups=2)
    with pytest.raises(CheckpointError, match="new_hyper=True"):
        other.load(tmp_path)
    (next(tmp_path.glob("tick-*")) / "rank-7.safetensors").write_text("left by a rank that died here before")
    pipeline(2).load(tmp_path)
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        pipeline(2).load(tmp_path / "elsewhere")
    assert not pipeline(2).resume(tmp_path / "elsewhere")
    file = next(tmp_path.glob("tick-*/rank-0.safetensors"))
    checkpoint.write(file, {}, {"config": {}})
    with pytest.raises(CheckpointError, match="was saved with parameter or buffer = None"):
        pipeline(2).load(tmp_path)
    file.write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="cannot be read"):
        pipeline(2).load(tmp_path)
