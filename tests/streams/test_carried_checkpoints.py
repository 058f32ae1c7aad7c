"""A checkpoint of `hamlearn run` or `evaluate` goes on as a plain run; no message prints a whole state."""

import pytest
import torch

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
