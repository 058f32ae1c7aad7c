"""What a run leaves in its folder, and what can be made of it later."""

import csv
import json
import logging
import socket
import threading
import urllib.request

import pytest
import torch

from hamlearn import record
from hamlearn.errors import ConfigError
from hamlearn.experiments.run import CHECKPOINT, RECORD, SPEED, reopen, report, run
from hamlearn.experiments.run.config import load
from hamlearn.experiments.run.folder import prepare, require_free

TABLE = """
[run]
title = "Prices"
[stream]
kind = "csv"
path = "table.csv"
target = "price"
categories = {shop = 2}
[network]
hidden = 4
[hyper]
beta = 0.05
[records]
every = 10
[checkpoint]
every = 50
"""


@pytest.fixture
def config(tmp_path):
    """A table whose target is far from 0 ± 1, and the file for it."""
    generator = torch.Generator().manual_seed(0)
    sizes = (50 + 10 * torch.randn(400, generator=generator)).tolist()
    rows = [f"{size:.3f},{'ab'[k % 2]},{3 * size + 20 * (k % 2):.3f}\n" for k, size in enumerate(sizes)]
    (tmp_path / "table.csv").write_text("size,shop,price\n" + "".join(rows))
    (tmp_path / "config.toml").write_text(TABLE)
    return tmp_path / "config.toml"


