"""`hamlearn run` with a pipeline: one more line in the file, whether torchrun starts one rank or several."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch.distributed as dist

from hamlearn.distributed.storage import Saved
from hamlearn.errors import ConfigError
from hamlearn.experiments.run import run
from tests.comparing import same
from tests.distributed.ranks import values

CONFIG = """
[run]
steps = 30
seed = 3
[stream]
kind = "signals.henon"
[network]
hidden = [6, 5, 4]
[learner]
pipeline = 4
[checkpoint]
every = 10
"""


def weights(folder: Path) -> dict[str, object]:
    saved = Saved(folder / "checkpoints")
    return saved.read(name for name in saved.forms if name.startswith(("theta/", "omega/", "flight/")))


def work(path: str, out: str) -> int:
    assert dist.is_initialized()
    return run(path, out=out, progress=False).steps


def test_a_file_with_one_more_line_runs_on_one_rank_and_on_three_with_the_same_weights(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    assert "RANK" not in os.environ
    result = run(path, out=tmp_path / "one", progress=False)
    assert result.steps == 30
    assert json.loads((tmp_path / "one" / "result.json").read_text())["loss"] == result.scores["loss"]
    assert values(work, 3, tmp_path / "ranks", str(path), str(tmp_path / "three")) == [30, 30, 30]
    assert same(weights(tmp_path / "three"), weights(tmp_path / "one"))
    # Stopped after twenty samples and taken up again, it ends in the same place.
    path.write_text(CONFIG.replace("steps = 30", "steps = 20"))
    run(path, out=tmp_path / "twice", progress=False)
    path.write_text(CONFIG)
    run(path, out=tmp_path / "twice", progress=False)
    assert same(weights(tmp_path / "twice"), weights(tmp_path / "one"))


def test_ticks_per_message_is_a_key_beside_it_and_the_weights_do_not_depend_on_the_ranks(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.replace("pipeline = 4", "pipeline = 4\nticks_per_message = 3"))
    run(path, out=tmp_path / "one", progress=False)
    assert Saved(tmp_path / "one" / "checkpoints").ranks[0]["config"]["ticks_per_message"] == 3
    assert values(work, 2, tmp_path / "ranks", str(path), str(tmp_path / "two")) == [30, 30]
    assert same(weights(tmp_path / "two"), weights(tmp_path / "one"))
    path.write_text(CONFIG.replace("pipeline = 4", "ticks_per_message = 3"))
    with pytest.raises(ConfigError, match=r"learner\.ticks_per_message = 3 is not allowed\. It belongs to learner\.pipeline"):
        run(path, out=tmp_path / "none", progress=False)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ticks_per_message = 0", "learner.ticks_per_message = 0 is not allowed. ticks_per_message=0 must be"),
        ("ticks_per_message = 1.5", "learner.ticks_per_message = 1.5 is not allowed. Allowed is a whole number"),
        ('engine = "compiled"', "learner.engine = .compiled. is not allowed. A pipeline has"),
        ("[network]\nkind = 'gru'", "learner.pipeline = 2 is not allowed. It splits layers in a row"),
        ("[records]\nmetrics = ['MAE']", "records.metrics = ..MAE.. is not allowed. A pipeline keeps losses only"),
    ],
)
def test_what_a_pipeline_does_not_know_is_refused_by_its_name_in_the_file(
    line: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.toml"
    text = CONFIG.replace("[network]\nhidden = [6, 5, 4]\n", "") if "network" in line else CONFIG
    path.write_text(text.replace("pipeline = 4", f"pipeline = 2\n{line}"))
    with pytest.raises(ConfigError, match=message):
        run(path, out=tmp_path / "out", progress=False)
