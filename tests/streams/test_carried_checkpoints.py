"""A checkpoint of `hamlearn run` or `evaluate` goes on as a plain run; no message prints a whole state."""

import pytest
import torch

from hamlearn import streams
from hamlearn.errors import CheckpointError
from hamlearn.experiments.run import CHECKPOINT, run
from hamlearn.experiments.run.build import build_learner, build_network, build_stream
from hamlearn.experiments.run.config import load

CONFIG = """
[run]
threads = 1
steps = {steps}
[stream]
kind = "csv"
path = "table.csv"
target = "y"
categories = {{shop = 400}}
standardize = true
[network]
kind = "linear"
[learner]
engine = "{engine}"
"""


def parts(folder, engine, steps):
    """The configuration file, with the table that it reads."""
    rows = [f"{k % 7},s{k % 300},{(k % 5) / 5}" for k in range(400)]
    (folder / "table.csv").write_text("x,shop,y\n" + "\n".join(rows) + "\n")
    path = folder / f"{steps}.toml"
    path.write_text(CONFIG.format(steps=steps, engine=engine))
    return path


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_checkpoint_of_hamlearn_run_goes_on_in_python_to_the_bit(tmp_path, engine):
    whole = run(parts(tmp_path, engine, 400), out=tmp_path / "whole", progress=False)
    half = run(parts(tmp_path, engine, 250), out=tmp_path / "half", progress=False)
    config = load(tmp_path / "400.toml")
    ended = []
    for result in (whole, half):
        stream, classes = build_stream(config, tmp_path)
        learner = build_learner(config, build_network(config, stream, classes))
        learner.load(result.folder / CHECKPOINT)
        for _ in learner.run(stream, engine=engine, resume=True):
            pass
        assert learner.position == 400
        ended.append(torch.cat([weight.detach().flatten() for weight in learner.network.parameters()]))
    assert torch.equal(*ended)


def test_a_state_that_is_not_that_of_the_stream_is_told_in_few_words():
    stream = streams.take(streams.signals.henon(), 10)
    with pytest.raises(CheckpointError, match="is not the state of a stream") as caught:
        stream.load_state_dict({"names": [f"name {k}" for k in range(5000)]})
    assert len(str(caught.value)) < 400
    state = stream.state_dict()
    with pytest.raises(CheckpointError, match="cannot be read") as caught:
        stream.load_state_dict(state | {"cursor": {"names": ["x"] * 5000}})
    assert len(str(caught.value)) < 400
    with pytest.raises(CheckpointError, match="was saved with") as caught:
        stream.load_state_dict(state | {"config": {"names": ["x"] * 5000}})
    assert len(str(caught.value)) < 600


def test_a_checkpoint_of_another_stream_is_refused_in_few_words(tmp_path):
    result = run(parts(tmp_path, "eager", 350), out=tmp_path / "out", progress=False)
    config = load(tmp_path / "350.toml")
    stream, classes = build_stream(config, tmp_path)
    learner = build_learner(config, build_network(config, stream, classes))
    learner.load(result.folder / CHECKPOINT)
    with pytest.raises(CheckpointError, match="the state belongs to a") as caught:
        next(learner.run(streams.signals.henon(), resume=True))
    assert len(str(caught.value)) < 400
