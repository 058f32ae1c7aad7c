"""Checkpoints of pipelines: whole or absent, by name, for any number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

import hamlearn as hl
from hamlearn.distributed import PipelineLearner, load_local
from hamlearn.errors import CheckpointError
from hamlearn.local import LocalLearner
from tests.comparing import same
from tests.distributed import jobs
from tests.distributed.ranks import values
from tests.distributed.test_equal import joined


def test_a_checkpoint_of_four_ranks_goes_on_in_two_in_one_and_in_a_local_learner_bit_for_bit(
    tmp_path: Path,
) -> None:
    folder = str(tmp_path / "checkpoints")
    written = values(jobs.saved_and_resumed, 4, tmp_path / "four", 4, folder, True)
    two = values(jobs.saved_and_resumed, 2, tmp_path / "two", 4, folder, False)
    one = jobs.saved_and_resumed(4, folder, False)
    for setting in jobs.RESUMED:
        expected = joined([rank[setting] for rank in written])
        assert same(joined([rank[setting] for rank in two]), expected), setting
        assert same(one[setting], expected), setting
        names = sorted(path.name for path in Path(folder, setting).iterdir())
        assert names == ["tick-000000000020", "tick-000000000030"]
        local = LocalLearner(
            jobs.net(5), jobs.mse, jobs.hyper(), groups=4, stacked=False, **jobs.SETTINGS[setting]
        )
        load_local(local, Path(folder, setting))
        list(local.run(jobs.stream(37), resume=True))
        assert same(jobs.facts(local), expected), setting


def pipeline(groups: int | None, **setting: bool) -> PipelineLearner:
    return PipelineLearner(jobs.net(), jobs.mse, jobs.hyper(), groups=groups, **setting)


def test_other_groups_take_weights_and_costates_and_refuse_samples_in_flight_unless_they_may_drop_them(
    tmp_path: Path,
) -> None:
    learner = pipeline(4, align=True)
    list(learner.run(jobs.stream(9), max_steps=9))
    learner.save(tmp_path)
    expected = jobs.facts(learner)
    other = pipeline(2, align=True)
    before = jobs.facts(other)
    with pytest.raises(CheckpointError, match=r"samples in flight or states.*drop=True"):
        other.load(tmp_path)
    assert same(jobs.facts(other), before)
    for taker in (
        pipeline(2, align=True),
        LocalLearner(jobs.net(5), jobs.mse, jobs.hyper(), groups=2, align=True),
    ):
        if isinstance(taker, PipelineLearner):
            taker.load(tmp_path, drop=True)
        else:
            load_local(taker, tmp_path, drop=True)
        found = jobs.facts(taker)
        assert found["h"] == {}
        assert all(same(found[kind], expected[kind]) for kind in ("t", "omega", "theta"))
    learner.flush()
    learner.save(tmp_path)
    flushed = pipeline(2, align=True)
    flushed.load(tmp_path)
    assert same(jobs.facts(flushed)["omega"], jobs.facts(learner)["omega"])


def test_a_checkpoint_of_another_setting_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    learner = pipeline(2)
    list(learner.run(jobs.stream(7)))
    learner.save(tmp_path)
    with pytest.raises(CheckpointError, match="align = False, this learner has True"):
        pipeline(2, align=True).load(tmp_path)
    other = PipelineLearner(jobs.net(), jobs.mse, hl.Hyper(), groups=2)
    with pytest.raises(CheckpointError, match="new_hyper=True"):
        other.load(tmp_path)
    (next(tmp_path.glob("tick-*")) / "rank-7.safetensors").write_text("left by a rank that died here before")
    pipeline(2).load(tmp_path)
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        pipeline(2).load(tmp_path / "elsewhere")
    assert not pipeline(2).resume(tmp_path / "elsewhere")
    next(tmp_path.glob("tick-*/rank-0.safetensors")).write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="cannot be read"):
        pipeline(2).load(tmp_path)