def predictions(folder):
    with (folder / "predictions.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_target_is_scaled_and_scores_and_predictions_are_in_the_unit_of_the_data(config, tmp_path):
    result = run(config, out=tmp_path / "out", progress=False)
    assert result.window["MAE"] < min(scores["MAE"] for scores in result.baselines.values())
    assert result.behind == []
    rows = predictions(tmp_path / "out")
    assert len(rows) == 400
    errors = [abs(float(row["y"]) - float(row["target"])) for row in rows]
    assert sum(errors) / 400 == pytest.approx(result.scores["MAE"], rel=1e-5)
    assert sum(errors[-200:]) / 200 == pytest.approx(result.window["MAE"], rel=1e-5)
    assert f"400 samples · MAE {result.scores['MAE']:.3g} (last 200: " in result.summary()
    assert result.summary().endswith(f"report: {tmp_path / 'out' / 'report.html'}")
    kept = json.loads((tmp_path / "out" / "result.json").read_text())
    assert kept["baselines"] == result.baselines


def test_a_learner_behind_a_baseline_is_said_to_be(config, tmp_path):
    config.write_text(
        TABLE.replace("beta = 0.05", "beta = 0.0").replace("[network]", "standardize = false\n[network]")
    )
    result = run(config, out=tmp_path / "out", progress=False)
    assert any("mean" in words for words in result.warnings)


def test_classes_in_predictions_have_their_names_also_those_found_on_the_way(config, tmp_path):
    text = TABLE.replace('"price"', '"shop"\nclasses = 2').replace("categories = {shop = 2}\n", "")
    config.write_text(text + '[loss]\nkind = "cross_entropy"\n')
    run(config, out=tmp_path / "out", progress=False)
    assert {row["target"] for row in predictions(tmp_path / "out")} == {"a", "b"}


def test_a_run_that_is_reopened_predicts_as_it_would_have_for_the_next_row(config, tmp_path):
    run(config, out=tmp_path / "out", progress=False)
    opened = reopen(tmp_path / "out")
    assert opened.learner.position == 400
    row = {"size": 60.0, "shop": "b"}
    y = float(opened.stream.unscale(opened.learner.predict(opened.stream.encode(row))))
    with (tmp_path / "table.csv").open("a") as file:
        file.write("60.0,b,200.0\n")
    run(config, out=tmp_path / "out", resume=True, progress=False)
    assert float(predictions(tmp_path / "out")[-1]["y"]) == pytest.approx(y, rel=1e-5)


def test_records_that_are_missing_or_rotated_do_not_stop_a_learner_that_has_its_checkpoint(
    config, tmp_path, caplog
):
    run(config, out=tmp_path / "whole", progress=False)
    table = (tmp_path / "table.csv").read_text().splitlines(keepends=True)
    (tmp_path / "table.csv").write_text("".join(table[:300]))
    out = tmp_path / "out"
    run(config, out=out, progress=False)
    (tmp_path / "table.csv").write_text("".join(table))
    (out / RECORD).unlink()
    (out / SPEED).write_text("")
    (out / "predictions.csv").unlink()
    with caplog.at_level(logging.WARNING, "hamlearn"):
        assert run(config, out=out, resume=True, progress=False).steps == 400
    assert caplog.text
    assert record.read(out / RECORD)[-1] == record.read(tmp_path / "whole" / RECORD)[-1]


def test_a_password_of_a_feed_stays_in_the_file_of_the_user(tmp_path):
    secret = "redis://ann:s3cret@127.0.0.1:1/flow"
    (tmp_path / "config.toml").write_text(
        f'[stream]\nkind = "redis"\naddress = "{secret}"\ngroup = "g"\n[network]\ninputs = 1\noutputs = 1\n'
    )
    config = load(tmp_path / "config.toml")
    out = tmp_path / "out"
    out.mkdir()
    prepare(out, config, overwrite=False)
    assert not [path for path in out.iterdir() if "s3cret" in path.read_text()]
    assert "redis://ann@127.0.0.1:1/flow" in (out / "config.json").read_text()
    assert "s3cret" in (tmp_path / "config.toml").read_text()
    # The copy does not stand in the way of the run that it is of.
    (out / CHECKPOINT).touch()
    require_free(out, config, resume=True)


def test_a_folder_without_a_run_and_a_broken_configuration_are_named(config, tmp_path):
    with pytest.raises(ConfigError, match=r"has no checkpoint\.safetensors: give a folder"):
        reopen(tmp_path)
    run(config, out=tmp_path / "out", progress=False)
    (tmp_path / "out" / "config.json").write_text("{")
    for use in (reopen, report):
        with pytest.raises(ConfigError, match=r"config\.json is not what hamlearn run wrote"):
            use(tmp_path / "out")


def test_prometheus_finds_samples_scores_and_the_age_of_the_checkpoint_during_the_run(tmp_path):
    pytest.importorskip("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as server:
        (tmp_path / "config.toml").write_text(
            f'[stream]\nkind = "live"\nsource = "tcp://127.0.0.1:{server.getsockname()[1]}"\npolicy = "block"\n'
            'timeout = 60.0\n[network]\nkind = "linear"\ninputs = 1\noutputs = 1\n[checkpoint]\nevery = 2\n'
        )
        found = []

        def feed():
            link, _ = server.accept()
            link.sendall(b'{"u": [1.0], "target": [0.5]}\n' * 9)
            while not (tmp_path / "out" / CHECKPOINT).exists():
                pass
            found.append(urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20).read().decode())
            link.close()

        thread = threading.Thread(target=feed)
        thread.start()
        run(tmp_path / "config.toml", out=tmp_path / "out", progress=False, metrics_port=port)
        thread.join()
    for name in (
        "hamlearn_samples_total",
        "hamlearn_loss",
        'hamlearn_score{metric="MAE"}',
    ):
        assert name in found[0]
    assert "hamlearn_checkpoint_age_seconds" in found[0]


def late_table(folder, count, by):
    """A table whose labels come `by` rows after their samples, and the file for it."""
    rows = [f"{k},{k % 7},\n" for k in range(count)]
    for k in range(count - by):
        rows.insert(2 * k + by + 1, f"{k},,{k % 5}\n")
    (folder / "late.csv").write_text("id,x,y\n" + "".join(rows))
    path = folder / "late.toml"
    path.write_text('stream = {kind = "csv", path = "late.csv", target = "y", id = "id"}\nlearner.late = 10\n')
    return path


def test_labels_that_come_too_late_are_counted_and_warned_of_once_with_the_remedy(tmp_path, caplog):
    result = run(late_table(tmp_path, 60, 20), out=tmp_path / "out", progress=False)
    assert [record.message for record in caplog.records if "learner.late" in record.message] == caplog.messages
    assert len(caplog.messages) == 1
    kept = json.loads((tmp_path / "out" / "result.json").read_text())
    assert kept["labels"] == {"waiting": 10, "learned": 0, "late": 40, "never": 50}
    assert "labels: 0 learned, 40 too late, 10 samples wait" in result.summary()
    assert any("40 labels" in words and "learner.late" in words for words in result.warnings)


def test_labels_that_come_in_time_are_counted_without_a_warning(tmp_path, caplog):
    result = run(late_table(tmp_path, 60, 5), out=tmp_path / "out", progress=False)
    assert result.labels == {"waiting": 5, "learned": 55, "late": 0, "never": 0}
    assert caplog.messages == []
    assert "too late" not in result.summary()


@pytest.mark.parametrize("around", ["", 'finite = "skip"\nmax_tau = 2.0\n'])
def test_rows_that_are_left_out_are_counted_in_the_result(config, tmp_path, around):
    config.write_text(TABLE.replace("categories", f'bad = "skip"\n{around}categories'))
    with (tmp_path / "table.csv").open("a") as file:
        file.write("none,a,1.0\n1.0,b,none\n")
    result = run(config, out=tmp_path / "out", progress=False)
    # A target that is missing leaves no row out.
    assert json.loads((tmp_path / "out" / "result.json").read_text())["skipped"] == 1
    assert "401 samples · 1 row left out · " in result.summary()
    assert result.warnings == []


def test_a_run_that_left_every_row_out_ends_with_a_warning(tmp_path):
    (tmp_path / "t.csv").write_text("x;y\n" + "1,5;2,5\n" * 9)
    (tmp_path / "c.toml").write_text(
        'stream = {kind = "csv", path = "t.csv", target = "y", delimiter = ";", bad = "skip"}\n'
    )
    result = run(tmp_path / "c.toml", out=tmp_path / "out", progress=False)
    assert result.summary().startswith("0 samples · 9 rows left out · ")
    assert any("Nothing was learned" in words and 'bad = "raise"' in words for words in result.warnings)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_predictions_name_each_row_also_those_whose_target_came_with_them(tmp_path, engine):
    (tmp_path / "t.csv").write_text("id,x,y\na,1,2\nb,2,4\nc,3,\nd,4,8\nc,,6\n")
    (tmp_path / "c.toml").write_text(
        'stream = {kind = "csv", path = "t.csv", target = "y", id = "id", finite = "skip", max_tau = 2.0}\n'
        f'learner.engine = "{engine}"\n'
    )
    run(tmp_path / "c.toml", out=tmp_path / "out", progress=False)
    rows = predictions(tmp_path / "out")
    assert [(row["id"], row["target"]) for row in rows] == [
        ("a", "2.0"),
        ("b", "4.0"),
        ("c", ""),
        ("d", "8.0"),
        ("c", "6.0"),
    ]
