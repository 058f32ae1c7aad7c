"""`hamlearn run`: one file in, results out; mistakes are named."""

import json
import os
import random
import resource

import pytest

from hamlearn import record
from hamlearn.errors import ConfigError
from hamlearn.experiments.run import CHECKPOINT, RECORD, REPORT, RESULT, run
from tests.fuzz.kills import COMPILED, CONFIG, finished, killed_and_resumed

# River leaves the file of a data set open that was not read to its end.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def write(tmp_path):
    def write(text, name="config.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_a_run_leaves_record_result_report_and_checkpoint(write, tmp_path):
    result = run(write(CONFIG), out=tmp_path / "out", progress=False)
    assert result.steps == 300
    rows = record.read(tmp_path / "out" / RECORD)
    assert [row["step"] for row in rows] == list(range(10, 301, 10))
    assert rows[-1]["MAE"] == result.scores["MAE"]
    assert rows[-1]["MAE (window)"] == result.window["MAE"] < result.scores["MAE"]
    assert json.loads((tmp_path / "out" / RESULT).read_text())["scores"] == result.scores
    assert "signals.mackey_glass" in (tmp_path / "out" / REPORT).read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "kills"), [("eager", 4), ("compiled", 2)])
def test_killed_at_random_moments_and_resumed_it_ends_bit_for_bit_the_same(tmp_path, engine, kills):
    whole, killed = killed_and_resumed(tmp_path, engine, kills, random.Random(os.getpid()))
    assert killed == whole


@pytest.mark.parametrize(
    "change",
    [
        ('kind = "gru"', 'kind = "lstm"'),
        ("substeps = 2", "substeps = 2\nstandardize = true\nlags = 3\nrelative = true"),
        ("substeps = 2", "substeps = 2\nhold = 3"),
        COMPILED,
        (COMPILED[0], COMPILED[1].replace("chunk = 64", 'chunk = 64\ncredit = "echo"\nevery = 7\ntruncate = 9')),
    ],
)
def test_a_run_that_was_stopped_and_resumed_is_the_same(write, tmp_path, change, monkeypatch):
    text = CONFIG.replace(*change)
    config = write(text)
    run(config, out=tmp_path / "whole", progress=False)
    original, taken = record.Recorder.take, []

    def stop(self, report):
        taken.append(1)
        if len(taken) == 137:
            raise KeyboardInterrupt
        original(self, report)

    with monkeypatch.context() as patch:
        patch.setattr(record.Recorder, "take", stop)
        with pytest.raises(KeyboardInterrupt):
            run(config, out=tmp_path / "cut", progress=False)
    run(config, resume=True, out=tmp_path / "cut", progress=False)
    assert finished(tmp_path / "cut") == finished(tmp_path / "whole")


def test_a_disk_that_fills_up_loses_nothing_and_the_run_can_go_on_when_there_is_room(write, tmp_path):
    config = write(CONFIG.replace("steps = 300", "steps = 1500"))
    run(config, out=tmp_path / "whole", progress=False)
    limit = 30_000
    assert (tmp_path / "whole" / CHECKPOINT).stat().st_size < limit < (tmp_path / "whole" / RECORD).stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        with pytest.raises(OSError, match="nothing before is lost"):
            run(config, out=tmp_path / "full", progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    kept = (tmp_path / "full" / RECORD).read_bytes()
    assert kept.endswith(b"\n")
    assert (tmp_path / "whole" / RECORD).read_bytes().startswith(kept)
    assert len(kept) > limit - 500
    run(config, resume=True, out=tmp_path / "full", progress=False)
    assert finished(tmp_path / "full") == finished(tmp_path / "whole")


def test_a_finished_run_can_be_resumed_and_made_longer(write, tmp_path):
    config, out = write(CONFIG), tmp_path / "out"
    first = run(config, out=out, progress=False)
    assert run(config, resume=True, out=out, progress=False) == first
    longer = write(CONFIG.replace("steps = 300", "steps = 400"))
    assert run(longer, resume=True, out=out, progress=False).steps == 400
    run(longer, out=tmp_path / "whole", progress=False)
    assert finished(out) == finished(tmp_path / "whole")
    with pytest.raises(ConfigError, match="has a run already"):
        run(config, out=out, progress=False)


HENON = "[stream]\nkind = 'signals.henon'\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stream = 3", "stream = 3 is not allowed. Write .stream., and its keys below it"),
        (HENON, "run.steps is missing, and the stream is endless"),
        ("[stream]\nkind = 'live'\nsource = 'tcp://h:1'", "network.inputs is missing"),
        (HENON + "[network]\nkind = 'cnn'", 'network.kind = .cnn. .* one of "linear", "mlp"'),
        (HENON + "[network]\nkind = 'rnn'\nhidden = [3, 4]", "kind 'rnn' takes one whole number"),
        (HENON + "[network]\nkind = 'rnn'\nrole = 'state'", "network.role = 'state'"),
        ("[stream", "is not TOML"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_what_is_allowed(write, tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        run(write(text), out=tmp_path / "out", progress=False)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("beta = 0.02", "beta = 0.03", "hyper.beta"),
        ("every = 10", "every = 20", "records.every"),
        ('metrics = ["MAE", "RMSE"]', 'metrics = ["MAE"]', "records.metrics"),
        ("seed = 3", "seed = 4", "run.seed"),
    ],
)
def test_a_run_does_not_go_on_with_a_configuration_that_would_have_gone_another_way(tmp_path, old, new, key):
    path, out = tmp_path / "config.toml", tmp_path / "out"
    path.write_text(CONFIG)
    run(path, out=out, progress=False)
    before = {file.name: file.read_bytes() for file in out.iterdir() if file.is_file()}
    path.write_text(CONFIG.replace(old, new))
    with pytest.raises(ConfigError, match=rf"{key} = .*Put it back"):
        run(path, resume=True, out=out, progress=False)
    assert {file.name: file.read_bytes() for file in out.iterdir() if file.is_file()} == before
