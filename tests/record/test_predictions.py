"""Predictions on file: a row for each, in the unit of the data, none twice after a resume."""

import csv

import numpy
import polars
import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn import record, streams
from hamlearn.errors import ConfigError, SampleError


def learner(outputs=1, loss=nn.functional.mse_loss, last=nn.Identity):
    torch.manual_seed(0)
    net = hl.Network.feedforward(nn.Sequential(nn.Linear(2, outputs), last()))
    return hl.Learner(net, loss, hl.Hyper.from_sgd(lr=0.05))


def samples(n=50, target=lambda u: u.sum(-1, keepdim=True)):
    u = torch.randn(n, 1, 2, generator=torch.Generator().manual_seed(1))
    return [hl.Sample(row, target(row)) for row in u]


def written(path, model, stream, **settings):
    got = []
    with record.Recorder(model, record.Predictions(path, **settings)) as recorder:
        for report in recorder(model.run(stream)):
            got.append(report)
    with path.open() as file:
        return got, list(csv.DictReader(file))


def test_each_prediction_has_a_row_with_its_time_and_target(tmp_path):
    data = samples()
    data[3].target = None
    got, rows = written(tmp_path / "p.csv", learner(), data)
    assert list(rows[0]) == ["index", "time", "id", "y", "target"]
    assert [int(row["index"]) for row in rows] == list(range(50))
    assert [float(row["time"]) for row in rows] == [report.t + 1.0 for report in got]
    assert [numpy.float32(row["y"]) for row in rows] == [report.y.item() for report in got]
    assert rows[3]["target"] == ""
    assert numpy.float32(rows[4]["target"]) == data[4].target.item()
    assert max(len(row["y"]) for row in rows) < 14


def test_a_target_that_comes_later_has_a_row_with_the_id_and_the_prediction_of_its_sample(tmp_path):
    _, rows = written(tmp_path / "p.csv", learner(), streams.delayed(samples(20), 3))
    asked = {row["id"]: row["y"] for row in rows if not row["target"]}
    labels = [row for row in rows if row["target"]]
    assert len(asked) == len(labels) == 20
    assert all(row["y"] == asked[row["id"]] for row in labels)


def test_the_time_is_when_the_sample_was_taken_and_of_a_label_when_it_came(tmp_path):
    gaps = (None, 2.0, 60.0, None)
    events = [hl.Sample(torch.ones(1, 2), tau=tau, id=k) for k, tau in enumerate(gaps)]
    events.insert(3, hl.Label(1, torch.ones(1, 1)))
    torch.manual_seed(0)
    network = hl.Network.feedforward(nn.Linear(2, 1))
    for tau in (0.5, lambda t: 0.5):
        model = hl.Learner(network, nn.functional.mse_loss, hl.Hyper(tau=tau, eta=0.5))
        got, rows = written(tmp_path / f"{callable(tau)}.csv", model, events)
        assert [float(row["time"]) for row in rows] == [0.5, 2.5, 62.5, 62.5, 63.0]
        assert [report.late for report in got] == [False, False, False, True, False]


def test_several_outputs_have_a_column_each(tmp_path):
    got, rows = written(tmp_path / "p.csv", learner(2), samples(target=lambda u: u))
    assert list(rows[0])[3:] == ["y_0", "y_1", "target_0", "target_1"]
    assert [numpy.float32(rows[-1][f"y_{k}"]) for k in range(2)] == got[-1].y.flatten().tolist()


@pytest.mark.parametrize(
    ("model", "target"),
    [
        (lambda: learner(2, nn.functional.cross_entropy), lambda u: (u.sum(-1) > 0).long()),
        (lambda: learner(1, nn.BCELoss(), nn.Sigmoid), lambda u: (u.sum(-1, keepdim=True) > 0).float()),
        (lambda: learner(1, nn.SoftMarginLoss()), lambda u: u.sum(-1, keepdim=True).sign()),
    ],
)
def test_classes_are_written_by_name_with_their_probability(tmp_path, model, target):
    data = samples(target=target)
    got, rows = written(tmp_path / "p.csv", model(), data, classes=("no", "yes"))
    assert list(rows[0])[3:] == ["y", "target", "p"]
    for row, report, sample in zip(rows, got, data, strict=True):
        assert row["target"] == ("yes" if sample.u.sum() > 0 else "no")
        assert float(row["p"]) >= 0.5
        p = report.y.softmax(-1)[0, 1] if report.y.shape[-1] == 2 else report.y[0, 0]
        assert row["y"] == ("yes" if p > (0 if isinstance(model().loss, nn.SoftMarginLoss) else 0.5) else "no")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_resumed_run_writes_each_row_once(tmp_path, suffix):
    path, data, model = tmp_path / f"p{suffix}", samples(40), learner()
    recorder = record.Recorder(model, record.Predictions(path))
    for k, report in enumerate(model.run(data), 1):
        recorder.take(report)
        if k == 17:
            state = recorder.state_dict()
    recorder.close()
    frame = polars.read_csv if suffix == ".csv" else polars.read_parquet
    whole = frame(path)
    assert whole["index"].to_list() == list(range(40))
    again = learner()
    with record.Recorder(again, record.Predictions(path, append=True)) as recorder:
        for k, report in enumerate(again.run(data), 1):
            if k == 17:
                recorder.load_state_dict(state)
            elif k > 17:
                recorder.take(report)
    assert frame(path).equals(whole)
    assert {one.name for one in tmp_path.iterdir()} == {path.name, "p.csv"}


def test_names_of_classes_are_asked_for_only_when_a_new_one_appears(tmp_path):
    asked = []

    def names():
        asked.append(1)
        return ["kept", "returned"][: len(asked)]

    data = samples(target=lambda u: (u.sum(-1) > 0).long())
    _, rows = written(tmp_path / "p.csv", learner(2, nn.functional.cross_entropy), data, classes=names)
    assert {row["target"] for row in rows} == {"kept", "returned"}
    assert len(asked) <= 2
    model = learner(2, nn.functional.cross_entropy)
    _, rows = written(tmp_path / "q.csv", model, data, classes=lambda: None)
    assert {row["target"] for row in rows} == {"0", "1"}


def test_what_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"must end in \.csv or \.parquet"):
        record.Predictions(tmp_path / "p.txt")
    model = learner()
    recorder = record.Recorder(model, record.Predictions(tmp_path / "p.csv"))
    recorder.take(model.step(hl.Sample(torch.ones(1, 2), torch.ones(1, 1))))
    with pytest.raises(SampleError, match="has 1 predictions in a row, but sample 1 has 3"):
        recorder.take(model.step(hl.Sample(torch.ones(3, 2), torch.ones(3, 1))))
    recorder.close()
